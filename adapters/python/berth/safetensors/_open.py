# SPDX-License-Identifier: BSD-3-Clause
"""safe_open: tensors of a file, or of several, by their names."""

import ast
import os
import re

from berth import _load, _set
from berth._counters import count_weights
from berth._errors import of_file, shown
from berth._open import FLAGS_CONJ, FLAGS_META, FLAGS_NEG, numpy_dtype, open_found, tensor_of
from berth._source import Url, from_caller, is_path, name_of, path_bytes
from berth.safetensors import _prefetch
from berth.safetensors._errors import SafetensorError, as_the_package
from berth.safetensors._index import ranges_of

FRAMEWORKS = {"pt": "pt", "torch": "pt", "pytorch": "pt", "np": "np", "numpy": "np"}
OF_THE_PACKAGE = ("tf", "tensorflow", "jax", "flax", "mlx", "paddle")  # as it names them, and Berth has no tensors for
DEVICE = re.compile(r"(cpu|mps|(cuda|musa|npu|xpu|xla|mlu|hpu)(:[0-9]+)?|mps:0)\Z")
BACKENDS = {"mmap": _load.MAPPED, "pread": _load.READ}
# The format's names of dtypes. One that it does not have, of a file of PyTorch's, keeps PyTorch's name.
DTYPE_CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0", "float4_e2m1fn_x2": "F4",
    "float6_e2m3fn_x4": "F6_E2M3", "float6_e3m2fn_x4": "F6_E3M2"}  # yapf: disable


class TensorMeta:
    """What the head of a file says of a tensor.

    dtype: the format's name, "F32"; shape: a list
    data_offsets: (first, end) of its bytes behind the header of a safetensors file; None: it is another format
    """

    def __init__(self, dtype, shape, data_offsets):
        self.dtype, self.shape, self.data_offsets = dtype, shape, data_offsets

    def __repr__(self):
        return f"TensorMeta(dtype={self.dtype!r}, shape={self.shape}, data_offsets={self.data_offsets})"


class _Listed(_set.Index):
    """A list of files, as an index that names all their tensors."""

    metadata = None

    def __init__(self, paths):
        self.path, self.files, self.weight_map = paths[0], dict.fromkeys(paths), {}

    def path_of(self, path):
        return path if isinstance(path, Url) else path_bytes(path)

    def open(self, assignments):
        files, again = super().open(assignments)
        try:
            for path, native in files.natives():
                for name in native.names():
                    if self.weight_map.setdefault(name, path) is not path:
                        raise SafetensorError(f"{shown(name_of(path))}: the tensor {shown(name)} is in "
                                              f"{shown(name_of(self.weight_map[name]))}, too")
        except BaseException:
            files.close()
            raise
        return files, again


def _found(filename):
    """What berth.open opens for a caller's path or paths."""
    if isinstance(filename, (list, tuple)):
        if not filename or not all(is_path(each) for each in filename):
            raise TypeError("a list of files is one of paths, and not empty")
        return _Listed([from_caller(each) for each in filename])
    if not isinstance(filename, (str, os.PathLike)):
        raise TypeError(f"argument 'filename': a str, an os.PathLike or a list of them, not {type(filename).__name__}")
    return _set.found(from_caller(filename))


def framework_of(name):
    if not isinstance(name, str):
        raise TypeError(f"argument 'framework': a str, not {type(name).__name__}")
    if name in OF_THE_PACKAGE:
        raise SafetensorError(f"framework {name} is invalid: Berth has pt and np; the package safetensors has it")
    if name not in FRAMEWORKS:
        raise SafetensorError(f"framework {shown(name)} is invalid")
    return FRAMEWORKS[name]


def device_of(device):
    """"cpu", or what torch.Tensor.to takes."""
    if device is None:
        return "cpu"
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return device  # torch says of which kind
    name = device if isinstance(device, str) else str(device) if type(device).__name__ == "device" else ""
    if not DEVICE.match(name):
        raise SafetensorError(f"device {shown(str(device))} is invalid")
    return {"mps:0": "mps"}.get(name, name)


class safe_open:
    """Opens a file, and reads its tensors when they are asked for.

    filename: a path: of a safetensors file, or of any other that berth.open takes: of PyTorch, an index, a folder,
        a URL. Or a list of paths, which no two tensors of one name may be in.
    framework: "pt" or "np", in any of the package's spellings
    device: as of torch; with "np" the host alone
    backend: "mmap": tensors are pages of the file, which nobody may cut meanwhile; what is written to them stays in
        this process. "pread": they are read into memory of their own.
    Raises: SafetensorError; FileNotFoundError; OSError: the system refuses.
    Threads: any.
    """

    def __init__(self, filename, framework, device="cpu", *, backend="mmap"):
        self._framework = framework_of(framework)
        self._device = device_of(device)
        if backend not in BACKENDS:
            raise SafetensorError(f'backend {backend!r} is invalid (expected one of: "mmap", "pread")')
        if self._framework == "np" and self._device != "cpu":
            raise SafetensorError(f"Device {self._device} is not supported for framework numpy")
        self._backend = backend
        with as_the_package():
            self._file = open_found(_found(filename), BACKENDS[backend])
            self._container = self._file.info["container"]
        self._is_mapped = backend == "mmap" and not isinstance(self._file._opened, Url)
        self._by_key = None
        count_weights("open")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file = None  # slices and loaders go on reading; the last of them closes it

    def _open_file(self):
        if self._file is None:
            raise SafetensorError("File is closed")
        return self._file

    def _names(self, file):
        """Each key and the name by which Berth finds it: a path, where a name would have two meanings."""
        if self._by_key is None:
            with as_the_package():
                self._by_key = {_key_of(name): name for name in file.keys()}
        return self._by_key

    def _found(self, key):
        """(the file, the name of a tensor). Another thread may close this object meanwhile (Y8)."""
        file = self._open_file()
        if not isinstance(key, str):
            raise TypeError(f"argument 'name': a str, not {type(key).__name__}")
        try:
            return file, self._names(file)[key]
        except KeyError:
            key.encode()  # UnicodeEncodeError, as the package's
            raise SafetensorError(f"File does not contain tensor {shown(key)}") from None

    def keys(self):
        """The names of the tensors, sorted; a list."""
        return sorted(self._names(self._open_file()))

    def offset_keys(self):
        """The names of the tensors, in the order of their bytes; a list."""
        return list(self._names(self._open_file()))

    def metadata(self):
        """The texts of __metadata__, a dict; None: there are none. Of several files: those that all have. A file of
        PyTorch's has {"format": "pt"}."""
        file = self._open_file()
        with as_the_package():
            if self._container == _set.Index.container:
                return file._file.metadata_of_all()
            return file.metadata if self._container == "safetensors" else {"format": "pt"}

    def get_tensor(self, name):
        """A tensor. Raises: SafetensorError: there is none of this name, or it cannot be read."""
        file, found = self._found(name)
        with as_the_package():
            return self._moved(self._tensor(file, found))

    def _tensor(self, file, name):
        """On the host, in the program's framework."""
        return file.numpy(name) if self._framework == "np" else file[name]

    def _moved(self, tensor):
        return _prefetch.moved(tensor, self._device)

    def get_tensors(self):
        """All tensors, by their names, in the order of offset_keys."""
        file = self._open_file()
        with as_the_package():
            if self._framework == "pt" and self._container == "safetensors":
                with of_file(name_of(file._opened)):
                    location = self._device if self._device == "cpu" else _torch_device(self._device)
                    return _load._value_of(file._file, name_of(file._opened), location, True, [])
            return {key: self._moved(self._tensor(file, name)) for key, name in self._names(file).items()}

    def get_slice(self, name):
        """A tensor of which only parts are read: f.get_slice("weight")[:, ::8]."""
        return PySafeSlice(self, *self._found(name))

    def get_tensor_meta(self, name):
        """What the head says of a tensor; nothing is read. Returns: a TensorMeta."""
        file, found = self._found(name)
        dtype, shape = _head(file, found)
        offsets = None
        if self._container == "safetensors":  # the bytes of its tensors follow each other without gaps
            first = 0
            for each in self._names(file).values():
                end = first + file._file.tensor(each)[3]
                if each == found:
                    offsets = first, end
                    break
                first = end
        return TensorMeta(dtype, shape, offsets)

    def prefetch(self, plan=None, *, device=None, threads=8, window_nbytes=_prefetch.WINDOW_NBYTES):
        """Reads tensors ahead of their use, in the background.

        plan: {name: None, a slice, or a tuple of slices, of step 1 and one for each dimension at most}; None: all
            tensors, whole. Each is read once, in the order of their bytes.
        device: where tensors go; None: where safe_open said
        threads: that read; never more than there are tensors, or 64
        window_nbytes: what may be read and not taken at a time; one tensor at least
        Returns: a PrefetchLoader. Close it, or use it as a context manager.
        Raises: SafetensorError: a name is not there, a slice has a step or too many dimensions.
        """
        if self._framework != "pt":
            raise SafetensorError('prefetch needs framework="pt"')
        file = self._open_file()
        names = self._names(file)
        wanted = dict.fromkeys(names) if plan is None else plan
        if not isinstance(wanted, dict):
            raise TypeError(f"argument 'plan': a dict of names and slices, not {type(plan).__name__}")
        for key in wanted:
            self._found(key)
        chosen = {key: (name, wanted[key]) for key, name in names.items() if key in wanted}
        return _prefetch.PrefetchLoader(file, chosen,
                                        self._device if device is None else device_of(device), threads,
                                        window_nbytes)


def _key_of(name):
    """The key that a name of berth.File stands for: "['x.']" -> "x."; others as they are."""
    if not name.startswith("["):
        return name
    try:
        steps = ast.literal_eval(name)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # a path of many steps
        return name
    return steps[0] if isinstance(steps, list) and len(steps) == 1 and isinstance(steps[0], str) else name


def _torch_device(device):
    import torch

    return torch.device(device)


def in_elements(dtype, shape):
    """The format's shape of a tensor: a list. Of a dtype of less than a byte an item has several elements."""
    per_item = 2 if dtype.endswith("_x2") else 4 if dtype.endswith("_x4") else 1
    return [*shape[:-1], per_item * shape[-1]] if shape else []


def _head(file, name):
    """(the format's dtype, shape) of a tensor of a berth.File"""
    with as_the_package():
        dtype, shape = file._file.tensor(name)[:2]
    return DTYPE_CODES.get(dtype, dtype), in_elements(dtype, shape)


class PySafeSlice:
    """A tensor of a safe_open, of which parts are read."""

    def __init__(self, opened, file, name):
        self._opened, self._name = opened, name
        self._file = file  # which a closed safe_open does not have any more
        self._dtype, self._shape = _head(file, name)

    def get_shape(self):
        return list(self._shape)

    def get_dtype(self):
        return self._dtype

    def __getitem__(self, index):
        """The elements of an index. If they are pages of the file and PyTorch's, any index of PyTorch's will do. Else
        it has ints, slices of a positive step and one `...`, and only what it asks for is read.

        Raises: what PyTorch raises; SafetensorError: the index has something else, or is not inside.
        """
        opened, file = self._opened, self._file._file
        with as_the_package():
            if opened._framework == "pt" and opened._is_mapped:
                return opened._moved(opened._tensor(self._file, self._name)[index])
            dtype, shape, _, _, flags = file.tensor(self._name)
            starts, lengths, rest = ranges_of(index, shape)
            if dtype.startswith("q") or flags & (FLAGS_CONJ | FLAGS_NEG | FLAGS_META):
                return opened._moved(opened._tensor(self._file, self._name)[index])
            data = file.slice(self._name, starts, lengths)
            if opened._framework == "np":
                import numpy

                whole = numpy.frombuffer(data, numpy_dtype(numpy, dtype)).reshape(lengths)
                return numpy.asarray(whole[rest])
            return opened._moved(tensor_of(data, dtype, lengths)[rest])
