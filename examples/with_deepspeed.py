# SPDX-License-Identifier: BSD-3-Clause
"""DeepSpeed saves and loads through Berth: deepspeed examples/with_deepspeed.py"""

import deepspeed
import torch
from berth.deepspeed import BerthCheckpointEngine

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters())
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={"train_batch_size": 1})
engine.checkpoint_engine = BerthCheckpointEngine()
engine.save_checkpoint("checkpoints")
engine.load_checkpoint("checkpoints")
