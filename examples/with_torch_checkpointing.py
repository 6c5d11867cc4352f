# SPDX-License-Identifier: BSD-3-Clause
"""torch_checkpointing saves and loads through Berth."""

import torch
from berth.torch_checkpointing import BerthStorageConfig
from torch_checkpointing import CheckpointLoaderConfig, CheckpointManager, SyncCheckpointSaverConfig

model = torch.nn.Linear(4, 3)
manager = CheckpointManager(CheckpointManager.Config(
    save=SyncCheckpointSaverConfig(), load=CheckpointLoaderConfig(use_mmap=False),
    storage_config=BerthStorageConfig()))  # yapf: disable
manager.save("checkpoints/step_7", {"model": model.state_dict()})
manager.load("checkpoints/step_7", into={"model": model.state_dict()})
manager.close()
