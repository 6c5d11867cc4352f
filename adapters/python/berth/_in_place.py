# SPDX-License-Identifier: BSD-3-Clause
"""Under berth.install(): files that torch.save would write in place, and a rename cannot replace."""

import errno
import os
import stat
import warnings

from berth import _native
from berth._config import config
from berth._errors import FileError
from berth._save import start_plainly
from berth._source import is_path

N_FRAMES = 6  # from the warning to the call of torch.save


def start_as_torch(f, function, *arguments):
    """Like start_plainly, which begins a save to f, but as torch.save means it.

    A file that this process has open for writing is written in place, so that its descriptor sees
    what is saved: NamedTemporaryFile. But not if it is mapped: its tensors would change.
    What cannot be replaced is written in place, with a warning if it is a file, unless
    save.replace=always.
    """
    replaces = config.save.replace != "auto"
    if not replaces and is_path(f) and _is_open_for_writing(f):
        try:
            with config.patch({"save.replace": "in_place"}):
                return start_plainly(f, function, *arguments)
        except FileError as error:
            if error.errno != errno.EBUSY:
                raise
    try:
        return start_plainly(f, function, *arguments)
    except FileError as error:
        if error.status != "BERTH_E_REPLACE" or replaces:
            raise
        why = str(error).partition("; save to")[0]
    if stat.S_ISREG(os.stat(f).st_mode):
        warnings.warn(f"{why}. It is written in place, as PyTorch does: if that fails, the old content is "
                      "lost.", stacklevel=N_FRAMES)
    with config.patch({"save.replace": "in_place"}):
        return start_plainly(f, function, *arguments)


def _is_open_for_writing(path):
    try:
        there = os.stat(path)
    except OSError:
        return False
    return stat.S_ISREG(there.st_mode) and _native.is_open_for_writing(there.st_dev, there.st_ino)
