# SPDX-License-Identifier: BSD-3-Clause
"""Builds a Berth tree from Python values, with the same sharing of objects.

One Python object becomes one node, as one object has one place in a pickler's memo; tensors
that share an UntypedStorage share a berth_storage.
"""

import collections
import ctypes as c

import berth_ctypes as b
import torch

LAYOUTS = {getattr(torch, name.lower()): i for name, i in b.LAYOUTS.items()}
QSCHEMES = {getattr(torch, name): i for name, i in b.QSCHEMES.items() if hasattr(torch, name)}
DTYPES = {getattr(torch, name): i for name, i in b.DTYPES.items() if hasattr(torch, name)}
TYPED = torch.storage._dtype_to_storage_type_map()


def int64s(values):
    return (c.c_int64 * len(values))(*values)


def pointers(values):
    return (c.c_void_p * len(values))(*values)


def twos_complement(number):
    nbytes = number.bit_length() // 8 + 1
    return number.to_bytes(nbytes, "little", signed=True)


class Tree:
    ready = None  # an event behind which the bytes of tensors on devices are there

    def __init__(self, value):
        self.kept = []  # objects, so that their ids stay theirs
        self.nodes = {}
        self.storages = {}
        self.tree = b.check(b.berth_tree_new)
        self.root = self.build(value)
        b.check(b.berth_tree_error, self.tree)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        b.berth_tree_free(self.tree)

    def save(self, path):
        b.check(b.berth_save, str(path).encode(), self.root, None)

    def plan(self, path=None):
        """[(name, nbytes, header offset, data offset)] and the file's size."""
        target = b.to_path(path.encode()) if path else None
        records, record, info = [], b.Record(), b.PlanInfo()
        plan = b.check(b.berth_plan_new, target, b.of_value(self.root), None, c.byref(info))
        for i in range(info.n_records):
            b.berth_plan_at(plan, i, c.byref(record))
            records.append((record.name.decode(), record.nbytes, record.header_offset, record.offset))
        b.berth_plan_free(plan)
        return records, info.nbytes

    # ---- values ----

    def build(self, value):
        node = self.nodes.get(id(value))
        if node:
            return node
        node = self.make(value)
        if not node:
            b.check(b.berth_tree_error, self.tree)
            raise b.BerthError(f"no node for a {type(value).__name__}")
        if type(value) not in (int, float):
            self.remember(value, node)
        return node

    def remember(self, value, node):
        self.kept.append(value)
        self.nodes[id(value)] = node
        return node

    def make(self, value):
        if isinstance(value, torch.Tensor):
            return self.make_any_tensor(value)
        for kind, maker in self.MAKERS:
            if type(value) is kind:
                return maker(self, value)
        raise TypeError(f"no value of a checkpoint: {type(value)}")

    def make_int(self, value):
        if -(2**63) <= value < 2**63:
            return b.berth_make_int(self.tree, value)
        data = twos_complement(value)
        return b.berth_make_bytes(self.tree, b.KINDS["INT"], data, len(data))

    def make_str(self, value):
        data = value.encode("utf-8", "surrogatepass")
        return b.berth_make_str(self.tree, data, len(data))

    def make_list(self, value):
        node = self.remember(value, b.berth_make_list(self.tree))
        for item in value:
            b.berth_list_append(node, self.build(item))
        return node

    def make_set(self, value):
        node = b.berth_make_set(self.tree)
        for item in list(value):
            b.berth_set_add(node, self.build(item))
        return node

    def make_tuple(self, value):
        return b.berth_make_tuple(self.tree, pointers([self.build(item) for item in value]), len(value))

    def fill(self, node, value):
        for key, item in value.items():
            b.berth_dict_set_value(node, self.build(key), self.build(item))
        return node

    def make_dict(self, value):
        return self.fill(self.remember(value, b.berth_make_dict(self.tree, b.KINDS["DICT"])), value)

    def make_ordered_dict(self, value):
        node = self.remember(value, b.berth_make_dict(self.tree, b.KINDS["ORDERED_DICT"]))
        self.fill(node, value)
        if value.__dict__:
            b.berth_value_set_state(node, self.build(value.__dict__))
        return node

    MAKERS = [
        (type(None), lambda self, v: b.berth_make_none(self.tree)),
        (bool, lambda self, v: b.berth_make_bool(self.tree, v)),
        (int, make_int),
        (float, lambda self, v: b.berth_make_float(self.tree, v)),
        (complex, lambda self, v: b.berth_make_complex(self.tree, v.real, v.imag)),
        (str, make_str),
        (bytes, lambda self, v: b.berth_make_bytes(self.tree, b.KINDS["BYTES"], v, len(v))),
        (bytearray, lambda self, v: b.berth_make_bytes(self.tree, b.KINDS["BYTEARRAY"], bytes(v), len(v))),
        (list, make_list),
        (tuple, make_tuple),
        (set, make_set),
        (dict, make_dict),
        (collections.OrderedDict, make_ordered_dict),
        (collections.Counter, lambda self, v: self.fill(b.berth_make_dict(self.tree, b.KINDS["COUNTER"]), v)),
        (torch.Size, lambda self, v: b.berth_make_size(self.tree, int64s(v), len(v))),
        (torch.device, lambda self, v: b.berth_make_device(
            self.tree, v.type.encode(), -1 if v.index is None else v.index)),
        (torch.dtype, lambda self, v: b.berth_make_constant(self.tree, b.KINDS["DTYPE"], DTYPES[v])),
        (torch.qscheme, lambda self, v: b.berth_make_constant(self.tree, b.KINDS["QSCHEME"], QSCHEMES[v])),
        (torch.layout, lambda self, v: b.berth_make_constant(self.tree, b.KINDS["LAYOUT"], LAYOUTS[v])),
        (torch.UntypedStorage, lambda self, v: b.berth_make_storage(self.tree, self.storage(v))),
        (torch.TypedStorage, lambda self, v: b.berth_make_storage(
            self.tree, self.storage(v._untyped_storage, v.dtype))),
    ]

    # ---- tensors ----

    def storage(self, untyped, dtype=None):
        """The berth_storage of an UntypedStorage, made at first meeting."""
        node = self.storages.get(untyped._cdata)
        if not node:
            nbytes = untyped.nbytes()
            kind = DTYPES[dtype] if dtype in TYPED and nbytes % dtype.itemsize == 0 else 0
            node = self.new_storage(untyped, kind)
            self.kept.append(untyped)
            self.storages[untyped._cdata] = node
        return node

    def new_storage(self, untyped, kind):
        location = torch.serialization.location_tag(untyped).encode()
        if untyped.device.type != "cpu":
            return b.berth_device_storage_new(self.tree, kind, untyped.data_ptr(), untyped.nbytes(),
                                              location, self.ready)
        return b.berth_storage_new(self.tree, kind, untyped.data_ptr(), untyped.nbytes(), location)

    def attributes(self, value):
        state = torch._utils._get_obj_state(value)
        if state:
            self.kept.append(state)
        return state

    def make_any_tensor(self, value):
        state = self.attributes(value)
        if isinstance(value, torch.nn.Parameter):
            data = value.data
            self.kept.append(data)
            node = b.berth_make_parameter(self.tree, self.make_tensor(data), value.requires_grad)
        else:
            node = self.make_tensor(value)
        if state:
            node = b.berth_make_subclass(self.tree, node, self.build(state))
        return node

    def parts(self, *tensors):
        self.kept += tensors
        return pointers([self.build(tensor) for tensor in tensors])

    def make_sparse(self, value):
        if value.layout == torch.sparse_coo:
            parts = self.parts(value._indices(), value._values())
        elif value.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = self.parts(value.crow_indices(), value.col_indices(), value.values())
        else:
            parts = self.parts(value.ccol_indices(), value.row_indices(), value.values())
        coalesced = value.layout == torch.sparse_coo and value.is_coalesced()
        shape = int64s(value.size())
        return b.berth_make_sparse(self.tree, LAYOUTS[value.layout], shape, value.dim(), parts, coalesced)

    def make_tensor(self, value):
        if value.layout not in (torch.strided, torch.jagged):
            return self.make_sparse(value)
        if value.is_nested:
            return b.berth_make_nested(self.tree, self.parts(
                value.values(), value._nested_tensor_size(), value._nested_tensor_strides(),
                value._nested_tensor_storage_offsets()))
        tensor = b.Tensor(dtype=DTYPES[value.dtype], rank=value.dim(), shape=int64s(value.size()),
                          stride=int64s(value.stride()), storage_offset=value.storage_offset())
        tensor.flags = (value.requires_grad * b.REQUIRES_GRAD | value.is_conj() * b.CONJ
                        | value.is_neg() * b.NEG)
        if value.device.type == "meta":
            tensor.flags |= b.META
            tensor.storage_offset = 0
        else:
            tensor.storage = self.storage(value.untyped_storage(), value.dtype)
        if value.is_quantized:
            self.fill_quantized(tensor, value)
        return b.berth_make_tensor(self.tree, c.byref(tensor))

    def fill_quantized(self, tensor, value):
        tensor.qscheme = QSCHEMES[value.qscheme()]
        if value.qscheme() == torch.per_tensor_affine:
            tensor.scale, tensor.zero_point = value.q_scale(), value.q_zero_point()
        else:
            scales, zero_points = value.q_per_channel_scales(), value.q_per_channel_zero_points()
            tensor.scales, tensor.zero_points = self.parts(scales, zero_points)
            tensor.axis = value.q_per_channel_axis()
