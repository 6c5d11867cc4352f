# SPDX-License-Identifier: BSD-3-Clause
"""Makes mlp.pt: a small network, an input, and what PyTorch computes of it. Run it in this folder."""

import torch

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
given = torch.randn(5, 4)
with torch.no_grad():
    torch.save({"model": model.state_dict(), "input": given, "output": model(given)}, "mlp.pt")
