# SPDX-License-Identifier: BSD-3-Clause
"""Says what a value is, in plain tuples that compare: once from PyTorch's side, once from Berth's.

Every list, dict, tuple, set and tensor gets a number when it is met, and is told as that number
when it is met again, so that equal descriptions mean equal sharing. Storages are told the same
way: number, bytes, SHA-256 of the bytes.
"""

import collections
import ctypes as c
import hashlib
import struct
import types

import berth_ctypes as b
import torch
from torch.serialization import StorageType

SHORT = {torch.Tensor: "tensor"}
LAYOUT_NAMES = {i: "torch." + name.lower() for name, i in b.LAYOUTS.items()}
QSCHEME_NAMES = {i: "torch." + name for name, i in b.QSCHEMES.items()}


def digest(address, nbytes):
    """Large storages are sparse: their first and last MiB tell."""
    if not address or not nbytes:
        return ""
    total = hashlib.sha256()
    edge = 1 << 20
    total.update(c.string_at(address, min(nbytes, edge)))
    if nbytes > edge:
        first = nbytes - edge if nbytes > 1 << 28 else edge
        total.update(c.string_at(address + first, nbytes - first))
    return total.hexdigest()[:16]


def bits(number):
    return struct.pack(">d", number).hex()


class Numbers:
    """Numbers by first meeting."""

    def __init__(self):
        self.numbers = {}
        self.kept = []

    def again(self, key, keep=None):
        """The number of what was met before, or None and a new number."""
        if key in self.numbers:
            return self.numbers[key]
        self.numbers[key] = len(self.numbers)
        self.kept.append(keep)
        return None


class FromTorch:
    def __init__(self, data=True):
        self.nodes = Numbers()
        self.storages = Numbers()
        self.data = data
        self.offsets = []  # of each tensor's storage in the file, under FakeTensorMode

    def describe(self, value):
        if isinstance(value, (list, tuple, dict, set, torch.Tensor)) and value != ():
            number = self.nodes.again(id(value), value)
            if number is not None:
                return ("again", number)
        if isinstance(value, torch.Tensor):
            return self.any_tensor(value)
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, StorageType)):
            return ("global",)
        kind = type(value).__name__
        if isinstance(value, torch.Size):
            return (kind, tuple(value))
        if isinstance(value, (list, tuple)):
            return (kind, *[self.describe(item) for item in value])
        if isinstance(value, dict):
            return self.any_dict(kind, value)
        if isinstance(value, set):
            return (kind, *sorted(repr(self.describe(item)) for item in value))
        if isinstance(value, float):
            return (kind, bits(value))
        if isinstance(value, complex):
            return (kind, bits(value.real), bits(value.imag))
        if isinstance(value, torch.storage.TypedStorage):
            return ("storage", str(value.dtype), self.storage(value._untyped_storage))
        if isinstance(value, torch.storage.UntypedStorage):  # torch.load gives back a typed one
            return ("storage", "torch.uint8", self.storage(value))
        if isinstance(value, bytearray):
            return (kind, bytes(value))
        return (kind, str(value) if not isinstance(value, (int, str, bytes)) else value)

    def any_dict(self, kind, value):
        pairs = [(self.describe(key), self.describe(item)) for key, item in value.items()]
        state = getattr(value, "__dict__", None)
        return (kind, *pairs, self.describe(state) if state else None)

    def storage(self, untyped):
        number = self.storages.again(untyped._cdata, untyped)
        if number is not None:
            return number
        number = len(self.storages.numbers) - 1
        if not self.data:
            return (number, untyped.nbytes())
        return (number, untyped.nbytes(), digest(untyped.cpu().data_ptr(), untyped.nbytes()))

    def any_tensor(self, value):
        state = torch._utils._get_obj_state(value)
        if isinstance(value, torch.nn.Parameter):
            inner = ("Parameter", value.requires_grad, self.tensor(value.data))
        else:
            inner = self.tensor(value)
        return ("attributes", inner, self.describe(state)) if state else inner

    def tensor(self, value):
        if value.layout not in (torch.strided, torch.jagged):
            return self.sparse(value)
        if value.is_nested:
            return ("nested", *[self.tensor(part) for part in (
                value.values(), value._nested_tensor_size(), value._nested_tensor_strides(),
                value._nested_tensor_storage_offsets())])
        meta = value.device.type == "meta" and self.data
        self.offsets.append(getattr(value.untyped_storage(), "_checkpoint_offset", None))
        return ("tensor", str(value.dtype), tuple(value.size()), tuple(value.stride()),
                0 if meta else value.storage_offset(), value.requires_grad, value.is_conj(),
                value.is_neg(), self.quantizer(value),
                "meta" if meta else self.storage(value.untyped_storage()))

    def quantizer(self, value):
        if not value.is_quantized:
            return None
        if value.qscheme() == torch.per_tensor_affine:
            return (str(value.qscheme()), bits(value.q_scale()), value.q_zero_point())
        # PyTorch writes float parameters' scheme as per_channel_affine, too.
        return ("torch.per_channel_affine", self.tensor(value.q_per_channel_scales()),
                self.tensor(value.q_per_channel_zero_points()), value.q_per_channel_axis())

    def sparse(self, value):
        if value.layout == torch.sparse_coo:
            parts = [value._indices(), value._values()]
        elif value.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = [value.crow_indices(), value.col_indices(), value.values()]
        else:
            parts = [value.ccol_indices(), value.row_indices(), value.values()]
        coalesced = value.layout == torch.sparse_coo and value.is_coalesced()
        return ("sparse", str(value.layout), tuple(value.size()), coalesced,
                *[self.tensor(part) for part in parts])


class FromBerth:
    """An opened checkpoint. Names of kinds are those of Python's types."""

    def __init__(self, path, data=True):
        self.nodes = Numbers()
        self.storages = Numbers()
        self.data = data
        self.met = []  # the storage of each tensor
        handle = c.c_void_p()
        b.check(b.berth_open, str(path).encode(), None, c.byref(handle))
        self.checkpoint = handle.value

    def __enter__(self):
        return self

    def __exit__(self, *_):
        b.berth_close(self.checkpoint)

    def root(self):
        return self.describe(b.berth_root(self.checkpoint))

    def info(self):
        info = b.Info()
        b.check(b.berth_get_info, self.checkpoint, c.byref(info))
        return info

    def offsets(self):
        """Of each tensor's storage in the file, in the order in which they were described."""
        places, named = {}, b.NamedTensor()
        for i in range(b.berth_tensor_count(self.checkpoint)):
            b.check(b.berth_tensor_at, self.checkpoint, i, c.byref(named))
            tensor = named.tensor.contents
            item_nbytes = getattr(torch, b.DTYPE_NAMES[tensor.dtype]).itemsize
            empty = 0 in tensor.shape[:tensor.rank]  # then its offset is its storage's
            place = named.offset - (0 if empty else item_nbytes * tensor.storage_offset)
            if places.setdefault(tensor.storage, place) != place:
                raise b.BerthError(f"{named.name.decode()}: one storage in two places")
        return [places.get(storage) for storage in self.met]

    # ---- values ----

    def describe(self, node):
        kind = b.KIND_NAMES[b.berth_value_kind(node)] if node else "NONE"
        numbered = ("LIST", "TUPLE", "DICT", "ORDERED_DICT", "COUNTER", "SET", "SIZE", "TENSOR", "SPARSE",
                    "NESTED", "PARAMETER", "SUBCLASS")
        empty = kind in ("TUPLE", "SIZE") and not b.berth_value_count(node)
        if kind in numbered and not empty:
            number = self.nodes.again(node)
            if number is not None:
                return ("again", number)
        if kind == "GLOBAL":
            return ("global",)
        return getattr(self, kind.lower())(node)

    def none(self, node):
        return ("NoneType", "None")

    def bool(self, node):
        number = c.c_int()
        b.berth_as_constant(node, b.KINDS["BOOL"], c.byref(number))
        return ("bool", bool(number.value))

    def int(self, node):
        small = c.c_int64()
        if b.berth_as_int(node, c.byref(small)):
            return ("int", small.value)
        nbytes = c.c_size_t()
        data = b.berth_as_bytes(node, c.byref(nbytes))
        return ("int", int.from_bytes(c.string_at(data, nbytes.value), "little", signed=True))

    def float(self, node):
        value = c.c_double()
        b.berth_as_float(node, c.byref(value))
        return ("float", bits(value.value))

    def complex(self, node):
        real, imaginary = c.c_double(), c.c_double()
        b.berth_as_complex(node, c.byref(real), c.byref(imaginary))
        return ("complex", bits(real.value), bits(imaginary.value))

    def text(self, node):
        nbytes = c.c_size_t()
        data = b.berth_as_text(node, c.byref(nbytes))
        return c.string_at(data, nbytes.value).decode("utf-8", "surrogatepass")

    def str(self, node):
        return ("str", self.text(node))

    def raw(self, node):
        nbytes = c.c_size_t()
        data = b.berth_as_bytes(node, c.byref(nbytes))
        return c.string_at(data, nbytes.value) if nbytes.value else b""

    def bytes(self, node):
        return ("bytes", self.raw(node))

    def bytearray(self, node):
        return ("bytearray", self.raw(node))

    def items(self, node):
        return [self.describe(b.berth_value_at(node, i)) for i in range(b.berth_value_count(node))]

    def list(self, node):
        return ("list", *self.items(node))

    def tuple(self, node):
        return ("tuple", *self.items(node))

    def set(self, node):
        return ("set", *sorted(repr(item) for item in self.items(node)))

    def pairs(self, name, node):
        pairs = []
        for i in range(b.berth_value_count(node)):
            key, item = c.c_void_p(), c.c_void_p()
            b.berth_dict_at(node, i, c.byref(key), c.byref(item))
            name_of_key = self.describe(key.value)
            pairs.append((name_of_key, self.describe(item.value)))
        state = b.berth_value_part(node, b.PARTS["STATE"])
        is_empty = not state or (b.KIND_NAMES[b.berth_value_kind(state)] == "DICT"
                                 and not b.berth_value_count(state))
        return (name, *pairs, None if is_empty else self.describe(state))

    def dict(self, node):
        return self.pairs("dict", node)

    def ordered_dict(self, node):
        return self.pairs("OrderedDict", node)

    def counter(self, node):
        return self.pairs("Counter", node)

    def shape(self, node):
        rank = c.c_int32()
        shape = b.berth_as_size(node, c.byref(rank))
        return tuple(shape[:rank.value])

    def size(self, node):
        return ("Size", self.shape(node))

    def device(self, node):
        return ("device", self.text(node))

    def constant(self, node, kind):
        number = c.c_int()
        b.berth_as_constant(node, b.KINDS[kind], c.byref(number))
        return number.value

    def dtype(self, node):
        return ("dtype", "torch." + b.DTYPE_NAMES[self.constant(node, "DTYPE")])

    def qscheme(self, node):
        return ("qscheme", QSCHEME_NAMES[self.constant(node, "QSCHEME")])

    def layout(self, node):
        return ("layout", LAYOUT_NAMES[self.constant(node, "LAYOUT")])

    # ---- tensors ----

    def storage(self, node):
        storage = b.berth_as_storage(node)
        dtype = b.DTYPE_NAMES.get(b.berth_storage_get_info(storage)[0].dtype, "uint8")
        return ("storage", f"torch.{dtype}", self.storage_of(storage))

    def storage_of(self, storage):
        number = self.storages.again(storage)
        if number is not None:
            return number
        number = len(self.storages.numbers) - 1
        nbytes = b.berth_storage_get_info(storage)[0].nbytes
        if not self.data:
            return (number, nbytes)
        return (number, nbytes, self.digest_of(storage, nbytes))

    def digest_of(self, storage, nbytes):
        address = b.storage_data(self.checkpoint, storage) if nbytes else None
        return digest(address, nbytes)

    def tensor(self, node):
        tensor = b.berth_as_tensor(node).contents
        self.met.append(tensor.storage)
        return ("tensor", "torch." + b.DTYPE_NAMES[tensor.dtype], tuple(tensor.shape[:tensor.rank]),
                tuple(tensor.stride[:tensor.rank]), tensor.storage_offset,
                bool(tensor.flags & b.REQUIRES_GRAD), bool(tensor.flags & b.CONJ),
                bool(tensor.flags & b.NEG), self.quantizer(tensor),
                "meta" if tensor.flags & b.META else self.storage_of(tensor.storage))

    def quantizer(self, tensor):
        if not tensor.qscheme:
            return None
        name = QSCHEME_NAMES[tensor.qscheme]
        if tensor.scales:
            return (name, self.tensor(tensor.scales), self.tensor(tensor.zero_points), tensor.axis)
        return (name, bits(tensor.scale), tensor.zero_point)

    def parts(self, node):
        return [self.tensor(b.berth_value_at(node, i)) for i in range(b.berth_value_count(node))]

    def sparse(self, node):
        coalesced = bool(b.berth_value_flags(node) & b.COALESCED)
        return ("sparse", LAYOUT_NAMES[self.constant(node, "LAYOUT")], self.shape(node), coalesced,
                *self.parts(node))

    def nested(self, node):
        return ("nested", *self.parts(node))

    def any(self, node):
        """A tensor that is inside of another value: not numbered."""
        return getattr(self, b.KIND_NAMES[b.berth_value_kind(node)].lower())(node)

    def parameter(self, node):
        inner = self.any(b.berth_value_part(node, b.PARTS["INNER"]))
        return ("Parameter", bool(b.berth_value_flags(node) & b.REQUIRES_GRAD), inner)

    def subclass(self, node):
        inner = self.any(b.berth_value_part(node, b.PARTS["INNER"]))
        return ("attributes", inner, self.describe(b.berth_value_part(node, b.PARTS["STATE"])))


def difference(one, other, path="root"):
    """Where two descriptions part, in one line; None if they are equal."""
    if one == other:
        return None
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        for i, (mine, others) in enumerate(zip(one, other)):
            found = difference(mine, others, f"{path}[{i}]")
            if found:
                return found
    return f"{path}: {str(one)[:150]} is not {str(other)[:150]}"
