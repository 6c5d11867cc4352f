# SPDX-License-Identifier: BSD-3-Clause
"""DeepSpeed's checkpoints, saved and loaded by Berth.

    engine, *_ = deepspeed.initialize(...)
    engine.checkpoint_engine = BerthCheckpointEngine()
    engine.save_checkpoint(folder)
    engine.load_checkpoint(folder)
"""

import berth
import torch.distributed as distributed
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine


class BerthCheckpointEngine(CheckpointEngine):
    """Each file of a checkpoint is whole or not there, and durable; those of one rank are written side by side.

    At the end of a checkpoint all ranks wait for each other, before DeepSpeed writes the file `latest`: a checkpoint
    that it names is whole. If a save fails on one rank, save_checkpoint raises on all of them.

    config_params: not used; DeepSpeed's other engines have it
    weights_only: False: a load runs what a file asks for, as DeepSpeed's own engine does. Only for files that you
        trust. True, the default: a file that names classes is refused, with what the program can allow; DeepSpeed's
        loss scalers are such classes.
    """

    def __init__(self, config_params=None, *, weights_only=True):
        super().__init__(config_params)
        self.name = "BerthCheckpointEngine"
        self._weights_only = weights_only
        self._jobs = []

    def create(self, info):
        """A checkpoint begins. Raises: what a file of the one before has raised."""
        self._wait()

    def save(self, state_dict, path):
        """Copies the tensors, and writes the file while DeepSpeed goes on. Raises: as berth.save_async."""
        self._jobs.append(berth.save_async(state_dict, path))

    def load(self, path, map_location=None):
        """The state of a file. Raises: as berth.load."""
        self._wait()
        return berth.load(path, map_location, weights_only=self._weights_only)

    def commit(self, info):
        """All files of all ranks are on disk. Returns: True.

        Raises: what a save of this rank has raised; RuntimeError: one of another rank has failed.
        """
        failed = None
        try:
            self._wait()
        except Exception as error:
            failed = error
        if distributed.is_initialized():
            reports = [None] * distributed.get_world_size()
            distributed.all_gather_object(reports, str(failed) if failed else None)
        if failed:
            raise failed
        if distributed.is_initialized() and any(reports):
            rank = next(i for i, each in enumerate(reports) if each)
            raise RuntimeError(f"rank {rank}: {reports[rank]}")
        return True

    def cleanup(self):
        """The end of the engine. Raises: what a save has raised."""
        self._wait()

    def preserves_storage_sharing(self):
        """Whether a view is saved with all of its storage, as torch.save does: DeepSpeed copies views then."""
        return True

    def _wait(self):
        """For all files, also if one of them failed."""
        jobs, self._jobs = self._jobs, []
        failed = None
        for job in jobs:
            try:
                job.result()
            except Exception as error:
                failed = failed or error
        if failed:
            raise failed
