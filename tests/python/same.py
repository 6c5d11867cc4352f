# SPDX-License-Identifier: BSD-3-Clause
"""Whether two values are the same to every eye: types, order, identity, sharing, bits, flags."""

import collections
import ctypes
import struct

import torch

SHARED = (str, bytes, bytearray, tuple, list, dict, set, complex, torch.Size, torch.Tensor,
          torch.TypedStorage, torch.UntypedStorage)


class Different(AssertionError):
    pass


def bytes_of(storage):
    """bytes(storage) makes a Python int of each byte: 2 s a MiB."""
    return ctypes.string_at(storage.data_ptr(), storage.nbytes())


class Comparison:
    """Walks both values side by side; what is one object in one must be one in the other."""

    def __init__(self, empty_are_shared=True, resizable=True):
        self.pairs = {}
        self.kept = []
        self.empty_are_shared = empty_are_shared or torch.__version__ >= (2, 15)
        self.resizable = resizable  # whether that must be the same, too

    def expect(self, mine, theirs, what):
        if mine != theirs:
            raise Different(f"{what}: {mine!r}, not {theirs!r}")

    def met(self, mine, theirs, where):
        """Whether both were met before, and then together."""
        known = self.pairs.get(("mine", mine)), self.pairs.get(("theirs", theirs))
        if known == (None, None):
            self.pairs["mine", mine], self.pairs["theirs", theirs] = theirs, mine
            return False
        self.expect(known, (theirs, mine), f"{where}: identity")
        return True

    def compare(self, mine, theirs, where=""):
        self.expect(type(mine), type(theirs), f"{where}: type")
        if isinstance(mine, SHARED) and mine is not theirs:
            self.kept.append((mine, theirs))
            if self.met(id(mine), id(theirs), where):
                return
        if isinstance(mine, torch.Tensor):
            self.tensor(mine, theirs, where)
        elif isinstance(mine, dict):
            self.dict(mine, theirs, where)
        elif isinstance(mine, (list, tuple)):
            self.expect(len(mine), len(theirs), f"{where}: length")
            for i, pair in enumerate(zip(mine, theirs)):
                self.compare(*pair, f"{where}[{i}]")
        elif isinstance(mine, torch.TypedStorage):
            self.expect(mine.dtype, theirs.dtype, f"{where}: dtype")
            self.storage(mine._untyped_storage, theirs._untyped_storage, where)
        elif isinstance(mine, torch.UntypedStorage):
            self.storage(mine, theirs, where)
        else:
            self.expect(self.bits(mine), self.bits(theirs), where)

    def bits(self, value):
        if type(value) is float:
            return struct.pack("d", value)
        if type(value) is complex:
            return struct.pack("dd", value.real, value.imag)
        return list(value) if type(value) is set else value

    def dict(self, mine, theirs, where):
        self.expect(len(mine), len(theirs), f"{where}: length")
        for (key, item), (their_key, their_item) in zip(mine.items(), theirs.items()):
            self.compare(key, their_key, f"{where}: key")
            self.compare(item, their_item, f"{where}[{key!r}]")
        if isinstance(mine, collections.OrderedDict):
            self.compare(dict(vars(mine)), dict(vars(theirs)), f"{where}.__dict__")

    # ---- tensors ----

    def storage(self, mine, theirs, where):
        self.expect(mine.nbytes(), theirs.nbytes(), f"{where}: size of the storage")
        if self.resizable:
            self.expect(mine.resizable(), theirs.resizable(), f"{where}: resizable")
        self.expect(mine.device, theirs.device, f"{where}: device")
        self.kept.append((mine, theirs))
        if (mine.nbytes() or self.empty_are_shared) and self.met(mine._cdata, theirs._cdata, where):
            return
        if mine.device.type == "cpu":
            self.expect(bytes_of(mine), bytes_of(theirs), f"{where}: bytes")

    def tensor(self, mine, theirs, where):
        state = torch._utils._get_obj_state
        self.compare(state(mine), state(theirs), f"{where}.__dict__")
        for name in ("dtype", "layout", "device", "requires_grad", "is_leaf", "is_nested",
                     "is_quantized", "grad"):
            self.expect(getattr(mine, name), getattr(theirs, name), f"{where}.{name}")
        if not mine.is_nested:
            self.expect(mine.shape, theirs.shape, f"{where}.shape")
        if mine.is_nested or mine.layout != torch.strided:
            self.parts(mine, theirs, where)
            return
        for name in ("stride", "storage_offset", "is_conj", "is_neg", "is_inference"):
            self.expect(getattr(mine, name)(), getattr(theirs, name)(), f"{where}.{name}()")
        if mine.is_quantized:
            self.quantizer(mine, theirs, where)
        self.storage(mine.untyped_storage(), theirs.untyped_storage(), where)

    def parts(self, mine, theirs, where):
        if mine.is_nested:
            names = ("values", "_nested_tensor_size", "_nested_tensor_strides",
                     "_nested_tensor_storage_offsets")
        elif mine.layout == torch.sparse_coo:
            names = ("_indices", "_values")
            self.expect(mine.is_coalesced(), theirs.is_coalesced(), f"{where}.is_coalesced()")
        elif mine.layout in (torch.sparse_csr, torch.sparse_bsr):
            names = ("crow_indices", "col_indices", "values")
        else:
            names = ("ccol_indices", "row_indices", "values")
        for name in names:
            self.tensor(getattr(mine, name)().detach(), getattr(theirs, name)().detach(),
                        f"{where}.{name}()")

    def quantizer(self, mine, theirs, where):
        self.expect(mine.qscheme(), theirs.qscheme(), f"{where}.qscheme()")
        if mine.qscheme() == torch.per_tensor_affine:
            names = ("q_scale", "q_zero_point")
        else:
            names = ("q_per_channel_axis",)
            for name in ("q_per_channel_scales", "q_per_channel_zero_points"):
                pair = getattr(mine, name)(), getattr(theirs, name)()
                self.expect(pair[0].tolist(), pair[1].tolist(), f"{where}.{name}()")
        for name in names:
            self.expect(getattr(mine, name)(), getattr(theirs, name)(), f"{where}.{name}()")


def same(mine, theirs, **how):
    Comparison(**how).compare(mine, theirs)
