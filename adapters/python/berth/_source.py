# SPDX-License-Identifier: BSD-3-Clause
"""Where a load comes from, as the native module takes it: bytes of a path, a descriptor, a buffer, a URL."""

import errno
import io
import os
import re
import tempfile
import threading

from berth import _native
from berth._errors import NO_OFFSET, make

URL_BEGIN = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]+:(?=/)")
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


def path_bytes(f):
    """A path as the library takes it. What cannot be a path is refused: a NUL would end it (Y11)."""
    path = os.fspath(f)
    try:
        found = os.fsencode(path)
    except UnicodeEncodeError:
        raise make("BERTH_E_ARGUMENT", f"{path!r}: a path of these characters cannot be encoded", 0, NO_OFFSET,
                   "") from None
    if b"\0" in found:
        raise make("BERTH_E_ARGUMENT", f"{path!r}: a path has no NUL character, so no file has this one", 0,
                   NO_OFFSET, "")
    scheme = URL_BEGIN.match(found)
    if scheme and not os.path.lexists(scheme[0]):  # U1: what follows is not shown; it may have a password
        raise make("BERTH_E_NOT_FOUND", f"{scheme[0].decode()}//...: there is no such file. Of URLs, those with "
                   "https://, http:// and s3:// are read, by berth.load, berth.open and berth.verify, given as a str; "
                   "none is written", errno.ENOENT, NO_OFFSET, "")
    return found


def name_of(f):
    """For messages: of a URL without its password and query (U1)."""
    if isinstance(f, Url):
        return _native.url_shown(f)
    return os.fsdecode(f) if is_path(f) else f"the object of {type(f)}"


def descriptor_of(f, kinds):
    """The descriptor of a real file; None: it is another kind of object."""
    if type(f) is tempfile._TemporaryFileWrapper:
        f = f.file
    try:
        return f.fileno() if type(f) in kinds else None
    except io.UnsupportedOperation:  # a BufferedReader around something else
        return None


def source_of(f):
    """A bytearray is memory that nobody else has; other buffers are lent (Y10)."""
    if isinstance(f, Url):
        return str(f)
    if is_path(f):
        return path_bytes(f)
    if not hasattr(f, "read"):
        raise AttributeError("expected 'f' to be a path, or a binary file with the method 'read'")
    if type(f) is io.BytesIO:
        return f.getbuffer()[f.tell():]
    fd = descriptor_of(f, REAL_FILES)
    if fd is not None and f.seekable() and f.tell() == 0:
        return fd
    return _read_into(f) if hasattr(f, "readinto") else memoryview(_read(f))


class Stream:
    """A file object that is read when the library asks, from where it stands on: nothing of it is kept.

    An exception of the file ends the call; `raised` has it.
    """

    def __init__(self, f):
        self._f = f
        self._begin = f.tell()
        self.nbytes = f.seek(0, os.SEEK_END) - self._begin
        self._at = None
        self._lock = threading.Lock()
        self.raised = None

    def __call__(self, offset, nbytes):
        """Some bytes from the offset on, at most so many; None: there are none."""
        try:
            with self._lock:
                return self._read(offset, nbytes)
        except BaseException as error:  # ^C while it takes the lock, too
            self.raised = error
            return None

    def _read(self, offset, nbytes):
        if self._at != offset:
            self._at = None
            self._f.seek(self._begin + offset)
        if hasattr(self._f, "readinto"):
            data = bytearray(nbytes)
            n = self._f.readinto(data)
            if not isinstance(n, int) or not 0 <= n <= nbytes:
                raise OSError(f"readinto() of {type(self._f)} returned {n!r} for {nbytes} bytes")
            data = memoryview(data)[:n]
        else:
            data = memoryview(_bytes_of(self._f.read(nbytes)))
            if data.nbytes > nbytes:
                raise OSError(f"read() of {type(self._f)} returned {data.nbytes} bytes for {nbytes}")
        self._at = offset + data.nbytes
        return data


def stream_of(f):
    """A Stream of a file object that source_of would read as a whole; else what source_of gives."""
    if is_path(f) or type(f) is io.BytesIO or not hasattr(f, "read"):
        return source_of(f)
    fd = descriptor_of(f, REAL_FILES)
    if fd is not None and f.seekable() and f.tell() == 0:
        return fd
    begin = f.tell()
    try:
        return Stream(f)
    except (AttributeError, OSError, TypeError, ValueError):  # it cannot tell its size
        f.seek(begin)
        return source_of(f)


def can_seek(f):
    return hasattr(f, "seek") and hasattr(f, "tell") and (
        not hasattr(f, "seekable") or f.seekable())


def _read(f):
    return _bytes_of(f.read())


def _bytes_of(data):
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"read() returned {type(data).__name__}: the file is not open in binary mode")
    return data


def _read_into(f):
    """The rest of a file, without a second copy of it."""
    try:
        here = f.tell()
        size = f.seek(0, os.SEEK_END) - here
        data = bytearray(size + 1)
        f.seek(here)
    except (AttributeError, OSError, TypeError, ValueError):  # it cannot tell its size
        return memoryview(_read(f))
    n, view = 0, memoryview(data)
    while n < size and (more := f.readinto(view[n:size])):
        if not isinstance(more, int) or not 0 < more <= size - n:
            raise OSError(f"readinto() of {type(f)} returned {more!r} for {size - n} bytes")
        n += more
    del view
    try:
        del data[n:]
    except BufferError:  # f has kept a part of it
        return memoryview(data)[:n]
    return data
