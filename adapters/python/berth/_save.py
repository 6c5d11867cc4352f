# SPDX-License-Identifier: BSD-3-Clause
"""berth.save: values are walked in C, or pickled by PyTorch, and written without the GIL."""

import pickle

from berth import _conditions, _native, _records
from berth._counters import count
from berth._errors import Declined
from berth._target import target_of

PROTOCOL = 2


def save(obj, f, pickle_module=pickle, pickle_protocol=PROTOCOL):
    """Saves a value as torch.save(obj, f) does, with the same bytes.

    To a path it is all or nothing: whatever fails, the path holds the old file or the whole new
    one. When it returns, the file is as durable as berth.config.save.durability says.

    obj: any value that torch.save can save. Plain values are walked in C: None, bool, int, float,
        complex, str, bytes, bytearray, list, tuple, set, dict, OrderedDict, Counter; tensors,
        Parameters and storages of the host or of CUDA, also sparse, nested or quantized ones; torch's sizes,
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
    """torch.save with all its parameters but one."""
    job, way, end = begin(obj, f, pickle_module, pickle_protocol, disable_byteorder)
    is_saved = False
    try:
        job.finish()
        is_saved = True
    finally:
        end(is_saved)
    count("save", way)


def begin(obj, f, pickle_module=pickle, pickle_protocol=PROTOCOL, disable_byteorder=False,
          snapshot=False):
    """Begins a save: in C if the value is plain, else PyTorch pickles it.

    Returns: (native Job, "values" or "records", end); end(is_saved) is to be called at its end.
    """
    target, end = target_of(f)
    try:
        if (pickle_module is pickle and pickle_protocol == PROTOCOL and not disable_byteorder
                and not _conditions.reason()):
            try:
                return _native.save_begin(obj, target, None, snapshot), "values", end
            except Declined:  # before a byte was written
                pass
        records = _records.pickled(obj, pickle_module, pickle_protocol, disable_byteorder)
        job = _native.save_records_begin(records, target, None, disable_byteorder, snapshot)
        return job, "records", end
    except BaseException:
        end(False)
        raise
