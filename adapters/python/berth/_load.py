# SPDX-License-Identifier: BSD-3-Clause
"""berth.load: bytes are read in parallel without the GIL, then values are made in C, or by PyTorch."""

import contextlib
import functools
import io

from berth import _conditions, _device, _gate, _native, _records, _set, _sparse
from berth._counters import count
from berth._errors import Error, FileError, UnsafeFileError, of_file
from berth._source import Url, can_seek, from_caller, is_path, put_back, source_of

# Tensors may be written to, so a map is private. Unknown classes are refused, whatever is set.
MAPPED = "load.mmap=on load.mmap_flags=private load.method=map load.unknown_globals=refuse"
READ = "load.mmap=off load.unknown_globals=refuse"


def load(f, map_location=None, pickle_module=None, *, weights_only=True, mmap=None,
         **pickle_load_args):
    """Loads what torch.load(f, map_location, weights_only=True, mmap=mmap) does.

    Nothing in the file is executed, unless weights_only is False. The objects have the types, the
    identity, the sharing, the strides and the flags that torch.load gives them. Files of torch.save
    of any version are read, and .safetensors.

    f: a path (str, bytes, os.PathLike), or an open binary file, which is read from its position on. Then it stands
        behind a value in the format before PyTorch 1.6, as with torch.load, so that the next one can be loaded; of
        all other files, and after an error, where it stood. One that cannot seek is read to its end.
        A str that begins with https://, http:// or s3:// is a URL. A path or URL can be that of several files: an
        index (model.safetensors.index.json), of which the tensors that it names are loaded. A path can also be a
        directory of torch.distributed.checkpoint, of which nothing is run, and whose tensors are mapped from a
        copy in memory; or a folder with one of them, or with one model file.
    map_location: as of torch.load: None, a device or its name, a dict of names, or a function
        (storage, location) -> storage or None.
    weights_only: True, None: plain values are made in C. If the file has classes or functions that are
        allowed by torch.serialization.add_safe_globals, PyTorch's own weights_only unpickler makes
        all values, after Berth has read the same pickle with its limits. False: PyTorch's unpickler
        executes what the file asks for. Do this only if you trust the file. Berth never does it by
        itself, and no variable of the environment makes it do so; TORCH_FORCE_WEIGHTS_ONLY_LOAD=1
        forbids it.
    mmap: True: the tensors' bytes are the file's pages, read when they are touched; what is written
        to them stays in this process. The file must be a path, and must not be truncated while a
        tensor lives. False, None: all bytes are read now, into memory of each storage's own.
    pickle_module: as of torch.load; only with weights_only=False.
    pickle_load_args: as of torch.load. With weights_only=True, an `encoding` other than utf-8 makes
        PyTorch's weights_only unpickler make all values, after Berth has read the pickle: latin1, ascii or
        bytes, of texts of Python 2. With any other encoding Berth refuses such texts that are not UTF-8.

    Returns: the value that was saved.
    Raises:
        berth.UnsafeFileError: the pickle is malformed, or names code that is not allowed; a
            pickle.UnpicklingError.
        berth.DamagedFileError: the file is cut, changed or malformed, its pickle included. The message says
            where.
        berth.MissingFileError, berth.FileError: there is no such file, or it cannot be read.
        berth.Error: any other reason; the file is no checkpoint. The message says where and why.
        KeyboardInterrupt: nothing is kept.
    Threads: any; other threads run while bytes are read.
    """
    f = _set.found(from_caller(f))
    load_one = functools.partial(load_file, map_location=map_location, pickle_module=pickle_module,
                                 weights_only=weights_only, mmap=mmap, **pickle_load_args)
    if not isinstance(f, (_set.Index, _set.Dcp)):
        return load_one(f)
    return f.load(load_one, functools.partial(_opened_ahead, pickle_load_args.get("encoding", "utf-8")))


def _opened_ahead(encoding, f):
    """A path; or a URL whose head was read, on another thread. What is wrong with its bytes the load says."""
    if not isinstance(f, Url):
        return f
    kept = _gate.Kept(f, encoding)
    kept.keep()
    try:
        kept.open(READ).close()
    except FileError:  # nor can a load read it
        raise
    except Error:
        pass
    kept.stop_keeping()
    return kept


def load_file(f, map_location, pickle_module, weights_only, mmap, **pickle_load_args):
    """What load does with one file, or a Kept of a URL."""
    if mmap and isinstance(f, (Url, _gate.Kept)):
        raise ValueError("a URL cannot be mapped; berth.open(url) reads tensors when they are asked for")
    is_object = not is_path(f) and not isinstance(f, _gate.Kept)
    if mmap and is_object:
        raise ValueError("f must be a file path in order to use the mmap argument")
    if is_object and not can_seek(f):
        f = io.BytesIO(source_of(f))
    return load_any(f, map_location, pickle_module, _gate.is_weights_only(weights_only), bool(mmap),
                    pickle_load_args)


def load_any(f, map_location, pickle_module, weights_only, mmap, arguments, wants_torch=""):
    """What berth.load and, under install(), torch.load do.

    f: a path, a file that can seek, or a Kept. weights_only: True or False.
    wants_torch: what the program asks for, and only PyTorch's unpickler does; "": nothing
    """
    encoding = arguments.get("encoding", "utf-8")
    kept = f if isinstance(f, _gate.Kept) else _gate.Kept(f, encoding)
    with put_back(kept.f):
        value = _load_kept(kept, map_location, pickle_module, weights_only, mmap, arguments, wants_torch)
    if kept.behind is not None:
        kept.f.seek(kept.behind)
    return value


def _load_kept(kept, map_location, pickle_module, weights_only, mmap, arguments, wants_torch):
    if not weights_only:
        if _gate.for_trusted(kept, pickle_module):
            return _value_of_source(kept, map_location, mmap)
        return _gate.unpickle(kept, map_location, pickle_module, False, mmap, arguments)
    if pickle_module is not None:
        raise RuntimeError("Can not safely load weights when explicit pickle_module is specified: it needs "
                           "weights_only=False")
    unknown = set(arguments) - {"encoding"}
    if unknown:
        raise TypeError(f"load() got an unexpected keyword argument {min(unknown)!r}: without weights_only=False, "
                        "`encoding` alone goes to the unpickler")
    if not _gate.is_utf8(arguments.get("encoding", "utf-8")):
        wants_torch = "pickle_load_args"
    return _of_first_object(kept, lambda: _load_safely(kept, map_location, mmap, arguments, wants_torch))


def _load_safely(kept, map_location, mmap, arguments, wants_torch):
    refusal = None
    try:
        if not (wants_torch or _conditions.reason()):
            return _value_of_source(kept, map_location, mmap)
        kept.keep()
        with contextlib.closing(kept.open(READ)) as file:
            has_pickle = file.info()["container"] != "safetensors"
        if not has_pickle:
            return _value_of_source(kept, map_location, mmap)
        _gate.try_pickle(kept)
    except UnsafeFileError as error:
        refusal = error.with_traceback(None)  # which holds the source
    if refusal is not None:  # not above: what a file object raises now would get the refusal as its context
        _gate.for_refused(kept, refusal)
    return _gate.unpickle(kept, map_location, None, True, mmap, arguments)


def _of_first_object(kept, load_it):
    """What load_it gives; of a file object with more behind a value in the legacy format, for that value alone."""
    try:
        return load_it()
    except Error as error:  # the rest of a file object is the caller's
        if _gate.FOLLOW not in str(error) or is_path(kept.f):
            raise
        end = error.offset
    kept.cut(end)
    return load_it()


def _value_of_source(kept, map_location, mmap):
    """A file of plain values, in C."""
    by_caller = []
    with contextlib.closing(kept.open(MAPPED if mmap else READ)) as file:
        with of_file(kept.name(), by_caller):
            value = _value_of(file, kept.name(), map_location, mmap, by_caller)
        if file.is_legacy():
            info = file.info()  # of several objects in the file this one, as PyTorch does
            kept.leave_behind(info["nbytes"] - info["behind_nbytes"])
    count("load", "values")
    return value


def _value_of(file, name, map_location, mmap, by_caller):
    """The value of an open file of this name."""
    # Storages of files from before PyTorch 1.6 can be views of each other's memory.
    in_place = mmap or file.is_legacy()
    restore, cpu_stays = restore_of(map_location, by_caller, name)
    # A function wants to see the bytes; all else depends on the location alone.
    places = functools.partial(_device.places, restore) if restore and not callable(map_location) else None
    with _sparse.checked():
        return file.value(None, in_place, mmap, str(map_location) == "meta", restore, cpu_stays, places)


def restore_of(map_location, by_caller, name):
    """The function that moves storages, or None; and whether those of the host stay as they are.

    name: of the file, for messages
    """
    import torch

    if map_location in ("cpu", "meta", torch.device("cpu"), torch.device("meta")):
        return None, True
    restore = _records.restoring(map_location, by_caller, name)
    if map_location is None:
        return restore, True
    return restore, isinstance(map_location, dict) and map_location.get("cpu", "cpu") == "cpu"
