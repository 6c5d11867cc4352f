# SPDX-License-Identifier: BSD-3-Clause
"""Files of safetensors from memory, and what is in their bytes."""

import io
import math

from berth import _load, _native
from berth._counters import count_weights
from berth._errors import shown
from berth._open import File
from berth._save import finish, start_tensors
from berth._source import from_caller
from berth.safetensors._errors import SafetensorError, as_the_package
from berth.safetensors._open import DTYPE_CODES, in_elements, safe_open


class TensorSpec:
    """A contiguous tensor in memory, for serialize and serialize_file.

    dtype: PyTorch's or numpy's name, "float32"; then the format's, "F32"
    shape: in elements; of float4_e2m1fn_x2 as PyTorch has it, in pairs of them (of float6 in fours); then in elements
    data_ptr, data_len: address and size in bytes. The memory is the caller's, and must live until the call returns.
    """

    def __init__(self, *, dtype, shape, data_ptr, data_len):
        if dtype not in DTYPE_CODES:
            raise SafetensorError(f"Unknown dtype {shown(str(dtype))!r}. Known are: {', '.join(DTYPE_CODES)}")
        self._name, self._dims = dtype, tuple(map(int, shape))
        self._address, self._nbytes = int(data_ptr), int(data_len)
        if min(self._address, self._nbytes, *self._dims) < 0 or self._address >> 64:
            raise OverflowError("an address, a size and a shape are not negative, and no address has more than 64 bits")

    @property
    def data_ptr(self):
        return self._address

    @property
    def data_len(self):
        return self._nbytes

    @property
    def dtype(self):
        return DTYPE_CODES[self._name]

    @property
    def shape(self):
        return in_elements(self._name, self._dims)

    def __repr__(self):
        return (f"TensorSpec(dtype={self.dtype!r}, shape={self.shape}, data_ptr={self.data_ptr}, "
                f"data_len={self.data_len})")


def serialize(tensor_dict, metadata=None):
    """The bytes of a file of these tensors: {name: TensorSpec}. Raises: as serialize_file."""
    made = io.BytesIO()
    serialize_file(tensor_dict, made, metadata)
    return made.getvalue()


def serialize_file(tensor_dict, filename, metadata=None):
    """Saves tensors that lie in memory to a path or "s3://bucket/key": all or nothing, with the package's bytes.

    tensor_dict: {name: TensorSpec}; metadata: a dict of texts, for the file's head
    Raises: SafetensorError: a size is not that of the shape; it cannot be written.
    """
    save_specs(tensor_dict, filename, metadata)
    count_weights("save")


def save_specs(specs, f, metadata, owner=None):
    """owner: as of save_rows."""
    rows = []
    for name, spec in specs.items():
        if not isinstance(name, str) or not isinstance(spec, TensorSpec):
            raise TypeError(f"a tensor is a TensorSpec by its name, not {type(spec)} by {type(name)}")
        nbytes = _native.dtype_nbytes(spec._name) * math.prod(spec._dims)
        if nbytes != spec._nbytes:
            raise SafetensorError(f"{shown(name)}: {spec.dtype} of the shape {spec.shape} has {nbytes} bytes, not "
                                  f"{spec._nbytes}")
        rows.append((name, spec._name, spec._dims, spec._address))
    save_rows(rows, f, metadata, owner)


def save_rows(rows, f, metadata, owner):
    """Saves contiguous tensors by their addresses: (name, PyTorch's name of the dtype, shape, address).

    owner: lives until the save has ended, and with it the memory
    """
    for name, _, dims, address in rows:
        if not address and 0 not in dims:
            raise SafetensorError(f"{shown(name)}: its address is 0")
    with as_the_package(is_save=True):
        finish(*start_tensors(from_caller(f), _native.save_specs_begin, rows, texts_of(metadata), owner))


def texts_of(metadata):
    """What the native module takes: a dict that nobody else changes; None: there are none."""
    if metadata is None:
        return None
    if not isinstance(metadata, dict) or not all(
            isinstance(key, str) and isinstance(text, str) for key, text in metadata.items()):
        raise TypeError(f"argument 'metadata': a dict of str by str, not {metadata!r:.100}")
    return dict(metadata)


def opened_bytes(data):
    """A file in memory, as a safe_open. Nobody changes it."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"the data are bytes, not {type(data)}")
    return File(_native.open(memoryview(data), _load.READ), None, None)


def deserialize(bytes):
    """[(name, {"dtype": "F32", "shape": [2, 3], "data": bytearray}), ...], in the order of the bytes."""
    from berth.safetensors._open import _head, _key_of

    found = []
    with as_the_package(), opened_bytes(bytes) as file:
        for name in file.keys():
            dtype, shape = _head(file, name)
            _, dims, _, nbytes, _ = file._file.tensor(name)
            data = file._file.slice(name, [0] * len(dims), list(dims)) if nbytes else bytearray()
            found.append((_key_of(name), {"dtype": dtype, "shape": shape, "data": data}))
    count_weights("load")
    return found
