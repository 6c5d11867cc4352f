# SPDX-License-Identifier: BSD-3-Clause
"""Distributed checkpoints: one plain file of all ranks, instead of a folder of shards.

    import berth

    berth.dcp.save({"model": model.state_dict(), "step": 7}, "model.pt")     # on all ranks
    torch.load("model.pt", weights_only=True)                                # anywhere

    state = {"model": model.state_dict(), "step": 0}
    berth.dcp.load(state, "model.pt")                                        # into any mesh
    model.load_state_dict(state["model"])

This module, and torch.distributed with it, is imported when it is first used.
"""

from berth._dcp_load import Keys, load
from berth._dcp_save import async_save, save

__all__ = ["Keys", "Reader", "Writer", "async_save", "load", "save"]


def __getattr__(name):
    """What needs torch.distributed.checkpoint, which takes its time to import."""
    if name not in ("Reader", "Writer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from berth import _dcp_storage

    return getattr(_dcp_storage, name)
