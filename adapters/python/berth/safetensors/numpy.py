# SPDX-License-Identifier: BSD-3-Clause
"""The functions of safetensors.numpy. PyTorch is not imported."""

import io

import numpy

from berth._counters import count_weights
from berth._errors import shown
from berth._open import numpy_dtype
from berth.safetensors._open import DTYPE_CODES, safe_open
from berth.safetensors._save import TensorSpec, deserialize, save_specs

__all__ = ["load", "load_file", "save", "save_file"]

NAMES = {code: name for name, code in DTYPE_CODES.items()}


def load_file(filename, *, backend="mmap"):
    """All tensors of a file as arrays, by their names: a dict. The errors are those of safe_open."""
    with safe_open(filename, "np", backend=backend) as file:
        arrays = file.get_tensors()
    count_weights("load")
    return arrays


def load(data):
    """All tensors of a file that is in memory: bytes."""
    found = {name: numpy.frombuffer(entry["data"], numpy_dtype(numpy, NAMES.get(entry["dtype"], entry["dtype"])))
             .reshape(entry["shape"]) for name, entry in deserialize(data)}
    count_weights("load")
    return found


def save_file(tensor_dict, filename, metadata=None):
    """Saves a dict of arrays to a path or "s3://bucket/key": all or nothing, with the package's bytes.

    Arrays that are big-endian or not contiguous are copied.
    Raises: SafetensorError: numpy's dtype is none of the format's; it cannot be written.
    """
    _save(tensor_dict, filename, metadata)


def save(tensor_dict, metadata=None):
    """The bytes of save_file."""
    made = io.BytesIO()
    _save(tensor_dict, made, metadata)
    return made.getvalue()


def _save(arrays, target, metadata):
    if not isinstance(arrays, dict):
        raise TypeError(f"the arrays are a dict of them by their names, not {type(arrays)}")
    kept, specs = [], {}
    for key, array in arrays.items():
        if not isinstance(array, numpy.ndarray):
            raise TypeError(f"{shown(str(key))} is of {type(array)}, not a numpy.ndarray")
        plain = numpy.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).reshape(array.shape)
        kept.append(plain)
        specs[key] = TensorSpec(dtype=plain.dtype.name, shape=plain.shape, data_ptr=plain.ctypes.data,
                                data_len=plain.nbytes)
    save_specs(specs, target, metadata, kept)
    count_weights("save")
