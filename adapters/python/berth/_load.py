# SPDX-License-Identifier: BSD-3-Clause
"""berth.load: bytes are read in parallel without the GIL, then values are made in C."""

from berth import _conditions, _native, _sparse
from berth._counters import count, count_reason
from berth._errors import declined
from berth._source import is_path, source_of

# Tensors may be written to, so a map is private. Unknown classes are refused, whatever is set.
MAPPED = "load.mmap=on load.mmap_flags=private load.method=map load.unknown_globals=refuse"
READ = "load.mmap=off load.unknown_globals=refuse"


def load(f, map_location=None, *, mmap=None):
    """Loads what torch.load(f, map_location, weights_only=True, mmap=mmap) does.

    Nothing in the file is executed. The objects have the types, the identity, the sharing, the
    strides and the flags that torch.load gives them. Files of torch.save of any version are read,
    and .safetensors.

    f: a path (str, bytes, os.PathLike), or an open binary file, which is read from its position on.
    map_location: as of torch.load: None, a device or its name, a dict of names, or a function
        (storage, location) -> storage or None.
    mmap: True: the tensors' bytes are the file's pages, read when they are touched; what is written
        to them stays in this process. The file must be a path, and must not be truncated while a
        tensor lives. False, None: all bytes are read now, into memory of each storage's own.

    Returns: the value that was saved.
    Raises:
        berth.UnsafeFileError: the pickle is malformed or names code; a pickle.UnpicklingError.
        berth.MissingFileError, berth.FileError: there is no such file, or it cannot be read.
        berth.Error: the file is broken, or no checkpoint. The message says where and why.
        KeyboardInterrupt: nothing is kept.
    Threads: any; other threads run while bytes are read.
    """
    reason = _conditions.reason()
    if reason:
        count_reason(reason)
        raise declined([], reason)
    if mmap and not is_path(f):
        raise ValueError("f must be a file path in order to use the mmap argument")
    file = _native.open(source_of(f), MAPPED if mmap else READ)
    try:
        value = _value_of(file, map_location, bool(mmap))
    finally:
        file.close()
    count("load", "values")
    return value


def _value_of(file, map_location, mmap):
    """The value of an open file."""
    # Storages of files from before PyTorch 1.6 can be views of each other's memory.
    in_place = mmap or file.is_legacy()
    restore, cpu_stays = restore_of(map_location)
    try:
        value = file.value(None, in_place, mmap, str(map_location) == "meta", restore, cpu_stays)
        _sparse.check()
    finally:
        _sparse.forget()
    return value


def restore_of(map_location):
    """The function that moves storages, or None; and whether those of the host stay as they are."""
    import torch

    if map_location in ("cpu", "meta", torch.device("cpu"), torch.device("meta")):
        return None, True
    restore = torch.serialization._get_restore_location(map_location)
    if map_location is None:
        return restore, True
    return restore, isinstance(map_location, dict) and map_location.get("cpu", "cpu") == "cpu"
