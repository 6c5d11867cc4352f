# SPDX-License-Identifier: BSD-3-Clause
"""Berth saves and loads PyTorch checkpoints.

    import berth
    berth.save(state, "model.pt")               # the bytes of torch.save; atomic, durable, parallel
    job = berth.save_async(state, "model.pt")   # the same, while the program goes on
    state = berth.load("model.pt")              # what torch.load(weights_only=True) returns
    with berth.open("model.pt") as file:        # lazy: tensors by name, and slices of them
        rows = file.slice("embedding.weight")[1000:1100]

`berth.install()` makes torch.save and torch.load Berth's, `berth.save_async` saves while the program
goes on, `berth.dcp` saves what all ranks of torch.distributed have as one file, `berth.rows` reads
rows of large tables, `berth.verify` checks a whole file. `berth.config` has
the options, `berth.counters` counts what was saved and loaded. Errors are `berth.Error`; a file that
names code is a `berth.UnsafeFileError`, and nothing of it is run. All functions may be called from
several threads at once.
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
    DamagedFileError,
    Error,
    FileError,
    MissingFileError,
    OutOfMemoryError,
    UnsafeFileError,
)
from berth._install import install, installed, uninstall
from berth._job import Job, save_async
from berth._load import load
from berth._open import File, Slice, open
from berth._rows import Rows, Table, Ticket, rows
from berth._save import save
from berth._verify import RecordReport, Report, verify

_os.register_at_fork(before=_native.before_fork, after_in_parent=_native.after_fork_in_parent,
                     after_in_child=_native.after_fork_in_child)

__version__ = _native.version()
__all__ = [
    "ArgumentError",
    "CancelledError",
    "DamagedFileError",
    "Error",
    "File",
    "FileError",
    "Job",
    "MissingFileError",
    "OutOfMemoryError",
    "RecordReport",
    "Report",
    "Rows",
    "Slice",
    "Table",
    "Ticket",
    "UnsafeFileError",
    "config",
    "counters",
    "install",
    "installed",
    "load",
    "open",
    "rows",
    "save",
    "save_async",
    "uninstall",
    "verify",
]


def __getattr__(name):
    """berth.dcp: torch.distributed is imported when it is first used."""
    if name == "dcp":
        import importlib

        return importlib.import_module("berth.dcp")
    raise AttributeError(f"module 'berth' has no attribute {name!r}")
