# SPDX-License-Identifier: BSD-3-Clause
"""Shards along another dimension than the first: ranks exchange their elements, and each writes whole rows.

A row of such a tensor has pieces of several ranks. Where these are below 1 MiB, most blocks of the file
would have bytes of two writers. So each rank gets some rows of each such tensor, from all ranks that have
elements of them. All ranks announce their boxes first; then everyone knows how many bytes go where, and no
rank waits for another that has failed: that one takes part to the end, and raises then.
"""

import math

import torch

from berth._dcp_layout import Box
from berth._dcp_outline import Elsewhere, lookup

ROUND_NBYTES = 64 << 20  # that a rank sends and receives at a time, if no tensor has more


class Exchange:
    """What one rank does for the entries of the plan that are exchanged."""

    def __init__(self, group, plan):
        self._group, self._rounds, self._error = group, [], None
        self._rows = [Rows(i, entry, group) for i, entry in enumerate(plan) if entry.is_exchanged]

    def __bool__(self):
        return bool(self._rows)

    def announce(self, outline):
        """The boxes of this rank, for each tensor."""
        for each in self._rows:
            each.find_mine(lookup(outline, each.entry.keys))
        return [[(box.starts, box.lengths) for box, _ in each.mine] for each in self._rows]

    def prepare(self, announced):
        """Checks that all elements are there, and takes the memory. announced: the boxes of each rank."""
        for i, each in enumerate(self._rows):
            each.boxes = [[Box(*box) for box in boxes[i]] for boxes in announced]
            each.check()
            each.result = torch.empty(each.shape_of(each.rank), dtype=each.entry.dtype)
        self._rounds = list(self._make_rounds())
        sizes = [self._sizes(each) for each in self._rounds]
        self._send = torch.empty(max(sum(send) for send, _ in sizes), dtype=torch.uint8)
        self._receive = torch.empty(max(sum(receive) for _, receive in sizes), dtype=torch.uint8)

    def _make_rounds(self):
        """All ranks make the same: some tensors in a round."""
        some, nbytes = [], 0
        for each in self._rows:
            if some and nbytes + each.nbytes > ROUND_NBYTES * self._group.size:
                yield some
                some, nbytes = [], 0
            some.append(each)
            nbytes += each.nbytes
        yield some

    def _sizes(self, rows):
        """Bytes for each rank, and bytes from each rank."""
        ranks, mine = range(self._group.size), self._group.rank
        return ([sum(each.nbytes_between(mine, other) for each in rows) for other in ranks],
                [sum(each.nbytes_between(other, mine) for each in rows) for other in ranks])

    def run(self):
        for rows in self._rounds:
            send_nbytes, receive_nbytes = self._sizes(rows)
            self._attempt(self._fill, rows)
            self._group.exchange(self._send[:sum(send_nbytes)], send_nbytes,
                                 self._receive[:sum(receive_nbytes)], receive_nbytes)
            self._attempt(self._take, rows)
        self._send = self._receive = None
        if self._error:
            raise self._error

    def _attempt(self, function, rows):
        """A failure waits until all rounds are done."""
        try:
            if self._error is None:
                function(rows)
        except Exception as error:
            self._error = error

    def _fill(self, rows):
        at = 0
        for other in range(self._group.size):
            for each in rows:
                for part in each.parts_for(other):
                    at = _put_bytes(self._send, at, part)

    def _take(self, rows):
        at = 0
        for other in range(self._group.size):
            for each in rows:
                at = each.take(other, self._receive, at)

    def slices(self):
        """Of this rank's rows, as joint_write takes them."""
        return [(each.entry.name, (each.first_of(each.rank), *[0] * (len(each.entry.shape) - 1)),
                 tuple(each.result.shape), 0, 0, each.result.data_ptr())
                for each in self._rows if each.result.numel()]


class Rows:
    """One tensor. Its rows are dealt out evenly; the ranks take turns at being the first."""

    def __init__(self, index, entry, group):
        self.entry, self.rank = entry, group.rank
        self._index, self._n_ranks = index, group.size
        self._item_nbytes = torch.empty((), dtype=entry.dtype).element_size()
        self.nbytes = math.prod(entry.shape) * self._item_nbytes
        self.mine, self.boxes, self.result = [], [], None

    def find_mine(self, tensor):
        """What this rank sends: one copy of each piece."""
        if isinstance(tensor, Elsewhere) and self._index % tensor.n_copies == tensor.copy:
            self.entry.check(tensor)
            self.mine = tensor.pieces

    def first_of(self, rank):
        turn = (rank + self._index) % self._n_ranks
        return self.entry.shape[0] * turn // self._n_ranks

    def shape_of(self, rank):
        turn = (rank + self._index) % self._n_ranks
        end = self.entry.shape[0] * (turn + 1) // self._n_ranks
        return end - self.first_of(rank), *self.entry.shape[1:]

    def _part(self, box, rank):
        """(first row, rows) of a box that a rank gets."""
        first, n = self.first_of(rank), self.shape_of(rank)[0]
        low, high = max(box.starts[0], first), min(box.starts[0] + box.lengths[0], first + n)
        return low, max(high - low, 0)

    def nbytes_between(self, sender, receiver):
        return sum(self._part(box, receiver)[1] * math.prod(box.lengths[1:])
                   for box in self.boxes[sender]) * self._item_nbytes

    def parts_for(self, rank):
        for box, data in self.mine:
            low, n = self._part(box, rank)
            yield data[low - box.starts[0]:][:n]

    def take(self, sender, receive, at):
        """Returns: where the next bytes are."""
        for box in self.boxes[sender]:
            low, n = self._part(box, self.rank)
            lengths = n, *box.lengths[1:]
            nbytes = math.prod(lengths) * self._item_nbytes
            place = (slice(low - self.first_of(self.rank), low - self.first_of(self.rank) + n),
                     *(slice(start, start + each) for start, each in zip(box.starts[1:], box.lengths[1:])))
            if nbytes:
                elements = receive[at:at + nbytes]
                elements = elements.clone() if at % self._item_nbytes else elements  # which aligns them
                self.result[place] = elements.view(self.entry.dtype).view(lengths)
            at += nbytes
        return at

    def check(self):
        """Each element is in one box: no two boxes overlap, and together they are as large as the tensor."""
        boxes = [box for each in self.boxes for box in each if 0 not in box.lengths]
        form = len(boxes), 1, len(self.entry.shape)
        starts = torch.tensor([box.starts for box in boxes], dtype=torch.int64).view(form)
        ends = starts + torch.tensor([box.lengths for box in boxes], dtype=torch.int64).view(form)
        overlap = ((starts < ends.transpose(0, 1)) & (starts.transpose(0, 1) < ends)).all(-1)
        if overlap.sum() > len(boxes):
            raise ValueError(f"{self.entry.name.decode()}: two ranks have the same elements")
        if sum(math.prod(box.lengths) for box in boxes) != math.prod(self.entry.shape):
            raise ValueError(f"{self.entry.name.decode()}: no rank has some of its elements")


def _put_bytes(buffer, at, part):
    part = part.contiguous().view(-1)
    nbytes = part.nbytes
    if nbytes:
        buffer[at:at + nbytes] = part.view(torch.uint8)
    return at + nbytes
