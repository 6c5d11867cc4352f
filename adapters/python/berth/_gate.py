# SPDX-License-Identifier: BSD-3-Clause
"""The one gate to PyTorch's unpickler (Y1).

It opens for what the program asks for, and for nothing in a file or in the environment:
- weights_only=False: the unpickler executes what the file asks for;
- the program's own list of allowed classes and functions has one of the file, and all others that Berth
  does not know (torch.serialization.add_safe_globals);
- the program is in a state that Berth's reader does not know: a mode of PyTorch, shared maps, another
  encoding. Then all that the file names must be known to Berth.
In the last two cases it is PyTorch's weights_only unpickler, and Berth has read the same pickle before:
what it refuses, for its form, its depth, the cost of its keys, is refused. The file is opened once for both, and
what Berth has read of it is kept for PyTorch: nobody can put other bytes in their place.
"""

import codecs
import contextlib
import io
import os
import pickle
import pickletools
import re
import stat
import struct

from berth import _native, _records, _sparse
from berth._errors import FORCED, NO_OFFSET, Error, UnsafeFileError, is_of_file, is_set, load_trusted, make, step_of
from berth._source import PinnedFile, Stream, is_path, name_of, source_of

INERT = "load.mmap=off load.unknown_globals=inert load.check=directory"
DAMAGE = ("BERTH_E_CHECKSUM", "BERTH_E_TRUNCATED", "BERTH_E_ARCHIVE", "BERTH_E_OFFSETS", "BERTH_E_SYSTEM",
          "BERTH_E_NOT_FOUND")
REFUSED = ("BERTH_E_FORBIDDEN", "BERTH_E_PICKLE")
MAGIC = 0x1950a86a20f9469cfc6c.to_bytes(10, "little")  # an object in the legacy format begins with it, pickled
# The library's words: a file in the legacy format with more behind it; one of before 2017; one of another protocol.
FOLLOW, TAR = "follow the last storage", "a tar file, as PyTorch wrote them"
PROTOCOL = "in the legacy format, saved with pickle_protocol="
BROKEN = (EOFError, struct.error, pickle.UnpicklingError, AssertionError)  # by the unpickler itself: see unpickle
OF_IDS = (ValueError, TypeError, LookupError, AttributeError)  # by what takes apart an id of a storage
LEGACY_N_PICKLES = 5
# In what PyTorch says, the part about this file; and a class that the pickle need not name.
OF_TORCH = re.compile(r"\A(?:.*?WeightsUnpickler error: )?(.*?)(?:\s*Check the documentation of torch\.load.*)?\Z",
                      re.DOTALL)
NOT_NAMED = re.compile(r"allowlisted via `add_safe_globals`,? but got <class '([A-Za-z_][\w.]*)'>\Z", re.ASCII)
# What PyTorch allows in each file, and Berth's reader does not; a file that names one has its own class.
WITH_CLASSES = frozenset("torch._utils." + name for name in (
    "_rebuild_wrapper_subclass", "_rebuild_device_tensor_from_numpy", "_rebuild_device_tensor_from_cpu_tensor"))


def is_weights_only(weights_only):
    """None means True. The environment can forbid to run code, but not allow it."""
    return weights_only is None or bool(weights_only) or is_set(FORCED)


def is_utf8(encoding):
    return str(encoding).lower() in ("utf-8", "utf8")


def _old_text(encoding):
    """The option by which Berth refuses no text of Python 2 that PyTorch reads by this encoding.

    PyTorch makes the values: it leaves texts as bytes, or refuses what is not ASCII. Of another encoding Berth
    knows too little.
    """
    if encoding == "bytes":
        return "load.old_text=latin1"
    with contextlib.suppress(LookupError, TypeError, ValueError):  # there is no such encoding
        if codecs.lookup(encoding).name in ("ascii", "iso8859-1"):
            return "load.old_text=latin1"
    return "load.old_text=utf8"


class Kept:
    """A file of which the source is made once, for all that look at it. Each look begins at the same place.

    f: a path, or an open file that can seek.
    encoding: of texts of Python 2, as of torch.load
    """

    def __init__(self, f, encoding="utf-8"):
        self.f, self._old_text = f, _old_text(encoding)
        self._at = None if is_path(f) else f.tell()
        self._source = self._read = None
        self.behind = None  # where a file object shall stand after the load; None: where it stood

    def open(self, options):
        """The file, by these options of load and its encoding."""
        return _native.open(self.source(), f"{options} {self._old_text}")

    def rewind(self):
        if self._at is not None:
            self.f.seek(self._at)

    def source(self):
        if self._source is None:
            self.rewind()
            self._source = source_of(self.f)
        return self._source

    def is_pinned(self):
        return isinstance(self.source(), _native.Pinned)

    def pin(self):
        """It is opened now, and all that look at it from now on read this one file, or object of a URL."""
        if not self.is_pinned():
            self._source = _native.pin(self._source)

    def keep(self):
        """What is read from now on is what later reads get."""
        self.pin()
        self._source.keep(True)

    def stop_keeping(self):
        """What was kept stays, and is what later reads get."""
        if self.is_pinned():
            self._source.keep(False)

    def opened(self):
        """A file for PyTorch; what the program gave, if that is not pinned."""
        if self.is_pinned():
            self._read = io.BufferedReader(PinnedFile(self._source))
            return self._read
        self.rewind()
        return self.f

    def place(self):
        """A path by which PyTorch can map it."""
        return f"/proc/self/fd/{self._source.fileno()}" if self.is_pinned() else os.fsdecode(self.f)

    @contextlib.contextmanager
    def file(self):
        with contextlib.ExitStack() as stack:
            opened = self.opened()
            yield stack.enter_context(open(opened, "rb")) if is_path(opened) else opened

    def cut(self, nbytes):
        """No more than these bytes are looked at."""
        self.rewind()
        is_memory = isinstance(self._source, memoryview)
        self._source = self._source[:nbytes] if is_memory else Stream(self.f, nbytes)

    def leave_behind(self, nbytes=None):
        """A file object shall stand behind what was read of it. None: by PyTorch"""
        if self._at is None:
            return
        if nbytes is None:
            nbytes = self._read.tell() if self._read else self.f.tell() - self._at
        self.behind = self._at + nbytes

    def name(self):
        return name_of(self.f)

    def reader(self):
        """It reads no storage, which would be kept in memory: check_data() compares them."""
        return contextlib.closing(_records.Reader(self.source(), name=self.name(), assignments="load.check=directory"))


def check_data(kept):
    """With load.check=data all bytes are compared with their checksums, as Berth's own reader does."""
    if _native.option_get("load.check") == "data":
        kept.stop_keeping()  # or all of it would be in memory
        found = _native.verify(kept.source())
        for name, offset, _, verdict, wrong in found["records"]:
            if verdict == "bad" or wrong:
                raise make("BERTH_E_SYSTEM" if found["errno"] else "BERTH_E_CHECKSUM",
                           f"{kept.name()}: {name}: {wrong}", found["errno"], offset, name)


def check_whole(kept):
    """Raises what is wrong with the archive and the bytes of data.pkl, whatever the pickle names."""
    check_data(kept)
    kept.keep()
    try:
        with kept.reader() as reader:
            if reader.has_record("data.pkl"):
                reader.get_record("data.pkl")
    except Error as error:
        if error.status in DAMAGE:
            raise


def _is_zip(kept):
    with kept.file() as file:
        return file.read(4) == b"PK\3\4"


def _named(kept):
    """All that its pickles name, as PyTorch writes it; raises anything if they are malformed."""
    find = _unpickler().get_globals_in_pkl
    if _is_zip(kept):
        with kept.reader() as reader:
            return find(io.BytesIO(reader.get_record("data.pkl")))
    with kept.file() as file:
        return set().union(*(find(file) for _ in range(LEGACY_N_PICKLES)))


def _unpickler():
    import torch

    return torch._weights_only_unpickler


def _is_allowed(kept):
    """Whether the program has allowed what Berth does not know in the file, and there is such a thing."""
    if _records.unknown():
        return False
    try:
        named = _named(kept)
        theirs, own = set(_unpickler()._get_allowed_globals()), set(_unpickler()._get_user_allowed_globals())
    except MemoryError:
        raise
    except Exception:  # the first refusal says what is wrong
        return False
    unknown = (named - theirs) | (named & WITH_CLASSES)
    return bool(unknown & own) and unknown <= own | WITH_CLASSES


def try_pickle(kept):
    """Reads the pickles as PyTorch will, but makes no tensor and runs nothing; raises why not."""
    file = kept.open(INERT)
    try:
        file.try_values()
    finally:
        file.close()


def for_refused(kept, refusal):
    """Opens the gate for a file that Berth has refused, or raises why not."""
    kept.pin()
    if refusal.status in REFUSED:
        check_whole(kept)
    if refusal.status != "BERTH_E_FORBIDDEN" or not _is_allowed(kept):
        kept.rewind()  # the caller can load it again, as the refusal says
        raise refusal
    try_pickle(kept)


def for_trusted(kept, pickle_module):
    """weights_only=False: what is no pickle, or not whole, is told as in all other loads, before anything is run.

    A path, a real file and memory are what PyTorch itself reads; of other objects and URLs it gets one that is pinned.
    A pipe is refused as in all other loads, and not waited for (F1).

    Returns: whether there is no pickle in the file, so that nothing of it can be run: a safetensors file.
    """
    if isinstance(kept.source(), (Stream, str)) or is_path(kept.f) and _is_pipe(kept.f):
        kept.pin()
    try:
        is_zip = _is_zip(kept)
    except OSError:
        kept.open(INERT).close()  # it says why not
        raise
    if is_zip:
        check_data(kept)  # data.pkl is compared with its checksum when it is read
        return False
    try:
        with contextlib.closing(kept.open(INERT)) as file:
            return file.info()["container"] == "safetensors"
    except Error as error:
        if not _may_be_read_by_torch(kept, error, pickle_module):
            raise
    return False


def _is_pipe(path):
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:  # the open says what is wrong
        return False


def _may_be_read_by_torch(kept, error, pickle_module):
    """Whether PyTorch can make a value of a file, which is no zip, although Berth's reader refuses it so."""
    if error.status == "BERTH_E_NOT_CHECKPOINT":  # a module of the program's may read what it has written
        return TAR in str(error) or PROTOCOL in str(error) or pickle_module not in (None, pickle)
    if error.status == "BERTH_E_ARCHIVE" and FOLLOW in str(error):
        return not is_path(kept.f)
    if error.status == "BERTH_E_TENSOR":  # of a pickle PyTorch decides; of a safetensors file nobody needs to
        with kept.file() as file:
            return MAGIC in file.read(32)
    return error.status in ("BERTH_E_FORBIDDEN", "BERTH_E_PICKLE", "BERTH_E_UNSUPPORTED")


def refused_by_torch(kept, error):
    """Berth has read the pickle, or the names are allowed: this is why it is refused all the same."""
    where = f"{kept.name()}: data.pkl: PyTorch's weights_only unpickler: "
    if not isinstance(error, pickle.UnpicklingError):
        return make("BERTH_E_PICKLE", f"{where}{error!r}", 0, NO_OFFSET, "data.pkl")
    words = " ".join(OF_TORCH.search(str(error))[1].split()).rstrip(".")
    wanted = NOT_NAMED.search(words)
    if wanted:
        words += step_of([tuple(wanted[1].rpartition(".")[::2])])
    return make("BERTH_E_FORBIDDEN", where + words + load_trusted(), 0, NO_OFFSET, "data.pkl")


# ---- what the unpickler of weights_only=False says of a broken pickle ----


def _raised_in(error):
    """The function of PyTorch's reader, or of pickle, that raised it, itself or in C; "": one of another module.

    So a class of the file, and a file object of the program, are told from the unpickler.
    """
    at = error.__traceback__
    while at.tb_next:
        at = at.tb_next
    frame = at.tb_frame
    return frame.f_code.co_name if frame.f_globals.get("__name__") in ("torch.serialization", "pickle") else ""


def _end_of_opcodes(kept):
    """(record, the byte behind the last opcode that can be read, whether all can be)."""
    n_pickles, base, record = LEGACY_N_PICKLES, 0, ""
    with contextlib.ExitStack() as stack:
        if _is_zip(kept):
            n_pickles, record = 1, "data.pkl"
            reader = stack.enter_context(kept.reader())
            file, base = io.BytesIO(reader.get_record(record)), reader.get_record_offset(record)
        else:
            file = stack.enter_context(kept.file())
        at = file.tell()
        try:
            for _ in range(n_pickles):
                for _ in pickletools.genops(file):
                    at = file.tell()
        except ValueError:  # UnicodeDecodeError is one
            return record, base + at, False
        return record, base + at, True


def _malformed(kept, error):
    """The error that names record and byte; None: the pickle is good, or the file's own code raised it."""
    where = _raised_in(error)
    if not where or isinstance(error, OSError):
        return None
    record, at, is_whole = _end_of_opcodes(kept)
    is_key = isinstance(error, TypeError) and str(error).startswith("unhashable type: ")
    if is_whole and not is_key and not isinstance(error, BROKEN + OF_IDS * (where == "persistent_load")):
        return None
    if is_whole:  # the order of the opcodes is wrong: Berth's reader names the one, if it knows them all
        try:
            try_pickle(kept)
        except Error as ours:
            at = at if ours.offset is None else ours.offset
    return make("BERTH_E_PICKLE", f"{kept.name()}: {record or 'the pickles'}, byte {at}: the pickle is malformed: "
                f"{error!r}", 0, at, record)


def unpickle(kept, map_location, pickle_module, weights_only, mmap, arguments):
    """PyTorch's unpickler, behind the gate."""
    by_caller = []
    kept.stop_keeping()
    kept.rewind()
    try:
        with _sparse.checked(checks=weights_only):
            safe = _sparse.unpickler() if weights_only else None
            value = _records.load(kept, map_location, pickle_module, safe, mmap, arguments, by_caller)
    except (Error, MemoryError):
        raise
    except Exception as error:
        if any(error is each for each in by_caller) or is_of_file(error):
            raise
        if weights_only:
            raise refused_by_torch(kept, error) from error
        broken = _malformed(kept, error)
        if broken:
            raise broken from error
        raise
    kept.leave_behind()
    return value
