# SPDX-License-Identifier: BSD-3-Clause
"""berth.dcp.save: one file of the states of all ranks."""

import concurrent.futures
import os

from berth import _conditions, _native
from berth._config import config
from berth._counters import count
from berth._dcp_group import Exchange, Group, Interrupts
from berth._dcp_outline import (
    Elsewhere,
    extras_of,
    lookup,
    merge,
    outline_of,
    pickled,
    tree_of,
    unpickled,
)
from berth._errors import shown
from berth._save import base_argument, is_safetensors, tell_shared
from berth._source import from_caller, is_path, is_url, name_of, path_bytes

_workers = {}  # process group -> the thread of its asynchronous saves
os.register_at_fork(after_in_child=_workers.clear)  # it is the parent's


class Entry:
    """A tensor of the plan that all ranks get.

    name: its path in the file; keys: its way in a state; rank: as of Elsewhere
    """

    def __init__(self, name, tensor):
        self.name, self.keys, self.rank = name, tensor.keys, tensor.rank
        self.dtype, self.shape = tensor.dtype, tensor.shape

    def check(self, mine):
        if (mine.dtype, mine.shape) != (self.dtype, self.shape):
            raise ValueError(f"{self.name.decode()} is {mine.dtype} {list(mine.shape)} here, but "
                             f"{self.dtype} {list(self.shape)} on the coordinator")


def save(state, path, *, process_group=None, base=None):
    """Saves what all ranks have as one file, the one that torch.save would write of the whole state.

        berth.dcp.save({"model": model.state_dict(), "step": 7}, "model.pt")

    The value in the file is the state of the coordinator, rank 0 of the group, with all its types and
    keys. Keys of dicts that only other ranks have follow, by rank. Each DTensor becomes a contiguous
    tensor of exactly its elements. Each rank writes its shards into the file, in parallel; replicated
    ones are written once, by all of them together. Shards of columns whose pieces of a row are below
    1 MiB are exchanged, 8 MiB of the file at a time: each rank writes what it has collected. Plain tensors
    and all other values are those of the coordinator, or of the first rank that has the key.

    All ranks of the group call it. It is all or nothing: whatever fails or dies, the path holds the old
    file or the whole new one. When it returns, on any rank, the file is as durable as the coordinator's
    berth.config.save.durability says.

    state: a nested dict of plain values, as of berth.save; DTensors may be anywhere in it. Tensors must
        not change until this returns. Those on a device are copied to the host first.
    path: a path that all ranks see, or s3://bucket/key, a str; all ranks give the same kind. The coordinator's
        counts, and its name is the archive's name. An object of S3 is sent in parts, each by one rank, which gets
        from the others what they have of it; a rank that does not come is named, after the timeout of the group.
    process_group: of torch.distributed; None: the default group; without one, this process alone. If it
        carries no bytes of the host (nccl), a gloo group is made beside it.
    base: as of berth.save, a path that each rank opens; may be the path itself. Each rank shares the blocks of what
        it writes, of at least 64 KiB, where the storage of the same place and size in the base has these bytes. A rank
        that cannot writes all of its own. The coordinator's logger "berth" tells what came of it (INFO). None: as
        berth.config.save.base of each rank says.

    Raises, the same on all ranks, with the number of the rank that it came from:
        berth.Error: it could not be written. FileError if the system says why.
        TypeError: a value has no plain form; a tensor of another rank is not dense.
        ValueError: the ranks do not agree on the shape or dtype of a DTensor; a Partial placement.
        If a rank dies, what torch.distributed raises within the timeout of the group.
        KeyboardInterrupt on a rank that gets ^C; RuntimeError on the others. If it comes too late, the
        file is complete, and only that rank raises.
    Threads: one at a time for one process group.
    """
    def run(interrupts):
        group = Group(process_group, interrupts=interrupts, watches=is_url(path))
        Saving(state, path, group, base=base).run(group)

    Interrupts().around(run)


class Saving:
    """One save, on one rank."""

    def __init__(self, state, path, group, is_snapshot=False, base=None):
        self._path, self._rank, self._n_ranks, self._base = from_caller(path), group.rank, group.size, base
        self._outline = self._joint = None
        self._slices = []
        self._tree = group.step(lambda: self._begin(state, is_snapshot), lambda _: tree_of(self._outline))

    def run(self, group):
        try:
            ticket, is_url, plan = group.step(self._extras, self._plan)
            group.step(lambda: self._choose(plan), lambda _: None)
            exchange = Exchange(group)
            group.step(lambda: self._write(ticket, is_url, exchange), self._finish, exchange)
        except BaseException as error:
            left = self._joint and self._joint.abort()  # what is left then is told with the reason
            if left:
                error.add_note(left)
            raise
        count("save", "values")

    def _begin(self, state, is_snapshot):
        if not is_path(self._path):
            raise TypeError("berth.dcp.save saves to a path")
        if is_safetensors(self._path):
            raise TypeError(f"{shown(name_of(self._path))}: berth.dcp.save writes the file of torch.save, not "
                            "safetensors. Name it .pt; berth.save(berth.load(path), NEW) makes safetensors of it")
        if why := _conditions.reason():
            raise TypeError(f"berth.dcp.save saves plain values only: {why}")
        self._base = base_argument(self._base)
        self._outline = self._outline_of(state, is_snapshot)

    def _outline_of(self, state, is_snapshot):
        return outline_of(state, self._rank or None, is_snapshot)

    def _extras(self):
        """Pickled here, so that what cannot be pickled is an error and not a rank that is missing."""
        return pickled(extras_of(self._outline, self._tree) if self._rank else [])

    def _merge(self, extras):
        for each in extras:
            merge(self._outline, each)

    def _plan(self, extras):
        self._merge(map(unpickled, extras))
        to = str(self._path) if is_url(self._path) else path_bytes(self._path)
        self._joint = _native.joint_begin(self._outline, to, self._n_ranks, Elsewhere, *self._base)
        by_storage = {}
        for tensor, name in self._joint.names():
            if 0 not in tensor.shape:
                by_storage.setdefault(tensor.facts[-1], Entry(name, tensor))
        return self._joint.ticket(), is_url(self._path), list(by_storage.values())

    def _choose(self, plan):
        """Finds this rank's slices.

        Then all ranks wait for each other in _write: what can fail on one of them is done here.
        """
        for index, entry in enumerate(plan):
            mine = lookup(self._outline, entry.keys)
            if isinstance(mine, Elsewhere) and mine.rank == entry.rank:
                entry.check(mine)
                for box, data in mine.pieces:
                    self._slices += _slices(index, entry.name, mine, box, data)

    def _write(self, ticket, is_url, exchange):
        return _native.joint_write(ticket, self._rank, self._slices, self._n_ranks, exchange, self._joint, is_url,
                                   *self._base)

    def _finish(self, answers):
        for rank, (receipt, _, _) in enumerate(answers):
            self._joint.add_receipt(rank, receipt)
        self._joint.finish()
        reasons = (f"rank {rank}: {reason}" for rank, (_, _, reason) in enumerate(answers) if reason)
        tell_shared(shown(name_of(self._path)), sum(nbytes for _, nbytes, _ in answers), next(reasons, None))


def _slices(index, name, mine, box, data):
    """The part of a piece that this copy of it writes: ranges are dealt out by bytes, others by turns."""
    first = box.range_in(mine.shape)
    if mine.n_copies > 1 and first is not None:
        offset, nbytes = _native.joint_deal(index, data.nbytes, mine.n_copies, mine.copy)
        at = first * data.element_size() + offset
        return [(name, None, None, at, nbytes, data.data_ptr() + offset)] if nbytes else []
    if index % mine.n_copies != mine.copy:
        return []
    return [(name, box.starts, box.lengths, 0, 0, data.data_ptr())]


def async_save(state, path, *, process_group=None, base=None):
    """Begins what berth.dcp.save does, and returns when all tensors are copied.

    state, path, process_group, base: as of berth.dcp.save. Tensors and containers may change when this returns.
        The copies take as much memory as this rank's shards and plain tensors.

    The save goes on on a thread, with the options that are in force on this one. Its messages go by a gloo
    group of its own, which the first call makes: collectives of the program may run meanwhile. Saves of one
    process group run one after the other, in the order of the calls, which must be the same on all ranks.
    The end of the interpreter waits for them; the process group must live as long. If it has only some
    ranks, these must have made equally many groups before: PyTorch's new_group needs that.

    Returns: a concurrent.futures.Future. result() waits for the end, and raises what berth.dcp.save raises.
    Raises, on all ranks, before anything is written: what copying raises.
    """
    def begin(interrupts):
        first = Group(process_group, interrupts=interrupts, watches=is_url(path))
        saving = Saving(state, path, first, is_snapshot=True, base=base)
        group = Group(process_group, "asynchronous saves", watches=is_url(path))
        worker = _workers.get(process_group)
        if worker is None:
            worker = _workers[process_group] = concurrent.futures.ThreadPoolExecutor(
                1, thread_name_prefix="berth.dcp")
        options = {name: _native.option_get(name) for name in _native.option_names()}
        return worker.submit(config.patch(options)(saving.run), group)

    return Interrupts().around(begin)
