# SPDX-License-Identifier: BSD-3-Clause
"""berth.open: a file whose tensors are read when they are asked for."""

import builtins
import errno
import operator
import os

from berth import _native, _set, _sparse
from berth._errors import NO_OFFSET, Error, load_alone, make, of_file, shown
from berth._load import MAPPED
from berth._source import Url, from_caller, is_path, name_of, put_back, source_of
from berth._verify import report_of, report_of_files

FLAGS_CONJ, FLAGS_NEG, FLAGS_META = 2, 4, 8
# Whose bytes are PyTorch's.
OF_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
                "float8_e8m0fnu", "complex32")


def open(f):
    """Opens a checkpoint, and reads no more than its head.

    f: a path (str, bytes, os.PathLike), or an open binary file. A .safetensors file will do. A str that
        begins with https://, http:// or s3:// is a URL: its bytes are requested when they are asked for.
        A path or URL can be that of several files, as for berth.load: an index, whose files are opened. So can a
        path: a folder; a directory of torch.distributed.checkpoint, which is copied into memory.
        A file object is read when tensors are asked for, from its position on, so it must stay open until then. A
        real file at its begin may be closed; of one that cannot seek all is read now. A BytesIO is not copied.
        It stands where it stood, until a tensor is read.
    Returns: a File. Use it as a context manager, or call close().
    Raises: as berth.load.
    Threads: any.
    """
    return open_found(_set.found(from_caller(f)), MAPPED)


def open_found(found, assignments):
    """A File of what _set.found gives. assignments: options, MAPPED or READ"""
    with load_alone("berth.open"):
        if isinstance(found, (_set.Index, _set.Dcp)):
            return File(*found.open(assignments), found.path, found.container)
        with put_back(found):
            source = source_of(found)
            again = found.fileno if isinstance(source, int) else lambda: source
            native = _native.open(source, assignments)
        return File(native, again, found)


class Slice:
    """A tensor of a file of which only parts are read: file.slice("emb.weight")[1000:1100].

    dtype: name of the dtype, "float32"; shape: a tuple
    """

    def __init__(self, file, name):
        self._file, self._name = file, name
        self.dtype, self.shape, _, _, self._flags = file.tensor(name)

    def __len__(self):
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __getitem__(self, index):
        """Ints and slices of step 1, at most one for each dimension; `...` stands for the rest.

        Returns: a contiguous torch.Tensor with memory of its own.
        Raises: IndexError: an index is not inside; TypeError: it is neither an int nor a slice (so is a bool), or
            the tensor is quantized: it has no part without its scales; berth.Error: it cannot be read.
        """
        if self.dtype.startswith("q"):
            raise TypeError(f"{shown(self._name)}: a quantized tensor has no slices; file[{self._name!r}] is all of it")
        starts, lengths, shape = ranges_of(index, self.shape)
        return tensor_of(self._file.slice(self._name, starts, lengths), self.dtype, shape)

    def __repr__(self):
        return f"<berth.Slice {self._name!r} {self.dtype} {list(self.shape)}>"


class File:
    """An open checkpoint: tensors by their names, as `berth ls` shows them.

    `file["layers.0.weight"]` is a torch.Tensor over the file's pages, as of berth.load(mmap=True);
    any other value has a name, too: `file["epoch"]`. Iterating gives the names of the tensors.
    Tensors stay valid after close().
    Threads: any.
    """

    def __init__(self, native, source=None, opened=None, container=None):
        self._file = native
        self._container = container  # None: the native file says it
        self._names = None
        self._source = source  # a function: a file object may have been closed since
        if is_path(opened) and not isinstance(opened, Url):
            opened = os.path.abspath(os.fsdecode(opened))
        self._opened = opened  # for messages, and for another process
        self._stamp = _stamp(opened)

    def __repr__(self):
        try:
            n = len(self)
            kind = self.info["container"]
            if kind == _set.Index.container:
                n_files = self.info["n_files"]
                kind += f" of {n_files} file{'s' * (n_files != 1)}"
            state = f"{kind}, {n} tensor{'s' * (n != 1)}"
        except ValueError:
            state = "closed"
        except Error:  # keys() says why
            state = "tensors whose names are too long"
        name = repr(name_of(self._opened)) if is_path(self._opened) else f"an object of {type(self._opened)}"
        return f"<berth.File {name}, {state}>"

    def __reduce_ex__(self, _):
        """In another process, such as a DataLoader's worker, the path is opened again."""
        if not is_path(self._opened):
            raise TypeError(f"a berth.File over {type(self._opened)} cannot be pickled: another process has "
                            "no such file. Open a path")
        self._file.is_legacy()  # raises if this file is closed
        return _open_again, (str(self._opened), isinstance(self._opened, Url), self._stamp)

    def close(self):
        """Closes the file; what was taken of it stays valid. It may be closed twice."""
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def keys(self):
        """The names of all tensors, in the order in which they were saved; a list."""
        if self._names is None:
            self._names = self._file.names()
        return list(self._names)

    def values(self):
        """The tensors, in the order of keys(); an iterator, which reads one at a time."""
        return map(self.__getitem__, self.keys())

    def items(self):
        """(name, tensor), in the order of keys(); an iterator, which reads one at a time."""
        return ((name, self[name]) for name in self.keys())

    def get(self, name, default=None):
        """A tensor, or any other value; the default if there is none. Raises: berth.Error."""
        try:
            return self[name]
        except KeyError:
            return default

    def __iter__(self):
        return iter(self.keys())

    def __len__(self):
        return len(self.keys())

    def __contains__(self, name):
        if not isinstance(name, str):
            return False
        try:
            self._file.tensor(name)
        except Error as error:
            if error.status in ("BERTH_E_NOT_FOUND", "BERTH_E_AMBIGUOUS", "BERTH_E_ARGUMENT"):
                return False
            raise
        return True

    def __getitem__(self, name):
        """A tensor, or any other value, by its name "a.0.b" or its path "['a'][0]['b']".

        Raises: KeyError: there is none; TypeError: the name is no str; berth.Error: it cannot be loaded.
        """
        if not isinstance(name, str):  # None is the whole value to the native module
            raise TypeError(f"a name is a str, not {name!r:.100}")
        with missing_is_key_error(), of_file(name_of(self._opened)), _sparse.checked():
            return self._file.value(name, True, True, False, None, True, None)

    def slice(self, name):
        """A tensor of which only parts are read. Raises: KeyError."""
        with missing_is_key_error():
            return Slice(self._file, name)

    def numpy(self, name):
        """A tensor as a numpy array over the file's pages; torch is not needed. bfloat16 and float8 need the
        package ml_dtypes.

        Raises: KeyError; TypeError: numpy has no such dtype, or the tensor has no elements of its
        own (meta, sparse); berth.Error.
        """
        import numpy

        with missing_is_key_error():
            dtype, shape, stride, _, flags = self._file.tensor(name)
        if flags & (FLAGS_CONJ | FLAGS_NEG | FLAGS_META):
            raise TypeError(f"{shown(name)}: a conjugate, negative or meta tensor has no numpy form")
        kind = numpy_dtype(numpy, dtype)
        if 0 in shape:
            return numpy.empty(shape, kind)
        return numpy.ndarray(shape, kind, self._file.memory(name), 0, [step * kind.itemsize for step in stride])

    def verify(self):
        """berth.verify of this file: a path is opened once more.

        Returns: a Report. Raises: as berth.verify; ValueError: the file object was closed.
        """
        self._file.is_legacy()  # raises if this file is closed
        source = self._source()
        return report_of(source) if not isinstance(source, list) else report_of_files(source)

    @property
    def info(self):
        """What the file says about itself; a dict of container, versions, sizes and counts.

        container: "zip", "legacy", "safetensors", "index", or "DCP directory"; of this, all else is about the
        copy in memory.
        """
        info = self._file.info()
        return {**info, "container": self._container or info["container"]}

    @property
    def metadata(self):
        """The texts of __metadata__ in a safetensors file; a dict, or None."""
        return self._file.metadata()


def _stamp(opened):
    """What tells one state of a file from another; None: it is no path."""
    if not is_path(opened) or isinstance(opened, Url):
        return None
    try:
        status = os.stat(opened)
    except OSError:  # it was opened: it has been removed since
        return None
    return status.st_size, status.st_mtime_ns


def _open_again(name, is_url, stamp):
    file = open(Url(name) if is_url else os.fspath(name))
    if file._stamp != stamp:
        file.close()
        raise make("BERTH_E_SYSTEM", f"{name}: has changed since the berth.File that is unpickled here was "
                   "opened", errno.ESTALE, NO_OFFSET, "")
    return file


class missing_is_key_error:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if isinstance(error, Error) and error.status == "BERTH_E_NOT_FOUND":
            raise KeyError(str(error)) from None


def numpy_dtype(numpy, name):
    if name in OF_ML_DTYPES:
        try:
            import ml_dtypes

            return numpy.dtype(getattr(ml_dtypes, name))
        except (ImportError, AttributeError):
            raise TypeError(f"numpy has no dtype {name} of its own: pip install ml_dtypes, a newer one if it is "
                            "there; or use the tensor itself") from None
    try:
        return numpy.dtype(name)
    except TypeError:
        raise TypeError(f"numpy has no dtype {name}; use the tensor itself") from None


def ranges_of(index, shape):
    """(first of each dimension, length of each dimension, shape of the result)."""
    indices = list(index) if isinstance(index, tuple) else [index]
    n_rests = sum(each is Ellipsis for each in indices)
    if n_rests > 1:
        raise IndexError("an index has `...` once at most")
    if n_rests:
        at = next(i for i, each in enumerate(indices) if each is Ellipsis)
        missing = len(shape) - (len(indices) - 1)
        indices[at:at + 1] = [builtins.slice(None)] * max(missing, 0)
    if len(indices) > len(shape):
        raise IndexError(f"{len(indices)} indices for a tensor of {len(shape)} dimensions")
    indices += [builtins.slice(None)] * (len(shape) - len(indices))
    starts, lengths, result = [], [], []
    for each, size in zip(indices, shape):
        if isinstance(each, builtins.slice):
            bounds = [bound if bound is None else int_of(bound) for bound in (each.start, each.stop, each.step)]
            first, last, step = builtins.slice(*bounds).indices(size)
            if step != 1:
                raise IndexError("only slices of step 1 can be read")
            starts.append(first)
            lengths.append(max(last - first, 0))
            result.append(lengths[-1])
        else:
            at = int_of(each)
            if not -size <= at < size:
                raise IndexError(f"index {at} is not inside a dimension of {size}")
            starts.append(at % size)
            lengths.append(1)
    return starts, lengths, result


def int_of(index):
    """A bool is an int to Python, but a mask to PyTorch."""
    if not hasattr(index, "__index__") or isinstance(index, bool) or "bool" in str(getattr(index, "dtype", "")):
        raise TypeError(f"an index is an int, or a slice of ints, not {type(index).__name__}")
    return operator.index(index)


def tensor_of(data, dtype, shape):
    """A tensor over a bytearray."""
    import torch

    kind = getattr(torch, dtype, None)
    if kind is None:
        raise make("BERTH_E_UNSUPPORTED", f"this PyTorch has no torch.{dtype}", 0, NO_OFFSET, "")
    if not data:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(data, dtype=torch.uint8).view(kind).reshape(shape)
