# SPDX-License-Identifier: BSD-3-Clause
"""berth.save: values are walked in C, or pickled by PyTorch, and written without the GIL."""

import functools
import logging
import os
import pickle

from berth import _conditions, _native, _records
from berth._config import config
from berth._counters import count
from berth._errors import Declined, shown
from berth._source import Url, from_caller, is_path, name_of, path_bytes
from berth._target import target_of

PROTOCOL = 2

_log = logging.getLogger("berth")


def start_plainly(f, function, *arguments):
    """Calls function(*arguments). Returns: (what it returns, save.replace at that moment)."""
    return function(*arguments), config.save.replace


def save(obj, f, pickle_module=pickle, pickle_protocol=PROTOCOL, *, base=None):
    """Saves a value as torch.save(obj, f) does, with the same bytes.

    To a path it is all or nothing: whatever fails, the path holds the old file or the whole new
    one. When it returns, the file is as durable as berth.config.save.durability says.

    obj: any value that torch.save can save. Plain values are walked in C: None, bool, int, float,
        complex, str, bytes, bytearray, list, tuple, set, dict, OrderedDict, Counter; tensors,
        Parameters and storages of the host or of CUDA, also sparse, nested or quantized ones; torch's sizes,
        devices, dtypes, layouts and quantization schemes; in exactly these types, nested as you
        like. PyTorch's own pickler pickles everything else; berth.counters() tells the two apart.
        Tensors must not change until this returns.
        To a path whose name ends in ".safetensors": a dict of tensors by their names. The bytes are those of
        safetensors.torch.save_file(obj, f, {"format": "pt"}). The format has no views: each tensor is written
        in full. Nothing is pickled.
    f: a path (str, bytes, os.PathLike), or an open binary file. A file is written from its current
        position on, and neither closed nor synced; what was written stays if the save fails.
        A str "s3://bucket/key": the object appears whole or not at all, and an old one stays until then; see
        docs/urls.md.
    pickle_module, pickle_protocol: as of torch.save; with others than the defaults PyTorch pickles.
    base: the path of an earlier checkpoint, for saves to a path. Where its storages have the same bytes, the
        new file shares their blocks and does not write them again, on file systems that can (XFS, btrfs): the
        file is the same, byte for byte. It may be f itself, and need not exist: what cannot be shared is
        written, and the logger "berth" tells why (INFO). None: as berth.config.save.base says.

    Raises:
        berth.Error: it could not be written. FileError if the system says why.
        RuntimeError: as torch.save: storages of one memory have several dtypes.
        TypeError: a .safetensors file cannot hold obj.
        What pickling raised; what f.write raised; KeyboardInterrupt: the save was cancelled. In all
        cases a path has its old file, and s3:// its old object; but a ^C that comes when the server
        is putting the new object in its place can be too late for that.
    Threads: any; other threads run while bytes are written.
    """
    f = from_caller(f)
    if is_safetensors(f):
        finish(*begin_safetensors(obj, f, base=base))
    else:
        save_any(obj, f, pickle_module, pickle_protocol, False, base=base)


def save_any(obj, f, pickle_module, pickle_protocol, disable_byteorder, start=start_plainly, base=None):
    """torch.save with all its parameters but one. start, base: as of begin."""
    finish(*begin(obj, f, pickle_module, pickle_protocol, disable_byteorder, start=start, base=base))


def finish(job, way, end):
    is_saved = False
    try:
        job.finish()
        is_saved = True
    finally:
        end(is_saved)
    count("save", way)


def begin(obj, f, pickle_module=pickle, pickle_protocol=PROTOCOL, disable_byteorder=False,
          snapshot=False, start=start_plainly, base=None):
    """Begins a save: in C if the value is plain, else PyTorch pickles it.

    start: start_plainly, or _in_place.start_as_torch; called with the native function that opens
        the target.
    base: as of save.
    Returns: (native Job, "values" or "records", end); end(is_saved) is to be called at its end.
    """
    target, end = target_of(f)
    try:
        job = replace = None
        base = base_argument(base)
        if (pickle_module is pickle and pickle_protocol == PROTOCOL and not disable_byteorder
                and not _conditions.reason()):
            try:
                job, replace = start(f, _native.save_begin, obj, target, None, snapshot, False, *base)
                way = "values"
            except Declined:  # before a byte was written
                pass
        if job is None:
            records = _records.pickled(obj, pickle_module, pickle_protocol, disable_byteorder)
            job, replace = start(f, _native.save_records_begin, records, target, None,
                                 disable_byteorder, snapshot, *base)
            way = "records"
        return job, way, _telling(job, f, replace, end)
    except BaseException:
        end(False)
        raise


def base_argument(base):
    """The native functions' last argument, if there is a base."""
    return () if base is None else (path_bytes(base),)


def is_safetensors(f):
    """Whether f is a path whose name says that the file is one of safetensors."""
    return f.endswith(".safetensors") if isinstance(f, Url) else is_path(f) and path_bytes(f).endswith(b".safetensors")


def start_tensors(f, function, content, *rest):
    """Begins the save of a safetensors file. function(content, target, *rest) is native. Returns: as begin."""
    target, end = target_of(f)
    try:
        job, replace = start_plainly(f, function, content, target, *rest)
    except BaseException:
        end(False)
        raise
    return job, "values", _telling(job, f, replace, end)


def begin_safetensors(obj, f, snapshot=False, base=None):
    """Begins the save of a safetensors file. Returns: as begin."""
    import torch

    other = None if isinstance(obj, dict) else f"the value is of {type(obj)}"
    pairs = [] if other else list(type(obj).items(obj))  # a file can have given it an attribute `items` (Y5)
    for key, value in pairs:
        if not isinstance(key, str):
            other = f"a key is of {type(key)}"
        elif not isinstance(value, torch.Tensor):
            other = f"[{key!r}] is of {type(value)}"
        elif not key.isascii() and key != key.encode(errors="replace").decode():
            other = f"the key {key!r} has a surrogate, which UTF-8 has not"
    if other:
        raise TypeError(f"{shown(name_of(f))}: a .safetensors file holds a dict of tensors by their names, and "
                        f"{other}. Save the dict of tensors alone, or give the file another name, such as "
                        ".pt, for any value")
    return start_tensors(f, _native.save_begin, dict(pairs), None, snapshot, True, *base_argument(base))


def _telling(job, f, replace, end):
    """What ends the save of this job to f, and tells what the file system could not do."""
    if not is_path(f):
        return end
    return functools.partial(_tell, job, shown(name_of(f)), replace, config.save.durability)


def tell_shared(path, nbytes, reason):
    """What came of a base, if there was one. reason: why no more is shared, or None."""
    if nbytes or reason:
        _log.info("%s shares %d bytes with its base%s", path, nbytes, f": {reason}" if reason else "")


def _tell(job, path, replace, durability, is_saved):
    placed, reached, shared_nbytes, reason = job.placed()
    if not is_saved:
        return
    tell_shared(path, shared_nbytes, reason)
    if placed == "in place" and replace == "auto":
        _log.warning("%s was written in place: a rename cannot put a file there", path)
    if reached and reached != durability:
        _log.warning("%s: its file system cannot sync: save.durability=%s became %s", path, durability,
                     reached)
