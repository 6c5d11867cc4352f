# SPDX-License-Identifier: BSD-3-Clause
"""Berth saves and loads PyTorch checkpoints.

    import berth
    berth.save(state, "model.pt")               # the bytes of torch.save; atomic, durable, parallel
    job = berth.save_async(state, "model.pt")   # the same, while the program goes on
    state = berth.load("model.pt")              # what torch.load(weights_only=True) returns
    with berth.open("model.pt") as file:        # lazy: tensors by name, and slices of them
        rows = file.slice("embedding.weight")[1000:1100]

`berth.config` has the options, `berth.verify` checks a whole file, `berth.counters` counts what was
saved and loaded. Errors are `berth.Error`; a file that names code is a `berth.UnsafeFileError`, and
nothing of it is run. All functions may be called from several threads at once.
"""

import os as _os
import sysconfig as _sysconfig

if _sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise ImportError("berth is not built for free-threaded CPython; use one with the GIL")

from berth import _native
from berth._config import config
from berth._counters import counters
from berth._errors import (
    ArgumentError,
    CancelledError,
    Declined,
    Error,
    FileError,
    MissingFileError,
    OutOfMemoryError,
    UnsafeFileError,
)
from berth._job import Job, save_async
from berth._load import load
from berth._open import File, Slice, open
from berth._save import save
from berth._verify import RecordReport, Report, verify

_os.register_at_fork(after_in_child=_native.after_fork)

__version__ = _native.version()
__all__ = [
    "ArgumentError",
    "CancelledError",
    "Declined",
    "Error",
    "File",
    "FileError",
    "Job",
    "MissingFileError",
    "OutOfMemoryError",
    "RecordReport",
    "Report",
    "Slice",
    "UnsafeFileError",
    "config",
    "counters",
    "load",
    "open",
    "save",
    "save_async",
    "verify",
]
