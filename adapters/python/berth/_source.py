# SPDX-License-Identifier: BSD-3-Clause
"""Where a load comes from, as the native module takes it: bytes of a path, a descriptor, a buffer, a URL."""

import io
import os
import tempfile

from berth import _native

REAL_FILES = (io.FileIO, io.BufferedReader, io.BufferedRandom)


class Url(str):
    """A text that the caller of berth.load, berth.open or berth.verify gave as a URL.

    Its repr shows what messages show of it: no password, no query (U1).
    """

    def __repr__(self):
        return f"Url({_native.url_shown(self)!r})"


def from_caller(f):
    """URLs are marked here, and nowhere else: torch.load must not reach the network under install() (U5)."""
    return Url(f) if type(f) is str and f.lower().startswith(("https://", "http://", "s3://")) else f


def is_path(f):
    return isinstance(f, (str, bytes, os.PathLike))


def descriptor_of(f, kinds):
    """The descriptor of a real file; None: it is another kind of object."""
    if type(f) is tempfile._TemporaryFileWrapper:
        f = f.file
    try:
        return f.fileno() if type(f) in kinds else None
    except io.UnsupportedOperation:  # a BufferedReader around something else
        return None


def source_of(f):
    if isinstance(f, Url):
        return str(f)
    if is_path(f):
        return os.fsencode(f)
    if not hasattr(f, "read"):
        raise AttributeError("expected 'f' to be a path, or a binary file with the method 'read'")
    if type(f) is io.BytesIO:
        return f.getbuffer()[f.tell():]
    fd = descriptor_of(f, REAL_FILES)
    if fd is not None and f.seekable() and f.tell() == 0:
        return fd
    return memoryview(_read_into(f) if hasattr(f, "readinto") else _read(f))


def can_seek(f):
    return hasattr(f, "seek") and hasattr(f, "tell") and (
        not hasattr(f, "seekable") or f.seekable())


def _read(f):
    data = f.read()
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"read() returned {type(data).__name__}: the file is not open in binary mode")
    return data


def _read_into(f):
    """The rest of a file, without a second copy of it."""
    try:
        here = f.tell()
        data = bytearray(f.seek(0, os.SEEK_END) - here)
        f.seek(here)
    except (AttributeError, OSError, TypeError, ValueError):  # it cannot tell its size
        return _read(f)
    n, view = 0, memoryview(data)
    while n < len(data) and (more := f.readinto(view[n:])):
        n += more
    return view[:n]
