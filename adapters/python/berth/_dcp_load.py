# SPDX-License-Identifier: BSD-3-Clause
"""berth.dcp.load: each rank reads its slices of a plain file, in place."""

from typing import NamedTuple

import torch

from berth import _native, _sparse
from berth._counters import count
from berth._dcp_group import Group, Interrupts
from berth._dcp_layout import Layout, is_dtensor
from berth._dcp_outline import MAPPINGS, SEQUENCES, is_dense, items_of
from berth._errors import load_alone, of_file, shown
from berth._load import MAPPED, READ
from berth._source import from_caller, is_path, is_url, name_of, source_of


class Keys(NamedTuple):
    """What a state and a file do not have in common, as paths "['model']['a.weight']".

    missing: in the state, not in the file; unexpected: in the file, not in the state
    """

    missing: list
    unexpected: list


def load(state, path, *, process_group=None, strict=True):
    """Loads a plain file, .pt or .safetensors, into the tensors of a state, of any mesh.

    Each rank reads only the elements that it has. Nothing in the file is run.

    state: a nested dict. Its tensors and DTensors get their elements in place, converted to their dtype.
        Other values are replaced by those of the file: dicts by key, lists of the same length by index,
        all else as a whole. Keys that the file does not have stay as they are.
    path: a path (str, bytes, os.PathLike) of a file that berth.save, berth.dcp.save or torch.save wrote,
        or of a .safetensors file; or a URL, a str, which each rank reads by ranges
    process_group: as of berth.dcp.save: all its ranks call this, and all raise if one of them does.
    strict: True: a key that the file does not have is an error; nothing is loaded then.

    Returns: Keys, of this rank.
    Raises, the same on all ranks, with the number of the rank before the message:
        ValueError: a key is missing; a tensor has another shape than in the file, or is no tensor there.
        What berth.open raises. After an error during reading the state holds some of the file.
        ^C is as in berth.dcp.save.
    Threads: one at a time for one process group.
    """
    loading = Loading(state, path, strict)

    def run(interrupts):
        group = Group(process_group, interrupts=interrupts, watches=is_url(path))
        group.step(loading.plan, lambda _: None)
        group.step(loading.read, lambda _: None)

    try:
        Interrupts().around(run)
    finally:
        loading.close()
    count("load", "values")
    return Keys(loading.missing, loading.unexpected)


class Loading:
    """One load, on one rank: first everything is compared, then read."""

    def __init__(self, state, path, strict):
        self._state, self._path, self._strict, self._file = state, from_caller(path), strict, None
        self.missing, self.unexpected = [], []
        self._reads, self._sets = [], []

    def plan(self):
        if not is_path(self._path):
            raise TypeError("berth.dcp.load loads from a path")
        if type(self._state) not in MAPPINGS:
            raise TypeError("berth.dcp.load loads into a dict")
        self._name = shown(name_of(self._path))
        with load_alone("berth.dcp"):
            self._file = _native.open(source_of(self._path), READ)
        value = value_without_bytes(self._file, self._path)
        if type(value) not in MAPPINGS:
            raise ValueError(f"{self._name} holds no dict, but {type(value).__name__}: use berth.load")
        self._match(self._state, value, "")
        if self._strict and self.missing:
            more = f" and {len(self.missing) - 1} more" if len(self.missing) > 1 else ""
            raise ValueError(f"{self._name} does not have {self.missing[0]}{more}: "
                             "strict=False loads the rest")

    def read(self):
        with torch.no_grad():
            for tensor, name in self._reads:
                self._read_tensor(tensor, name)
            for container, key, value, name in self._sets:
                container[key] = self._loaded(value, name)

    def close(self):
        if self._file:
            self._file.close()

    # ---- comparing ----

    def _match(self, state, value, name):
        """Two containers of the same kind."""
        pairs = items_of(state) if type(state) in MAPPINGS else enumerate(state)
        for key, item in list(pairs):
            path = f"{name}[{key!r}]"
            if type(value) in MAPPINGS and key not in value:
                self.missing.append(path)
            else:
                self._match_item(state, key, item, value[key], path)
        if type(value) in MAPPINGS:
            self.unexpected += [f"{name}[{key!r}]" for key in value if key not in state]

    def _match_item(self, state, key, item, value, path):
        if isinstance(item, torch.Tensor):
            self._match_tensor(item, value, path)
        elif type(item) in MAPPINGS and type(value) in MAPPINGS:
            self._match(item, value, path)
        elif type(item) in SEQUENCES and type(value) in SEQUENCES and len(item) == len(value) and (
                type(item) is list or _has_tensors(item)):
            self._match(item, value, path)
        elif _has_tensors(item):
            raise ValueError(f"{path} holds tensors in the state; in {self._name} it is another kind of "
                             "value, or of another length")
        elif type(state) is not tuple:
            self._sets.append((state, key, value, path))

    def _match_tensor(self, tensor, value, path):
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"{path} is a tensor in the state, and {type(value).__name__} in {self._name}")
        if not (is_dense(tensor) and is_dense(value)):
            raise ValueError(f"{path} is sparse, nested or quantized: use berth.load")
        if tensor.is_meta:
            raise ValueError(f"{path} has no memory in the state: it is on the device meta")
        if tensor.shape != value.shape:
            raise ValueError(f"{path} has the shape {list(tensor.shape)} in the state, and "
                             f"{list(value.shape)} in {self._name}")
        self._reads.append((tensor, path))

    # ---- reading ----

    def _read_tensor(self, tensor, name):
        if not is_dtensor(tensor):
            bare = torch.Tensor.detach(tensor)  # without attributes, which a file may have named (Y5)
            if bare.numel():
                read_box(self._file, bare, name, (0,) * bare.dim(), tuple(bare.shape))
            return
        local = tensor.to_local()
        for box in Layout(tensor).boxes:
            read_box(self._file, box.of_shard(local), name, box.starts, box.lengths)

    def _loaded(self, value, name):
        """A value of the file, with its tensors."""
        if not _has_tensors(value):
            return value
        with of_file(self._name), _sparse.checked():
            return self._file.value(name, True, False, False, None, True, None)


def value_without_bytes(file, path):
    """The value of an open file; its tensors are on the device "meta"."""
    with of_file(shown(name_of(path))), _sparse.checked(checks=False):
        try:
            return file.value(None, False, False, True, None, True, None)
        except NotImplementedError:  # PyTorch has no quantized ones there: pages that nobody touches will do
            mapped = _native.open(source_of(path), MAPPED)
            try:
                return mapped.value(None, True, False, False, None, True, None)
            finally:
                mapped.close()


def read_box(file, tensor, name, starts, lengths):
    """Elements of a file's tensor: straight into the tensor's memory, if it is like the file's."""
    dtype, target = getattr(torch, file.tensor(name)[0]), tensor
    is_plain = tensor.device.type == "cpu" and not (tensor.is_conj() or tensor.is_neg())
    if not (is_plain and tensor.dtype == dtype and tensor.is_contiguous()):
        target = torch.empty(lengths, dtype=dtype)
    file.read_slice(name, starts, lengths, target.data_ptr(), target.nbytes)
    if target is not tensor:
        tensor.copy_(target)


def _has_tensors(value):
    if type(value) in MAPPINGS:
        return any(_has_tensors(item) for _, item in items_of(value))
    if type(value) in SEQUENCES:
        return any(map(_has_tensors, value))
    return isinstance(value, torch.Tensor)
