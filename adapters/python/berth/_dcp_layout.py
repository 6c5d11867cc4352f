# SPDX-License-Identifier: BSD-3-Clause
"""Which elements of a DTensor this process has, as boxes of the whole tensor."""

import itertools
import math

from torch.distributed.tensor import DTensor, Replicate, Shard

try:  # FSDP2 on top of tensor parallelism, from PyTorch 2.5 on
    from torch.distributed.tensor.placement_types import _StridedShard
except ImportError:
    _StridedShard = ()


class Box:
    """Elements of a tensor.

    starts, lengths: one number for each dimension of the whole tensor
    local: where they begin in a shard
    """

    def __init__(self, starts, lengths, local=None):
        self.starts, self.lengths, self.local = starts, lengths, local

    def of_shard(self, tensor):
        """The elements, as a view of the shard."""
        return tensor[tuple(slice(at, at + n) for at, n in zip(self.local, self.lengths))]

    def range_in(self, shape):
        """The first element, if the box is one range in row-major order; else None."""
        last = max((d for d, n in enumerate(shape) if self.lengths[d] != n), default=0)
        if any(n != 1 for n in self.lengths[:last]):
            return None
        first = 0
        for start, n in zip(self.starts, shape):
            first = first * n + start
        return first


class Layout:
    """What this process has of a DTensor.

    boxes: of the whole tensor, not empty, that together are the local tensor
    n_copies, copy: so many processes have the same elements, and this is number `copy` of them
    """

    def __init__(self, dtensor):
        mesh, placements = dtensor.device_mesh, dtensor.placements
        coordinate = mesh.get_coordinate()
        self.boxes, self.n_copies, self.copy = [], 1, 0
        if coordinate is None:  # not in the mesh
            return
        ranges = [[(0, n)] for n in dtensor.shape]
        for placement, n, i in zip(placements, mesh.shape, coordinate):
            if isinstance(placement, Replicate):
                self.n_copies, self.copy = self.n_copies * n, self.copy * n + i
            elif isinstance(placement, (Shard, _StridedShard)):
                dim = placement.dim
                ranges[dim] = _shard(ranges[dim], n, i, getattr(placement, "split_factor", 1))
            else:
                raise ValueError(f"a tensor that is placed as {placement}: redistribute it first")
        self.boxes = list(_boxes(ranges))
        has = tuple(sum(length for _, length in each) for each in ranges)
        local = tuple(dtensor.to_local().shape)
        if has != local:
            raise ValueError(f"a shard of {list(local)} where {placements} gives {list(has)}")


def is_dtensor(value):
    return isinstance(value, DTensor)


def _chunk(ranges, n_chunks, i):
    """Part i of the elements of ranges, as torch.chunk cuts them."""
    total = sum(length for _, length in ranges)
    each = -(-total // n_chunks)
    begin, end, at, chosen = each * i, each * (i + 1), 0, []
    for start, length in ranges:
        low, high = max(begin, at), min(end, at + length)
        if low < high:
            chosen.append((start + low - at, high - low))
        at += length
    return chosen


def _shard(ranges, n, i, split_factor):
    """_StridedShard cuts into split_factor pieces first, and takes its part of each."""
    parts = [_chunk(_chunk(ranges, split_factor, piece), n, i) for piece in range(split_factor)]
    merged = []
    for start, length in itertools.chain(*parts):
        if merged and sum(merged[-1]) == start:
            merged[-1] = merged[-1][0], merged[-1][1] + length
        else:
            merged.append((start, length))
    return merged


def _boxes(ranges):
    """All combinations of one range in each dimension."""
    places = []
    for each in ranges:
        starts = itertools.accumulate((length for _, length in each), initial=0)
        places.append([(start, length, at) for (start, length), at in zip(each, starts)])
    for combination in itertools.product(*places):
        box = Box(*(tuple(column) for column in zip(*combination))) if combination else Box((), (), ())
        if 0 not in box.lengths:
            yield box
