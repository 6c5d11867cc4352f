# SPDX-License-Identifier: BSD-3-Clause
"""Values of any kind: PyTorch's own code pickles and unpickles them, over archives of Berth.

PyTorch's functions run as they are, but for one name: where they open an archive they meet a Writer
or a Reader. So their semantics and messages stay.
"""

import contextlib
import functools
import io
import os
import sys
import types
import zlib
from mmap import MAP_SHARED

from berth import _device, _native
from berth._counters import count, count_reason
from berth._errors import NO_OFFSET, make
from berth._source import is_path, path_bytes

# The parameters of the functions of PyTorch that this module calls.
PARAMETERS = {
    "save": ("obj", "f", "pickle_module", "pickle_protocol", "_use_new_zipfile_serialization",
             "_disable_byteorder_record"),
    "load": ("f", "map_location", "pickle_module", "weights_only", "mmap"),
}
OPENERS = {"save": "_open_zipfile_writer", "load": "_open_zipfile_reader"}
ADDED = (".format_version", ".storage_alignment", "byteorder")  # by the library itself
LEGACY, NOT_A_ZIP, TORCHSCRIPT = "legacy format", "not a zip archive", "TorchScript archive"


class Writer:
    """Stands for torch._C.PyTorchFileWriter: keeps what is written until all of it is there (Y2)."""

    def __init__(self):
        self.records = []  # (name, bytes or address, nbytes, owner of the address)
        self.leaves_bytes = False  # PyTorch leaves the bytes of storages to this: see _save_of
        self.storages = {}  # name of the record -> storage
        self._events = {}

    def write_record(self, name, data, nbytes):
        """data: a str, bytes, or a storage, which must keep its bytes until the save has ended."""
        owner = data
        if name in ADDED:
            return
        if isinstance(data, str):
            data = data.encode()
        elif not isinstance(data, bytes):
            data = data.data_ptr()
        self.records.append((name, data, nbytes, owner))

    def write_record_metadata(self, name, nbytes):
        """A record whose bytes are left out, by torch.serialization.skip_data or by _save_of."""
        if not self.leaves_bytes:
            self.records.append((name, None, nbytes, None))
            return
        storage = self.storages.get(name)
        if storage is None or storage.nbytes() != nbytes:
            raise NotMet
        self._write_storage(name, storage, nbytes)

    def _write_storage(self, name, storage, nbytes):
        device = storage.device
        if device.type != "cpu" and nbytes and device not in self._events:
            self._events[device] = _device.ready(device, storage)
        if not self._events.get(device):
            self.write_record(name, storage if device.type == "cpu" else storage.cpu(), nbytes)
            return
        location, ready, owner = self._events[device]
        self.records.append((name, (storage.data_ptr(), location, ready), nbytes, (storage, owner)))


class NotMet(Exception):
    """PyTorch writes a storage that it has not shown to _save_of."""


class Slice:
    """A storage in the form in which PyTorch takes it from its reader."""

    def __init__(self, storage):
        self._untyped_storage = storage

    def _typed_storage(self):
        return self


class Reader:
    """Stands for torch._C.PyTorchFileReader.

    mapped: the whole file as a storage, of which storages are slices; None: they are read
    name: of the file, for messages
    assignments: options of the open
    """

    def __init__(self, source, mapped=None, name="memory", assignments=""):
        self._name = name
        self._archive = _native.open_archive(source, assignments)
        self._records = self._archive.records()
        self._mapped = mapped
        self.has_unpickled = False

    def close(self):
        self._archive = self._mapped = None

    def has_record(self, name):
        return name in self._records

    def get_all_records(self):
        return list(self._records)

    def get_record(self, name):
        """Compared with its checksum, as all that an open reads."""
        data = self._archive.read(name)
        _, _, offset, _, crc32 = self._record(name)
        if crc32 and zlib.crc32(data) != crc32:
            raise make("BERTH_E_CHECKSUM", f"{self._name}: {name} at byte {offset}: its bytes have CRC "
                       f"0x{zlib.crc32(data):08x}, the directory says 0x{crc32:08x}", 0, offset, name)
        self.has_unpickled |= name == "data.pkl"
        return data

    def get_storage_from_record(self, name, nbytes, _kind):
        found, _, offset, method, _ = self._record(name)  # Y3
        if found < nbytes or (found > nbytes and self._mapped is None):
            raise make("BERTH_E_TENSOR", f"{self._name}: {name} has {found} bytes, its storage has {nbytes}", 0,
                       offset, name)
        if self._mapped is None or method:  # what is compressed is inflated
            return self._archive.storage(name)
        return Slice(self._mapped[offset:offset + nbytes])

    def get_record_offset(self, name):
        return self._record(name)[2]

    def get_record_header_offset(self, name):
        return self._record(name)[1]

    def get_record_offset_no_read(self, _header_offset, name, _nbytes, _alignment):
        """Opening has compared the calculated offset with the directory."""
        return self.get_record_offset(name)

    def serialization_id(self):
        name = ".data/serialization_id"
        return self.get_record(name).decode(errors="replace") if self.has_record(name) else ""

    def _record(self, name):
        if name not in self._records:
            raise make("BERTH_E_NOT_FOUND", f"{self._name}: {name}: the archive has no such record", 0, NO_OFFSET,
                       name)
        return self._records[name]


# ---- PyTorch's functions ----


@functools.cache
def originals():
    """PyTorch's own save and load, as they were at the first call."""
    import torch

    return {name: getattr(torch.serialization, name) for name in OPENERS}


def with_opener(name, opener, **names):
    """PyTorch's save or load, which opens archives by `opener`."""
    return with_names(originals()[name], {OPENERS[name]: opener, **names})


def with_names(function, names):
    """A function in which these global names mean something else."""
    names = {**function.__globals__, **names}
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__,
                              function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _names_in(code):
    """All names that a function and those inside it use."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names_in(constant)
    return found


@functools.cache
def unknown():
    """Why this PyTorch is not one that this module knows (Y4); "": it is."""
    import torch

    version = f"PyTorch {torch.__version__}"
    for name, parameters in PARAMETERS.items():
        code = getattr(originals()[name], "__code__", None)
        n = code.co_argcount + code.co_kwonlyargcount if code else 0
        if not code or code.co_varnames[:n] != parameters or OPENERS[name] not in code.co_names:
            return f"{version} has a torch.{name} that this version of Berth does not know"
    for name, ours, theirs in (("_save", Writer, torch._C.PyTorchFileWriter),
                               ("_load", Reader, torch._C.PyTorchFileReader)):
        used = _names_in(getattr(torch.serialization, name).__code__) & set(dir(theirs))
        missing = sorted(used - set(dir(ours)))
        if missing:
            return f"{version} uses {theirs.__name__}.{missing[0]}, which this version of Berth " \
                "does not know"
    return ""


def check_known():
    if unknown():
        raise RuntimeError(unknown())


# ---- saving and loading ----


def pickled(obj, pickle_module, pickle_protocol, disable_byteorder):
    """The records that torch.save would write, but those that the library adds."""
    check_known()

    def run(save_of=None):
        writer = Writer()
        names = {"_save": save_of(writer)} if save_of else {}
        with_opener("save", lambda _: contextlib.nullcontext(writer), **names)(
            obj, io.BytesIO(), pickle_module, pickle_protocol, _disable_byteorder_record=disable_byteorder)
        try:
            return writer.records
        finally:
            vars(writer).clear()  # PyTorch's pickler, a class, keeps it until the cyclic collector runs

    with contextlib.suppress(NotMet):
        if _can_meet():
            return run(_save_of)
    return run()


def _can_meet():
    """Whether PyTorch's _save can leave storages to the writer: it would keep a copy of each device's."""
    import torch

    serialization = torch.serialization
    return ({"location_tag", "_serialization_tls", "write_record_metadata"}
            <= _names_in(serialization._save.__code__) and not serialization._serialization_tls.skip_data)


def _save_of(writer):
    """PyTorch's _save, which shows its storages to the writer and leaves their bytes to it."""
    import torch

    writer.leaves_bytes = True

    def location_tag(storage):
        key = sys._getframe(1).f_locals.get("storage_key")  # of PyTorch's persistent_id
        writer.storages[f"data/{key}"] = storage
        return torch.serialization.location_tag(storage)

    return with_names(torch.serialization._save, {
        "location_tag": location_tag, "_serialization_tls": types.SimpleNamespace(skip_data=True)})


def restoring(map_location, by_caller, name):
    """PyTorch's function that moves storages, which appends to by_caller what the caller is to blame for.

    That is what a function, map_location, raises or gives; and a place that the caller has chosen. Not a location of
    the file's: one that a dict does not have, or for which the function returns None. That one this PyTorch may not
    know, or this machine not have: no damage, so it is told as what it is.

    name: of the file, for messages
    """
    import torch

    restore_of = torch.serialization._get_restore_location
    if callable(map_location):
        return _placed(restore_of(_noted(map_location, by_caller)), by_caller, name)
    restore = restore_of(map_location)
    noted = _noted(restore, by_caller)
    if map_location is not None and not isinstance(map_location, dict):
        return noted
    chosen, placed = map_location or {}, _placed(restore, by_caller, name)
    return lambda storage, location: (noted if location in chosen else placed)(storage, location)


def _placed(restore, by_caller, name):
    def call(storage, location):
        try:
            return restore(storage, location)
        except RuntimeError as error:  # not a subclass: CUDA's errors stay what they are
            if type(error) is not RuntimeError or any(error is each for each in by_caller):
                raise
            raise make("BERTH_E_UNSUPPORTED", f"{name}: a storage was saved from {location!r}, where this PyTorch "
                       f"cannot put it ({error}); berth.load(f, map_location=\"cpu\") loads it into memory", 0,
                       NO_OFFSET, "") from error

    return call


def _noted(function, by_caller):
    import torch

    def call(storage, location):
        try:
            moved = function(storage, location)
            if moved is not None and not isinstance(moved, torch.UntypedStorage):
                raise TypeError("map_location's function must return a torch.UntypedStorage or None, not "
                                f"{type(moved)}")
            return moved
        except Exception as error:
            by_caller.append(error)
            raise

    return call


def load(kept, map_location, pickle_module, safe, mmap, arguments, by_caller):
    """torch.load, but archives are read by Berth. Only _gate.py calls this.

    kept: a _gate.Kept.
    safe: what stands for torch._weights_only_unpickler; None: weights_only=False
    by_caller: a list that gets the exceptions of the caller's map_location
    """
    import torch

    check_known()
    mapped = _map(kept) if mmap else None
    reader = None

    @contextlib.contextmanager
    def open_reader(_file):
        nonlocal reader
        reader = Reader(kept.source(), mapped, kept.name())
        try:
            yield reader
        finally:
            reader.close()

    file = kept.opened()
    if is_path(file):
        file = os.fsdecode(path_bytes(file))
    name = kept.name()  # the functions below keep what they use until the cyclic collector runs
    names = {"_get_restore_location": lambda location: restoring(location, by_caller, name)}
    if safe:
        names["_weights_only_unpickler"] = safe
    read = {name: with_names(getattr(torch.serialization, name), names) for name in ("_load", "_legacy_load")}
    value = with_opener("load", open_reader, **names, **read)(
        file, map_location, pickle_module, weights_only=bool(safe), mmap=False, **arguments)
    if reader and reader.has_unpickled:
        count("load", "records")
    else:
        count("load", "torch")
        count_reason(TORCHSCRIPT if reader else NOT_A_ZIP)
    return value


def _map(kept):
    """A whole archive as a storage."""
    import torch

    with kept.file() as file:
        if not torch.serialization._is_zipfile(file):
            raise make("BERTH_E_UNSUPPORTED", f"{kept.name()}: is no zip archive, and PyTorch's unpickler, which must "
                       "read it, maps nothing else: load it without mmap", 0, NO_OFFSET, "")
    is_shared = torch.serialization.get_default_mmap_options() == MAP_SHARED
    return torch.UntypedStorage.from_file(kept.place(), is_shared, os.path.getsize(kept.place()))
