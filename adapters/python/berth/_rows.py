# SPDX-License-Identifier: BSD-3-Clause
"""berth.rows: rows of tables that are larger than memory."""

import array
import operator
import sys

from berth import _native
from berth._errors import load_alone, shown
from berth._open import FLAGS_CONJ, FLAGS_NEG, File, numpy_dtype
from berth._load import MAPPED
from berth._set import Files
from berth._source import is_path, source_of


def rows(cache_nbytes=256 << 20, *, scratch_nbytes=0, ways=0):
    """Makes a cache of rows, for embedding tables that are larger than memory.

        with berth.open("model.pt") as file, berth.rows(1 << 30) as rows:
            table = rows.add(file, "emb.weight")
            vectors = rows.gather(table, ids)              # as torch's weight[ids]

    cache_nbytes: memory for rows; all of it is taken now
    scratch_nbytes: for rows that find no room there, and for reading; 0: an eighth of cache_nbytes
    ways: lines of the cache that a row can be in, 1 to 64; 0: 16
    berth.config.io.threads threads read; 0: 16, because they mostly wait.

    Returns: Rows. Use it as a context manager, or call close().
    Raises: berth.OutOfMemoryError, berth.ArgumentError.
    Threads: any.
    """
    limits = [operator.index(each) for each in (cache_nbytes, scratch_nbytes, ways)]
    if min(limits) < 0 or max(limits) >= 2**63:
        raise ValueError("cache_nbytes, scratch_nbytes and ways are numbers below 2**63")
    return Rows(_native.rows(*limits))


class Table:
    """A table of Rows.

    name: of the tensor; dtype: name of its dtype, "float32"; shape: (rows, elements of a row)
    """

    def __init__(self, owner, number, name, dtype, shape, row_nbytes):
        self._owner, self._number = owner, number
        self.name, self.dtype, self.shape, self._row_nbytes = name, dtype, shape, row_nbytes

    def __len__(self):
        return self.shape[0]

    def __repr__(self):
        return f"<berth.Table {self.name!r} {self.dtype} {list(self.shape)}>"


class Rows:
    """A cache of rows. Each method may be called by any threads at the same time.

    Ids are int32 or int64: a torch.Tensor on the host, a numpy array, an object with a buffer
    (array.array), or a list of ints. They may be of any shape, in any order, and repeated. They
    must not change during a call.

    Results have the shape of the ids and one dimension more: the elements of a row. They are numpy
    arrays if the ids are one, else tensors. `out` may be a tensor or an array of that shape and the
    table's dtype, whose rows lie at equal distances, or a writable buffer of as many bytes.
    """

    def __init__(self, native):
        self._native = native

    def close(self):
        """Frees the cache, or the last of its tickets does. It may be closed twice."""
        self._native.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def add(self, file, name):
        """Adds a table. If its rows are longer than those of all before, the cache is emptied.

        file: of berth.open, or a path. It stays open as long as the cache.
        name: of a contiguous tensor of 2 dimensions. If the file has handed it out (file[name]),
            its rows come from the mapped pages, else from the file.
        Returns: Table.
        Raises: KeyError; TypeError: its elements have no plain form (conjugate, quantized);
            berth.Error: another tensor that has no rows, or rows too long for the limits.
        """
        with load_alone("berth.rows"):
            opened = _native.open(source_of(file), MAPPED) if is_path(file) else None
        file = File(opened) if opened else file
        if not isinstance(file, File):
            raise TypeError(f"file is one of berth.open, or a path, not {type(file).__name__}")
        try:
            part = file.slice(name)
            if part._flags & (FLAGS_CONJ | FLAGS_NEG) or part.dtype.startswith(("q", "bits")):
                raise TypeError(f"{shown(name)}: rows of conjugate, negative and quantized tensors, and of "
                                "bits, are not supported")
            native = file._file.of(name) if isinstance(file._file, Files) else file._file
            number = self._native.add(native, name)
            nbytes = native.tensor(name)[3]
        finally:
            if opened:
                opened.close()
        return Table(self, number, name, part.dtype, part.shape, nbytes // max(part.shape[0], 1))

    def gather(self, table, ids, out=None, *, pruned_to_zero=False):
        """Rows of a table; the cache may be smaller than they are.

        out: receives them; None: a new tensor or array. It is the result.
        pruned_to_zero: the id -1 stands for no row; its elements are zeros.
        Raises: IndexError: an id is no row of the table; nothing was written. TypeError,
            ValueError: ids or out do not fit. berth.Error: a row cannot be read; KeyboardInterrupt:
            out holds some rows.
        Other threads run meanwhile.
        """
        return self.gather_many([(table, ids, out)], pruned_to_zero=pruned_to_zero)[0]

    def gather_many(self, parts, *, pruned_to_zero=False):
        """The same for several tables, or several times the same one, in one request.

        parts: a list of (table, ids) or (table, ids, out). Outputs may not overlap.
        Returns: a list of the results.
        """
        requests = [self._request(*part) for part in checked_parts(parts)]
        for request in requests:
            request.prepare_output()
        with bad_id_is_index_error(self._native):
            self._native.gather([request.part(pruned_to_zero) for request in requests])
        return [request.output for request in requests]

    def estimate(self, parts):
        """What gather_many(parts) would need; reads no ids.

        parts: a list of (table, ids), or of (table, number of ids)
        Returns: a dict: n_ids; n_passes; memory_nbytes, beside ids, results and the cache;
            output_nbytes, of the results.
        Raises: berth.OutOfMemoryError: berth.config.io.memory_nbytes leaves too little.
        """
        native = [(self._number(table), None, count_of(ids), False, None, 0, False)
                  for table, ids in checked_parts(parts)]
        names = ("n_ids", "n_passes", "memory_nbytes", "output_nbytes")
        return dict(zip(names, self._native.estimate(native)))

    def prefetch(self, table, ids):
        """Requests rows, and does not wait: they are read while the program does something else.

            with rows.prefetch(table, next_ids) as ticket:
                ...
                vectors = ticket.gather()

        Returns: Ticket. Its rows stay in the cache until it is released.
        Raises: as gather. berth.Error with the status "BERTH_E_BUSY": live tickets hold too many
            rows; berth.OutOfMemoryError: the cache is too small for the rows.
        """
        request = self._request(table, ids)
        memory = request.ids.as_64_bit()
        with bad_id_is_index_error(self._native):
            native = self._native.prefetch(table._number, memory, request.ids.n, table._row_nbytes)
        return Ticket(native, request)

    def stats(self):
        """What the cache has done so far: a dict of counts (berth_rows_stats in berth.h)."""
        return self._native.stats()

    def _number(self, table):
        if not isinstance(table, Table) or table._owner is not self:
            raise TypeError("the table is not one of these Rows: use what add() returned")
        return table._number

    def _request(self, table, ids, out=None):
        self._number(table)  # also checks it
        return Request(table, Ids(ids), out)


class Ticket:
    """Requested rows. They stay in the cache until the ticket is released, at the latest with it.

    Threads: any, at the same time.
    """

    def __init__(self, native, request):
        self._native, self._request = native, request

    def wait(self):
        """Waits until all rows are there, and helps to read them. Raises: berth.Error."""
        self._native.wait()

    def gather(self, out=None):
        """Waits, and copies the rows: as Rows.gather."""
        request = Request(self._request.table, self._request.ids, out)
        request.prepare_output()
        self._native.copy(request.memory, request.stride_nbytes)
        return request.output

    def release(self):
        """Ends the ticket. It may be released twice."""
        self._native.release()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()


# ---- ids and outputs, as the native module takes them: an address, or an object with a buffer ----


def module(name):
    """A module if the program has imported it: only then an object can be of its types."""
    return sys.modules.get(name)


def is_tensor(value):
    torch = module("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value):
    numpy = module("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def check_on_host(tensor, what):
    import torch

    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise TypeError(f"{what} are a tensor on {tensor.device} with {tensor.layout}; rows are "
                        "gathered on the host, with strided tensors")


class Ids:
    """Ids as they were given: where they lie, how many, their shape."""

    def __init__(self, ids):
        self.is_array = is_array(ids)
        if is_tensor(ids):
            self._take_tensor(ids)
        elif self.is_array:
            self._take_array(ids)
        else:
            self._take_buffer(ids)

    def _set(self, owner, memory, shape, item_nbytes):
        self.owner, self.memory, self.shape = owner, memory, tuple(shape)
        self.are_32_bit = item_nbytes == 4
        self.n = product(self.shape)

    def _take_tensor(self, ids):
        import torch

        ids = torch.Tensor.detach(ids)  # without attributes, of which a file may have chosen names (Y5)
        check_on_host(ids, "the ids")
        if ids.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"ids are int32 or int64, not {ids.dtype}")
        ids = ids.contiguous()
        self._set(ids, ids.data_ptr(), ids.shape, ids.element_size())

    def _take_array(self, ids):
        import numpy

        if ids.dtype not in (numpy.int32, numpy.int64):  # of this machine's byte order
            raise TypeError(f"ids are int32 or int64, not {ids.dtype}")
        shape, ids = ids.shape, numpy.ascontiguousarray(ids)
        self._set(ids, ids, shape, ids.itemsize)

    def _take_buffer(self, ids):
        try:
            view = memoryview(ids)
        except TypeError:
            view = memoryview(array_of(ids))
        native = "@=<" if sys.byteorder == "little" else "@=>"
        code = view.format[1:] if view.format[0] in native else view.format
        if code not in ("i", "l", "q") or view.itemsize not in (4, 8) or not view.c_contiguous:
            raise TypeError(f"ids are contiguous int32 or int64, not items of format {view.format!r}")
        self._set(view, view, view.shape, view.itemsize)

    def as_64_bit(self):
        """Where the ids lie as int64; the object keeps them."""
        if self.are_32_bit:
            ids = self.owner.long() if is_tensor(self.owner) else self._wider()
            self._set(ids, ids.data_ptr() if is_tensor(ids) else ids, self.shape, 8)
        return self.memory

    def _wider(self):
        return array.array("q", memoryview(self.owner).cast("B").cast("i"))


def array_of(ids):
    """Of a list, or of anything else that gives ints."""
    if isinstance(ids, (str, dict)) or not hasattr(ids, "__iter__"):
        raise TypeError(f"ids are ints: a tensor, an array, a buffer or a list, not {type(ids).__name__}")
    ids = list(ids)
    wrong = next((each for each in ids if isinstance(each, bool) or not hasattr(each, "__index__")), None)
    if wrong is not None:  # a bool would be a mask to PyTorch
        raise TypeError(f"ids are ints, not {type(wrong).__name__}")
    try:
        return array.array("q", ids)
    except OverflowError:
        raise IndexError("an id has more than 64 bits: it is no row of the table") from None


class Request:
    """Rows of a table, and where they go."""

    def __init__(self, table, ids, output):
        self.table, self.ids, self.output = table, ids, output
        self.shape = (*ids.shape, table.shape[1])

    def part(self, pruned_to_zero):
        ids = self.ids
        return (self.table._number, ids.memory, ids.n, ids.are_32_bit, self.memory,
                self.stride_nbytes, pruned_to_zero)

    def prepare_output(self):
        """Makes the output, or checks the one that was given."""
        if self.output is None:
            self.output = self._new()
        if is_tensor(self.output):
            self._use_tensor()
        elif is_array(self.output):
            self._use_array()
        else:
            self._use_buffer()

    def _new(self):
        if self.ids.is_array:
            import numpy

            return numpy.empty(self.shape, numpy_dtype(numpy, self.table.dtype))
        import torch

        return torch.empty(self.shape, dtype=getattr(torch, self.table.dtype))

    def _use_tensor(self):
        import torch

        out = torch.Tensor.detach(self.output)  # as ids are
        check_on_host(out, "the rows of out")
        if self.output.requires_grad or out.is_conj() or out.is_neg():
            raise ValueError("out requires gradients, is conjugate or negative: use out.detach()")
        self._check(out.dtype, getattr(torch, self.table.dtype), out.shape)
        self._set_stride(out.stride(), out.element_size())
        self.memory = out.data_ptr()

    def _use_array(self):
        import numpy

        out = self.output
        if not out.flags.writeable:
            raise ValueError("out is read-only")
        self._check(out.dtype, numpy_dtype(numpy, self.table.dtype), out.shape)
        self._set_stride([step / out.itemsize for step in out.strides], out.itemsize)
        self.memory = out

    def _use_buffer(self):
        try:
            view = memoryview(self.output)
        except TypeError:
            raise TypeError("out is a tensor, an array or a writable buffer, not "
                            f"{type(self.output).__name__}") from None
        nbytes = self.ids.n * self.table._row_nbytes
        if view.readonly or not view.c_contiguous or view.nbytes != nbytes:
            raise ValueError(f"out must be a writable, contiguous buffer of {nbytes} bytes")
        self.memory, self.stride_nbytes = view, self.table._row_nbytes

    def _check(self, dtype, expected, shape):
        if dtype != expected:
            raise TypeError(f"out has the dtype {dtype}, but the table {expected}")
        if tuple(shape) != self.shape:
            raise ValueError(f"out has the shape {list(shape)}, but the rows {list(self.shape)}")

    def _set_stride(self, strides, item_nbytes):
        step = row_stride(self.shape, strides)
        if step is None:
            raise ValueError("the rows of out are not contiguous, or not at equal distances")
        self.stride_nbytes = int(step) * item_nbytes


def checked_parts(parts):
    if not isinstance(parts, (list, tuple)) or not all(
            isinstance(part, (list, tuple)) and 2 <= len(part) <= 3 for part in parts):
        raise TypeError("parts are a list of (table, ids) or (table, ids, out)")
    return parts


def product(shape):
    n = 1
    for size in shape:
        n *= size
    return n


def row_stride(shape, strides):
    """Elements from one row of an output to the next; None: rows overlap, or have no one distance."""
    length = shape[-1]
    if 0 in shape:
        return length
    if length > 1 and strides[-1] != 1:
        return None
    found, expected = None, None
    for size, step in reversed(list(zip(shape[:-1], strides[:-1]))):
        if size == 1:
            continue
        if found is None:
            found = expected = step
        if step != expected:
            return None
        expected = step * size
    if found is None:
        return length
    return found if found >= length and found == int(found) else None


def count_of(ids):
    if not isinstance(ids, int):
        return Ids(ids).n
    if ids < 0:
        raise ValueError("a number of ids is not negative")
    return ids


class bad_id_is_index_error:
    """Of invalid arguments, ids are those that are left to the library; and a parent's cache."""

    def __init__(self, native):
        self._native = native

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if getattr(error, "status", "") == "BERTH_E_ARGUMENT":
            self._native.stats()  # a parent's cache: raises its own error
            raise IndexError(str(error)) from None
