# SPDX-License-Identifier: BSD-3-Clause
"""Where a load comes from, as the native module takes it: bytes of a path, a descriptor, a buffer, a URL."""

import contextlib
import errno
import io
import os
import re
import stat
import tempfile
import threading

from berth import _native
from berth._errors import NO_OFFSET, at_end, make

URL_BEGIN = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]+:(?=/)")
MOST_SHOWN = 100  # characters of what cannot be a path
IN_MEMORY = "give io.BytesIO(f)"
MOST_FAILURES = 100  # that are kept: of each read the last one
REAL_FILES = (io.FileIO, io.BufferedReader, io.BufferedRandom)


class Url(str):
    """A text that the caller of berth.load, berth.open, berth.verify or berth.save gave as a URL.

    Its repr shows what messages show of it: no password, no query (U1).
    """

    def __repr__(self):
        return f"Url({_native.url_shown(self)!r})"


def from_caller(f):
    """URLs are marked here, and nowhere else: torch.load must not reach the network under install() (U5)."""
    return Url(f) if type(f) is str and f.lower().startswith(("https://", "http://", "s3://")) else f


def is_url(f):
    """Of what a caller gave, or of what from_caller made of it."""
    return isinstance(from_caller(f), Url)


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
        step = f". If these bytes are a checkpoint in memory: {IN_MEMORY}" if isinstance(path, bytes) else ""
        shown = repr(path[:MOST_SHOWN]) + "..." * (len(path) > MOST_SHOWN)
        raise make("BERTH_E_ARGUMENT", f"{shown}: a path has no NUL character, so no file has this one{step}", 0,
                   NO_OFFSET, "")
    scheme = URL_BEGIN.match(found)
    if scheme and not os.path.lexists(scheme[0]):  # U1: what follows is not shown; it may have a password
        raise make("BERTH_E_NOT_FOUND", f"{scheme[0].decode()}//...: there is no such file. Of URLs, those with "
                   "https://, http:// and s3:// are read, by berth.load, berth.open, berth.verify and berth.dcp.load, given "
                   "as a str; those with s3:// are written, by berth.save, berth.save_async and berth.dcp.save", errno.ENOENT, NO_OFFSET, "")
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
    """A file object is read when its bytes are asked for; one that cannot seek is read as a whole."""
    if isinstance(f, Url):
        return str(f)
    if is_path(f):
        return path_bytes(f)
    if not hasattr(f, "read"):
        step = f": {IN_MEMORY}" if isinstance(f, (bytearray, memoryview)) else ""
        raise AttributeError(f"expected 'f' to be a path, or a binary file with the method 'read', not {type(f)}{step}")
    if type(f) is io.BytesIO:
        return _not_at_end(f, f.getbuffer()[f.tell():])
    if not can_seek(f):
        return memoryview(_bytes_of(f.read()))
    begin, fd = f.tell(), descriptor_of(f, REAL_FILES)
    if fd is not None and begin == 0:
        return fd
    try:
        return _not_at_end(f, Stream(f), begin)
    except (AttributeError, OSError, TypeError, ValueError):  # it cannot tell its size
        f.seek(begin)
        return memoryview(_bytes_of(f.read()))


def _not_at_end(f, source, begin=None):
    """The source of what is behind the position of f, if there is anything. A file without any byte is empty."""
    at = f.tell() if begin is None else begin
    if source.nbytes == 0 and at > 0:
        raise at_end(name_of(f), at)
    return source


class Stream:
    """A file object that is read when the library asks, from where it stands on. Others may move it between two reads."""

    def __init__(self, f, nbytes=None):
        self._f = f
        self._begin = f.tell()
        self.nbytes = max(f.seek(0, os.SEEK_END) - self._begin, 0)
        if nbytes is not None:
            self.nbytes = min(nbytes, self.nbytes)
        self._pid = os.getpid()
        self._lock, self._is_reading = threading.RLock(), False
        self._failures = {}  # offset of a read -> exception

    def __call__(self, offset, nbytes):
        """Some bytes from the offset on, at most so many; none: there are none. What the file raises is raised."""
        if os.getpid() != self._pid:  # X11: both would move one position
            raise make("BERTH_E_UNSUPPORTED", f"{name_of(self._f)} was opened by another process, which reads it, too: "
                       "open a path in each process", 0, NO_OFFSET, "")
        with self._lock:
            if self._is_reading:  # by a handler of signals, or a finalizer
                raise RuntimeError(f"{name_of(self._f)} is read while it is read on the same thread")
            self._is_reading = True
            self._failures.pop(offset, None)  # of an earlier read
            try:
                return self._read(offset, nbytes)
            finally:
                self._is_reading = False

    def put_failure(self, offset, error):
        """A read from this offset on has raised it, on a thread that cannot raise it in the call which waits."""
        self._failures.pop(offset, None)
        self._failures[offset] = error
        if len(self._failures) > MOST_FAILURES:
            del self._failures[next(iter(self._failures))]

    def failure(self, offset):
        return self._failures.get(offset)

    def _read(self, offset, nbytes):
        self._f.seek(self._begin + offset)
        if hasattr(self._f, "readinto"):
            data = bytearray(nbytes)
            n = self._f.readinto(data)
            if not isinstance(n, int) or not 0 <= n <= nbytes:
                raise OSError(f"readinto() of {type(self._f)} returned {n!r} for {nbytes} bytes")
            return memoryview(data)[:n]
        data = memoryview(_bytes_of(self._f.read(nbytes)))
        if data.nbytes > nbytes:
            raise OSError(f"read() of {type(self._f)} returned {data.nbytes} bytes for {nbytes}")
        return data


@contextlib.contextmanager
def put_back(f):
    """A file object that can seek stands where it stood before, also after an error, which is not hidden."""
    at = None if is_path(f) or not can_seek(f) else f.tell()
    try:
        yield
    except BaseException:
        if at is not None:
            with contextlib.suppress(Exception):
                f.seek(at)
        raise
    if at is not None:
        f.seek(at)


class PinnedFile(io.RawIOBase):
    """A _native.Pinned as a file."""

    PIECE = 1 << 20

    def __init__(self, pinned):
        self._pinned, self._at = pinned, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=os.SEEK_SET):
        self._at = offset + (0, self._at, self._pinned.nbytes())[whence]
        return self._at

    def readinto(self, memory):
        nbytes = min(len(memory), self.PIECE, self._pinned.nbytes() - self._at)
        if nbytes <= 0:
            return 0
        memory[:nbytes] = self._pinned.read(self._at, nbytes)
        self._at += nbytes
        return nbytes


def can_seek(f):
    """Whether it can be read in pieces: not a file that does not report its size, as files of /proc do not."""
    return hasattr(f, "seek") and hasattr(f, "tell") and (
        not hasattr(f, "seekable") or f.seekable()) and not _has_no_size(f)


def _has_no_size(f):
    fd = descriptor_of(f, REAL_FILES)
    if fd is None or not f.readable():
        return False
    status = os.fstat(fd)
    if status.st_size > 0 or not stat.S_ISREG(status.st_mode):
        return False
    at = f.tell()
    byte = f.read(1)
    f.seek(at)
    return bool(byte)


def _bytes_of(data):
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"read() returned {type(data).__name__}: the file is not open in binary mode")
    return data
