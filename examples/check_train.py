# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch resumes what train.c saved: check_train.py FILE."""

import sys

import torch

saved = torch.load(sys.argv[1], weights_only=True)
model = torch.nn.ParameterDict({"line": torch.zeros(2)})
model.load_state_dict(saved["model"])
optimizer = torch.optim.SGD(model.parameters(), lr=1)
optimizer.load_state_dict(saved["optimizer"])
group = optimizer.param_groups[0]
assert abs(group["lr"] - 0.005) < 1e-6 and abs(group["momentum"] - 0.9) < 1e-6, group
assert "momentum_buffer" in optimizer.state[model["line"]]
assert (model["line"] - torch.tensor([2.0, 1.0])).abs().max() < 0.1, saved["model"]
model["line"].sum().backward()
optimizer.step()
print("step", saved["step"])
