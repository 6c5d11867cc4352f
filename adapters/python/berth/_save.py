# SPDX-License-Identifier: BSD-3-Clause
"""berth.save: values are walked in C, or pickled by PyTorch, and written without the GIL."""

import io
import os
import pickle

from berth import _conditions, _native, _records
from berth._counters import count
from berth._errors import Declined
from berth._source import descriptor_of, is_path

# Files of Python's own, whose bytes go to their descriptor and nowhere else.
REAL_FILES = (io.FileIO, io.BufferedWriter, io.BufferedRandom)
PROTOCOL = 2


def save(obj, f, pickle_module=pickle, pickle_protocol=PROTOCOL):
    """Saves a value as torch.save(obj, f) does, with the same bytes.

    To a path it is all or nothing: whatever fails, the path holds the old file or the whole new
    one. When it returns, the file is as durable as berth.config.save.durability says.

    obj: any value that torch.save can save. Plain values are walked in C: None, bool, int, float,
        complex, str, bytes, bytearray, list, tuple, set, dict, OrderedDict, Counter; tensors,
        Parameters and storages of the host, also sparse, nested or quantized ones; torch's sizes,
        devices, dtypes, layouts and quantization schemes; in exactly these types, nested as you
        like. PyTorch's own pickler pickles everything else; berth.counters() tells the two apart.
        Tensors must not change until this returns.
    f: a path (str, bytes, os.PathLike), or an open binary file. A file is written from its current
        position on, and neither closed nor synced; what was written stays if the save fails.
    pickle_module, pickle_protocol: as of torch.save; with others than the defaults PyTorch pickles.

    Raises:
        berth.Error: it could not be written. FileError if the system says why.
        RuntimeError: as torch.save: storages of one memory have several dtypes.
        What pickling raised; what f.write raised; KeyboardInterrupt: the save was cancelled. In all
        cases a path has its old file.
    Threads: any; other threads run while bytes are written.
    """
    save_any(obj, f, pickle_module, pickle_protocol, False)


def save_any(obj, f, pickle_module, pickle_protocol, disable_byteorder):
    """By layers: in C if it is plain, else by PyTorch's pickler."""
    if not is_path(f) and not hasattr(f, "write"):
        raise AttributeError("expected 'f' to be string, path, or a file-like object with a "
                             "'write' attribute")
    if (pickle_module is pickle and pickle_protocol == PROTOCOL and not disable_byteorder
            and not _conditions.reason()):
        try:
            save_to(f, lambda target: _native.save(obj, target, None))
            count("save", "values")
            return
        except Declined:  # before a byte was written
            pass
    _records.save(obj, lambda writer: save_to(f, lambda target: _native.save_records(
        writer.records, target, None, disable_byteorder)), pickle_module, pickle_protocol,
        disable_byteorder)


def save_to(f, write):
    """Calls write(target) with what the native module writes to: bytes of a path, a descriptor, or a
    function."""
    if is_path(f):
        write(os.fsencode(f))
        return
    fd = descriptor_of(f, REAL_FILES)
    if fd is not None:
        save_to_file(f, fd, write)
        return
    write(f.write)
    if hasattr(f, "flush"):
        f.flush()


def save_to_file(file, fd, write):
    """Through the descriptor; Python's position follows."""
    file.flush()
    if not file.seekable():
        write(fd)
        return
    os.lseek(fd, file.tell(), os.SEEK_SET)
    try:
        write(fd)
    finally:
        file.seek(os.lseek(fd, 0, os.SEEK_CUR))
