# SPDX-License-Identifier: BSD-3-Clause
"""berth.load: bytes are read in parallel without the GIL, then values are made in C, or by PyTorch."""

import functools
import io
import os
import pickle

from berth import _conditions, _device, _native, _records, _set, _sparse
from berth._counters import count
from berth._errors import NO_OFFSET, Error, UnsafeFileError, make
from berth._source import Url, can_seek, from_caller, is_path, source_of

# Tensors may be written to, so a map is private. Unknown classes are refused, whatever is set.
MAPPED = "load.mmap=on load.mmap_flags=private load.method=map load.unknown_globals=refuse"
READ = "load.mmap=off load.unknown_globals=refuse"


def load(f, map_location=None, pickle_module=None, *, weights_only=True, mmap=None,
         **pickle_load_args):
    """Loads what torch.load(f, map_location, weights_only=True, mmap=mmap) does.

    Nothing in the file is executed, unless weights_only is False. The objects have the types, the
    identity, the sharing, the strides and the flags that torch.load gives them. Files of torch.save
    of any version are read, and .safetensors.

    f: a path (str, bytes, os.PathLike), or an open binary file, which is read from its position on. A
        str that begins with https://, http:// or s3:// is a URL. A path can be that of several files: an
        index (model.safetensors.index.json), of which the tensors that it names are loaded; a directory of
        torch.distributed.checkpoint, of which nothing is run, and whose tensors are mapped from a copy in
        memory; or a folder with one of them, or with one model file.
    map_location: as of torch.load: None, a device or its name, a dict of names, or a function
        (storage, location) -> storage or None.
    weights_only: True: plain values are made in C. If the file has classes or functions that are
        allowed by torch.serialization.add_safe_globals, PyTorch's own weights_only unpickler makes
        all values. False: PyTorch's unpickler executes what the file asks for. Do this only if you
        trust the file. Berth never does it by itself.
    mmap: True: the tensors' bytes are the file's pages, read when they are touched; what is written
        to them stays in this process. The file must be a path, and must not be truncated while a
        tensor lives. False, None: all bytes are read now, into memory of each storage's own.
    pickle_module, pickle_load_args: as of torch.load; only with weights_only=False.

    Returns: the value that was saved.
    Raises:
        berth.UnsafeFileError: the pickle is malformed, or names code that is not allowed; a
            pickle.UnpicklingError.
        berth.MissingFileError, berth.FileError: there is no such file, or it cannot be read.
        berth.Error: the file is broken, or no checkpoint. The message says where and why.
        KeyboardInterrupt: nothing is kept.
    Threads: any; other threads run while bytes are read.
    """
    f = _set.found(from_caller(f))
    if isinstance(f, (_set.Index, _set.Dcp)):
        return f.load(functools.partial(load, map_location=map_location, pickle_module=pickle_module,
                                        **{"weights_only": weights_only, "mmap": mmap, **pickle_load_args}))
    if mmap and isinstance(f, Url):
        raise ValueError("a URL cannot be mapped; berth.open(url) reads tensors when they are asked for")
    if mmap and not is_path(f):
        raise ValueError("f must be a file path in order to use the mmap argument")
    if not is_path(f) and not can_seek(f):
        f = io.BytesIO(_read_all(f))
    at = None if is_path(f) else f.tell()
    refusal = None
    if weights_only and pickle_module is None and not pickle_load_args and not _conditions.reason():
        try:
            return load_plain(f, map_location, mmap)
        except UnsafeFileError as error:
            refusal = error
        if at is not None:
            f.seek(at)
        if refusal.status != "BERTH_E_FORBIDDEN" or not _is_allowed(f):
            raise refusal
        if at is not None:
            f.seek(at)
    by_caller = []
    try:
        return _records.load(_records.path_of(f), map_location, pickle_module, weights_only,
                             bool(mmap), pickle_load_args, by_caller if refusal else None)
    except (Error, MemoryError):
        raise
    except Exception as error:
        if refusal and not any(error is each for each in by_caller):
            raise _refused_by_torch(f, refusal, error) from error
        raise


def _refused_by_torch(f, refusal, error):
    """Our refusal named what the program allows: this is why the file is refused all the same."""
    name = os.fsdecode(f) if is_path(f) else f"the object of {type(f)}"
    return make(refusal.status, f"{name}: {refusal.record}: PyTorch's weights_only unpickler: {error!r}",
                0, NO_OFFSET, refusal.record)


def load_plain(f, map_location, mmap):
    """A file of plain values, in C."""
    file = _native.open(source_of(f), MAPPED if mmap else READ)
    try:
        value = _value_of(file, map_location, bool(mmap))
    finally:
        file.close()
    count("load", "values")
    return value


def _read_all(f):
    return bytes(source_of(f))


def _is_allowed(f):
    """Whether PyTorch allows all that the file names: then the program has allowed more than Berth (Y1)."""
    try:
        return not _records.unknown() and not _records.unsafe_globals(f)
    except (RuntimeError, pickle.UnpicklingError):
        return False


def _value_of(file, map_location, mmap):
    """The value of an open file."""
    # Storages of files from before PyTorch 1.6 can be views of each other's memory.
    in_place = mmap or file.is_legacy()
    restore, cpu_stays = restore_of(map_location)
    # A function wants to see the bytes; all else depends on the location alone.
    places = functools.partial(_device.places, restore) if restore and not callable(map_location) else None
    with _sparse.checked():
        return file.value(None, in_place, mmap, str(map_location) == "meta", restore, cpu_stays, places)


def restore_of(map_location):
    """The function that moves storages, or None; and whether those of the host stay as they are."""
    import torch

    if map_location in ("cpu", "meta", torch.device("cpu"), torch.device("meta")):
        return None, True
    restore = torch.serialization._get_restore_location(map_location)
    if map_location is None:
        return restore, True
    return restore, isinstance(map_location, dict) and map_location.get("cpu", "cpu") == "cpu"
