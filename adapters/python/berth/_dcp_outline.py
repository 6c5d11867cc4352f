# SPDX-License-Identifier: BSD-3-Clause
"""From the states of all ranks to one outline: the value that a joint save saves.

The outline is the coordinator's state. A DTensor becomes a tensor that is elsewhere; a dict gets the keys
that only other ranks have, by rank. Containers are copied, so that a program may change its own.
"""

import collections
import copy
import io
import pickle
import sys

import torch

from berth._dcp_layout import Box, Layout, is_dtensor
from berth._errors import declined

MAPPINGS = (dict, collections.OrderedDict)
SEQUENCES = (list, tuple)


def items_of(mapping):
    """Its items; an OrderedDict of a file can have an attribute `items`, which is not called (Y5)."""
    return type(mapping).items(mapping)


class Elsewhere:
    """A tensor whose bytes writers have. It is pickled without what this process has of it.

    facts: (dtype, shape, requires_grad, is_parameter, key): tensors with one key share a storage
    keys: the way to it, from the root of the state
    rank: the only writer that has it; None: each has pieces of it
    pieces: [(box of the whole, its elements: contiguous, on the host)] that this process has
    n_copies, copy: so many processes have the same pieces, and this is number `copy` of them
    """

    def __init__(self, facts, keys, rank=None):
        self.facts, self.keys, self.rank = facts, keys, rank
        self.dtype, self.shape = facts[:2]
        self.pieces, self.n_copies, self.copy = [], 1, 0

    def __getstate__(self):
        return {**self.__dict__, "pieces": []}



def facts_of(tensor, key):
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return tensor.dtype, tuple(tensor.shape), tensor.requires_grad, is_parameter, key


def outline_of(state, rank, is_snapshot):
    """The outline of one rank's state.

    rank: None: the coordinator's, whose plain tensors stay as they are; else those are elsewhere, too
    is_snapshot: all tensors are copied
    """
    with torch.no_grad():
        return Outliner(rank, is_snapshot).copy(state, ())


class Outliner:
    def __init__(self, rank, is_snapshot):
        self._rank, self._is_snapshot = rank, is_snapshot
        self._known, self._keys, self._copies = {}, {}, {}

    def copy(self, value, keys):
        """Each object once: what is one object in the state is one in the outline."""
        known = self._known.get(id(value))
        if known is not None:
            return known
        made = self._make(value, keys)
        if made is not value:
            self._known[id(value)] = made
        return made

    def _make(self, value, keys):
        kind = type(value)
        if kind in MAPPINGS:
            return self._copy_mapping(value, keys)
        if kind in SEQUENCES:
            return self._copy_sequence(value, keys)
        if is_dtensor(value):
            return self._shard(value, keys)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, keys)
        return value

    def _copy_mapping(self, value, keys):
        made = self._known[id(value)] = type(value)()  # it may hold itself
        if getattr(value, "__dict__", None):  # _metadata of a state_dict
            made.__dict__.update(value.__dict__)
        for key, item in items_of(value):
            made[key] = self.copy(item, (*keys, key))
        return made

    def _copy_sequence(self, value, keys):
        if type(value) is tuple:
            return tuple(self.copy(item, (*keys, i)) for i, item in enumerate(value))
        made = self._known[id(value)] = []
        for i, item in enumerate(value):
            made.append(self.copy(item, (*keys, i)))
        return made

    def _shard(self, value, keys):
        layout = Layout(value)
        local = value.to_local()
        how = tuple(value.shape), value.device_mesh, value.placements
        made = Elsewhere(facts_of(value, self._key_of(local, how)), keys)
        local = self._on_host(local)
        made.pieces = [(box, box.of_shard(local).contiguous()) for box in layout.boxes]
        made.n_copies, made.copy = layout.n_copies, layout.copy
        return made

    def _tensor(self, value, keys):
        if self._rank is None:
            return self._snapshot(value, keys) if self._is_snapshot else value
        is_plain = type(value) in (torch.Tensor, torch.nn.Parameter) and not value.is_meta
        if not (is_plain and is_dense(value)):
            return Refused(value)
        bare = torch.Tensor.detach(value)  # without attributes, which a file may have named (Y5)
        made = Elsewhere(facts_of(value, self._key_of(bare, None)), keys, self._rank)
        made.pieces = [(Box((0,) * bare.dim(), tuple(bare.shape)), self._on_host(bare))]
        return made

    def _key_of(self, local, how):
        """One object for all tensors that have the same elements: tied parameters. Others have their own."""
        if local.numel() == 0:
            return Key()
        place = local.data_ptr(), local.dtype, tuple(local.shape), local.stride(), how
        return self._keys.setdefault(place, Key())

    def _on_host(self, tensor):
        made = on_host(tensor)
        return made.clone() if self._is_snapshot and made.data_ptr() == tensor.data_ptr() else made

    def _snapshot(self, value, keys):
        """Tensors that share a storage do so in the copy, too. What is copied has no attributes of a file (Y5)."""
        grad = value.requires_grad
        made = copy.deepcopy(torch.Tensor.detach(value), self._copies)
        if type(value) is torch.nn.Parameter:
            made = torch.Tensor._make_subclass(torch.nn.Parameter, made, grad)
        else:
            made.requires_grad_(grad)
        self._known[id(value)] = made  # an attribute may hold it
        vars(made).update(self.copy(vars(value), keys))
        return made


def on_host(tensor):
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()


class Key:
    """Of a storage; one object is one storage, also when it was pickled."""


class Refused:
    """A tensor that only another rank than the coordinator has, and that has no plain elements."""

    def __init__(self, tensor):
        self.text = f"{type(tensor).__name__} of the layout {tensor.layout}"


def is_dense(tensor):
    return tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested)


# ---- keys that only some ranks have ----


def tree_of(value):
    """The keys of dicts in dicts: {key: tree or None}."""
    return _tree_of(value, set())


def _tree_of(value, seen):
    if type(value) not in MAPPINGS or id(value) in seen:
        return None
    seen.add(id(value))
    return {key: _tree_of(item, seen) for key, item in items_of(value)}


def extras_of(value, tree, keys=()):
    """[(keys of a dict, key, item)]: the items that a tree has no keys for; in order."""
    found = []
    if tree is None or type(value) not in MAPPINGS:
        return found
    for key, item in items_of(value):
        if key not in tree:
            _check(item, (*keys, key))
            found.append((keys, key, item))
        else:
            found += extras_of(item, tree[key], (*keys, key))
    return found


class Pickler(pickle.Pickler):
    """Texts that Python interns, such as "exp_avg" in a program, are the same object again on the other side.

    So one text is once in the file, as if one process had the whole state.
    """

    def persistent_id(self, value):
        return value if type(value) is str and sys.intern(value) is value else None


class Unpickler(pickle.Unpickler):
    def persistent_load(self, text):
        return sys.intern(text)


def pickled(value):
    buffer = io.BytesIO()
    Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def unpickled(data):
    return Unpickler(io.BytesIO(data)).load()


def _check(item, keys):
    """Raises TypeError: something in it cannot be saved from another rank than the coordinator."""
    if isinstance(item, Refused):
        raise declined([f"[{key!r}]" for key in reversed(keys)],
                       f"a tensor ({item.text}) that the coordinator does not have")
    if type(item) in MAPPINGS:
        for key, each in items_of(item):
            _check(each, (*keys, key))
    elif type(item) in SEQUENCES:
        for i, each in enumerate(item):
            _check(each, (*keys, i))


def merge(value, extras):
    """Adds the extras of one rank. What a rank before has added stays."""
    for keys, key, item in extras:
        _merge_item(lookup(value, keys), key, item)


def _merge_item(parent, key, item):
    if key not in parent:
        parent[key] = item
    elif type(item) in MAPPINGS and type(parent[key]) in MAPPINGS:
        for each, inner in items_of(item):
            _merge_item(parent[key], each, inner)


def lookup(value, keys):
    """The value at the end of a way; None: this rank has none."""
    for key in keys:
        try:
            value = value[key] if type(value) in (*MAPPINGS, *SEQUENCES) else None
        except (KeyError, IndexError, TypeError):
            return None
    return value
