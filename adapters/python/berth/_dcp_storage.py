# SPDX-License-Identifier: BSD-3-Clause
"""berth.dcp.Writer and Reader: storages of torch.distributed.checkpoint that are one plain file."""

import io
import os

import torch
from torch.distributed.checkpoint import StorageReader, StorageWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from berth import _native
from berth._dcp_group import Group, Interrupts
from berth._dcp_layout import Box
from berth._dcp_load import read_box, value_without_bytes
from berth._dcp_outline import Elsewhere, Key, is_dense, items_of, on_host
from berth._dcp_save import Saving
from berth._errors import load_alone
from berth._load import READ, load
from berth._source import is_path, source_of


class Writer(StorageWriter):
    """Saves one plain file: torch.distributed.checkpoint.save(state, storage_writer=berth.dcp.Writer(path)).

    The planner of PyTorch decides what is saved: it makes keys texts, drops empty dicts, and gives up types,
    ties and order. So only the values are promised. berth.dcp.save keeps all of these.

    path: of the file; checkpoint_id, if it is given, takes its place
    process_group: the one that torch.distributed.checkpoint.save gets
    Raises: what berth.dcp.save raises, as a CheckpointException of PyTorch.
    """

    def __init__(self, path=None, *, process_group=None):
        self._path, self._process_group = path, process_group

    def reset(self, checkpoint_id=None):
        self._path = self._path if checkpoint_id is None else checkpoint_id

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        pass

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def write_data(self, plan, planner):
        """All ranks are here at once: the file is complete when this returns."""
        def run(interrupts):
            group = Group(self._process_group, interrupts=interrupts)
            PlanSaving((plan, planner), self._path, group).run(group)

        Interrupts().around(run)
        done = torch.futures.Future()
        done.set_result([WriteResult(item.index, item.tensor_storage_size() or 0, os.fspath(self._path))
                         for item in plan.items])
        return done

    def finish(self, metadata, results):
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return is_path(checkpoint_id)


class PlanSaving(Saving):
    """A save of what PyTorch plans. A list is a dict of int keys until the coordinator has all of it."""

    def _outline_of(self, state, is_snapshot):
        plan, planner = state
        mappings, outline = getattr(planner, "mappings", None) or {}, {}
        for item in plan.items:
            keys = tuple(mappings.get(item.index.fqn, (item.index.fqn,)))
            if item.type == WriteItemType.BYTE_IO:
                data = planner.resolve_data(item)
                data.seek(0)
                _put(outline, keys, load(data))
            else:
                self._add_piece(outline, keys, item, planner)
        return outline

    def _add_piece(self, outline, keys, item, planner):
        data, parent = item.tensor_data, _put(outline, keys[:-1], {})
        facts = data.properties.dtype, tuple(data.size), False, False, Key()
        tensor = parent.setdefault(keys[-1], Elsewhere(facts, keys))
        box = Box(tuple(data.chunk.offsets), tuple(data.chunk.sizes))
        tensor.pieces.append((box, on_host(planner.resolve_data(item))))

    def _merge(self, extras):
        super()._merge(extras)
        self._outline = _with_lists(self._outline)


def _put(value, keys, item):
    """Puts an item at the end of a way of dicts, if nothing is there. Returns: what is there."""
    for key in keys[:-1]:
        value = value.setdefault(key, {})
    return value.setdefault(keys[-1], item) if keys else value


def _with_lists(value):
    if type(value) is not dict:
        return value
    made = {key: _with_lists(item) for key, item in items_of(value)}
    if made and all(type(key) is int for key in made):
        return [made[key] for key in sorted(made)]
    return made


class Reader(StorageReader):
    """Loads a plain file: torch.distributed.checkpoint.load(state, storage_reader=berth.dcp.Reader(path)).

    path: of a .pt or .safetensors file, of whatever wrote it; checkpoint_id, if it is given, takes its place
    Each rank reads only what its plan names. Nothing in the file is run.
    """

    def __init__(self, path=None):
        self._path, self._file, self._items = path, None, {}

    def reset(self, checkpoint_id=None):
        self._path = self._path if checkpoint_id is None else checkpoint_id

    def read_metadata(self, *args, **kwargs):
        with load_alone("berth.dcp"):
            self._file = _native.open(source_of(self._path), READ)
        self._items = {}
        for keys, path, item in _leaves(value_without_bytes(self._file, self._path), (), ""):
            self._items[".".join(map(str, keys))] = keys, path, item
        return Metadata({name: _metadata_of(item, path) for name, (_, path, item) in self._items.items()},
                        planner_data={name: keys for name, (keys, _, _) in self._items.items()})

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        pass

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def read_data(self, plan, planner):
        with torch.no_grad():
            for item in plan.items:
                self._read(item, planner)
        self._file.close()
        done = torch.futures.Future()
        done.set_result(None)
        return done

    def _read(self, item, planner):
        _, path, value = self._items[item.storage_index.fqn]
        if item.type == LoadItemType.BYTE_IO:
            data = io.BytesIO()
            torch.save(value, data)
            data.seek(0)
            planner.load_bytes(item, data)
            return
        tensor = planner.resolve_tensor(item).detach()
        if tensor.numel():
            read_box(self._file, tensor, path, tuple(item.storage_offsets), tuple(item.lengths))
        planner.commit_tensor(item, tensor)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return is_path(checkpoint_id)


def _metadata_of(item, path):
    if not isinstance(item, torch.Tensor):
        return BytesStorageMetadata()
    if not is_dense(item):
        raise TypeError(f"{path}: torch.distributed.checkpoint knows no such tensor; use berth.dcp.load")
    whole = ChunkStorageMetadata(offsets=torch.Size([0] * len(item.shape)), sizes=item.shape)
    return TensorStorageMetadata(TensorProperties(dtype=item.dtype), item.shape, [whole])


def _leaves(value, keys, path):
    """(keys, path in the file, item), as PyTorch's planner flattens a state."""
    if isinstance(value, dict):
        pairs = [(str(key), key, item) for key, item in items_of(value)]
    elif _is_open(value):
        pairs = [(i, i, item) for i, item in enumerate(value)]
    else:
        yield keys, path, value
        return
    for name, key, item in pairs:
        yield from _leaves(item, (*keys, name), f"{path}[{key!r}]")


def _is_open(value):
    """A list that has tensors or dicts in it."""
    return type(value) is list and any(
        isinstance(item, (dict, torch.Tensor)) or _is_open(item) for item in value)
