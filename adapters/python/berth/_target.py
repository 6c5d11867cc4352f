# SPDX-License-Identifier: BSD-3-Clause
"""Where a save goes, as the native module takes it: bytes of a path, a URL, a descriptor, a function."""

import contextlib
import functools
import io
import os

from berth._source import Url, descriptor_of, is_path, path_bytes

# Files of Python's own, whose bytes go to their descriptor and nowhere else.
REAL_FILES = (io.FileIO, io.BufferedWriter, io.BufferedRandom)


def target_of(f):
    """(target, end): end(is_saved) is called when the save has ended; it raises what f raises."""
    if isinstance(f, Url):
        return str(f), _nothing
    if is_path(f):
        return path_bytes(f), _nothing
    if not hasattr(f, "write"):
        raise AttributeError("expected 'f' to be string, path, or a file-like object with a "
                             "'write' attribute")
    fd = descriptor_of(f, REAL_FILES)
    if fd is None:
        return f.write, functools.partial(_flush, f)
    f.flush()
    if f.seekable():
        os.lseek(fd, f.tell(), os.SEEK_SET)
    return fd, functools.partial(_follow, f)


def _nothing(is_saved):
    pass


def _flush(f, is_saved):
    if is_saved and hasattr(f, "flush"):
        f.flush()


def _follow(f, is_saved):
    """Python's position follows that of the descriptor; a file that is closed meanwhile has none."""
    with contextlib.suppress(ValueError):
        if f.seekable():
            f.seek(os.lseek(f.fileno(), 0, os.SEEK_CUR))
