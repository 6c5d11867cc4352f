# SPDX-License-Identifier: BSD-3-Clause
"""berth.save: values are walked in C, and written without the GIL."""

from berth import _conditions, _native
from berth._counters import count, count_reason
from berth._errors import Declined, declined
from berth._target import target_of


def save(obj, f):
    """Saves a value as torch.save(obj, f) does, with the same bytes.

    To a path it is all or nothing: whatever fails, the path holds the old file or the whole new
    one. When it returns, the file is as durable as berth.config.save.durability says.

    obj: plain Python values (None, bool, int, float, complex, str, bytes, bytearray, list, tuple,
        set, dict, OrderedDict, Counter) of tensors, Parameters, storages, and torch's sizes,
        devices, dtypes, layouts and quantization schemes, in exactly these types; nested as you
        like. Tensors may be of any shape, stride and dtype, sparse, nested or quantized, on the
        host or of the device "meta". They must not change until this returns.
    f: a path (str, bytes, os.PathLike), or an open binary file. A file is written from its current
        position on, and neither closed nor synced; what was written stays if the save fails.

    Raises:
        berth.Declined: a value is none of these, before a byte is written; it names the value.
        berth.Error: it could not be written. FileError if the system says why.
        RuntimeError: as torch.save: storages of one memory have several dtypes.
        What f.write raised; KeyboardInterrupt: the save was cancelled, and a path has its old file.
    Threads: any; other threads run while bytes are written.
    """
    reason = _conditions.reason()
    try:
        if reason:
            raise declined([], reason)
        _save_to(obj, f)
    except Declined as error:
        count_reason(error.reason)
        raise
    count("save", "values")


def _save_to(obj, f):
    target, end = target_of(f)
    is_saved = False
    try:
        _native.save(obj, target, None)
        is_saved = True
    finally:
        end(is_saved)
