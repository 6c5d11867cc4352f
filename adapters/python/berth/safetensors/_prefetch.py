# SPDX-License-Identifier: BSD-3-Clause
"""Tensors that are read ahead of their use, within a window of memory."""

import collections
import math
import os
import threading
import weakref

from berth._config import config
from berth._errors import Error, shown
from berth.safetensors._errors import SafetensorError, as_the_package

WINDOW_NBYTES = 256 << 20
PIECE_NBYTES = 8 << 20  # that one thread reads at a time: a large tensor is read by several
MOST_THREADS = 64


def moved(tensor, device):
    """A tensor on a device. Not tensor.to(): a file can give a tensor an attribute of this name (Y5)."""
    if device == "cpu":
        return tensor
    import torch

    return torch.Tensor.to(tensor, device)


class _Wanted:
    """One tensor of a plan, or a part of one."""

    def __init__(self, key, name, starts, lengths, dtype, nbytes):
        self.key, self.name, self.dtype, self.nbytes = key, name, dtype, nbytes
        self.starts, self.lengths = starts, lengths
        self.tensor = None  # from its first piece on, until it is taken
        self.n_left = 0  # pieces that are not read
        self.error = None
        self.is_begun = self.is_done = self.is_taken = False

    def pieces(self):
        """Boxes of about PIECE_NBYTES, along the first dimension that is longer than 1."""
        along = next((i for i, length in enumerate(self.lengths) if length > 1), None)
        if along is None or self.nbytes <= PIECE_NBYTES:
            return [(self.starts, self.lengths, 0)]
        n, row = self.lengths[along], self.nbytes // self.lengths[along]
        step = max(PIECE_NBYTES // row, 1)
        return [(self.starts[:along] + [self.starts[along] + at] + self.starts[along + 1:],
                 self.lengths[:along] + [min(step, n - at)] + self.lengths[along + 1:], at * row)
                for at in range(0, n, step)]


class _Reader:
    """What the threads share. It does not know the loader, so that one that is dropped ends them."""

    def __init__(self, file, wanted, window_nbytes):
        import torch

        self.torch = torch  # which no thread imports
        self.file, self.all, self.window_nbytes = file, wanted, window_nbytes
        self.process = os.getpid()
        self.changed = threading.Condition()
        self.waiting = collections.OrderedDict.fromkeys(wanted)  # that are not begun, in the order of their bytes
        self.asked = collections.deque()  # that somebody waits for: they go before all others
        self.pieces = collections.deque()
        self.done = collections.deque()  # that nobody had taken when they were read
        self.n_left = len(wanted)  # that are not taken
        self.held_nbytes = 0  # of tensors that are begun and not taken
        self.is_closed = False

    def close(self):
        """Threads end after the piece that they read. Tensors that were not taken go."""
        if os.getpid() != self.process:  # the lock may be held by a thread that a fork has left behind
            return
        with self.changed:
            self.is_closed = True
            for wanted in self.all:
                wanted.tensor = None
            self.pieces.clear()
            self.waiting.clear()
            self.changed.notify_all()

    def _begin(self, wanted):
        wanted.is_begun = True
        self.held_nbytes += wanted.nbytes
        pieces = []
        try:
            wanted.tensor = self.torch.empty(wanted.lengths, dtype=wanted.dtype)
            pieces = wanted.pieces() if wanted.nbytes else []
        except Exception as failed:  # no memory
            wanted.error = failed.with_traceback(None)
        wanted.n_left = len(pieces)
        self.pieces.extend((wanted, wanted.tensor, *piece) for piece in pieces)
        if not pieces:
            self._end(wanted)

    def _end(self, wanted):
        wanted.is_done = True
        if not wanted.is_taken:  # by a take() that waits for it
            self.done.append(wanted)
        self.changed.notify_all()

    def _next(self):
        """A piece to read; None: there is no more. Begins tensors as the window has room."""
        while not self.is_closed:
            while self.asked:
                wanted = self.asked.popleft()
                if not wanted.is_begun:
                    del self.waiting[wanted]
                    self._begin(wanted)
            if self.pieces:
                return self.pieces.popleft()
            first = next(iter(self.waiting), None)
            if first is None:
                return None
            if self.held_nbytes and self.held_nbytes + first.nbytes > self.window_nbytes:
                self.changed.wait()
                continue
            del self.waiting[first]
            self._begin(first)
            self.changed.notify_all()
        return None

    def work(self, options):
        with config.patch(options):
            while True:
                with self.changed:
                    piece = self._next()
                if piece is None:
                    return
                self._read(*piece)
                piece = None  # which holds a tensor

    def _read(self, wanted, tensor, starts, lengths, at):
        """The piece holds the tensor: one whose loader is closed has no other owner."""
        error = None
        try:
            nbytes = tensor.element_size() * math.prod(lengths)
            self.file._file.read_slice(wanted.name, starts, lengths, tensor.data_ptr() + at, nbytes)
        except Exception as failed:
            error = failed.with_traceback(None)
        with self.changed:
            wanted.error = wanted.error or error
            wanted.n_left -= 1
            if wanted.n_left == 0:
                self._end(wanted)


class PrefetchLoader:
    """The tensors of a plan, each handed out once: by take(name), or by iterating over (name, tensor).

    What is read and not taken is at most the window, or one tensor that is larger. A tensor that is asked for before
    its turn is read at once, beside the window.
    Threads: any.
    """

    def __init__(self, file, plan, device, n_threads, window_nbytes):
        if n_threads < 1:
            raise ValueError(f"threads: 1 or more, not {n_threads}")
        self._device = device
        self._wanted = {key: _wanted_of(file, key, *item) for key, item in plan.items()}
        self._reader = _Reader(file, self._wanted.values(), window_nbytes)
        self._end = weakref.finalize(self, self._reader.close)
        options = config.get_config_copy()  # of this thread
        for _ in range(min(n_threads, len(self._wanted), MOST_THREADS)):
            threading.Thread(target=self._reader.work, args=(options, ), daemon=True).start()

    def names(self):
        """The names, in the order of their bytes; a list."""
        return list(self._wanted)

    def __len__(self):
        return len(self._wanted)

    def take(self, name):
        """A tensor, when it is read.

        Raises: SafetensorError: it is not of the plan, was taken before, or cannot be read; the loader is closed.
        """
        wanted = self._wanted.get(name)
        if wanted is None:
            raise SafetensorError(f"the plan has no tensor {shown(str(name))}")
        self._check_process()
        reader = self._reader
        with reader.changed:
            if wanted.is_taken:
                raise SafetensorError(f"tensor {shown(name)} was taken before: each is handed out once")
            wanted.is_taken = True  # before the wait: two threads do not take one
            reader.n_left -= 1
            try:
                if not wanted.is_begun:
                    reader.asked.append(wanted)
                    reader.changed.notify_all()
                while not wanted.is_done and not reader.is_closed:
                    reader.changed.wait()
            except BaseException:  # ^C: it can be taken later
                wanted.is_taken = False
                reader.n_left += 1
                if wanted.is_done:
                    reader.done.append(wanted)
                raise
            return self._hand_out(wanted)

    def _check_process(self):
        if os.getpid() != self._reader.process:
            raise SafetensorError("the loader is of the parent process, whose threads read: begin another one here")

    def __iter__(self):
        """(name, tensor), as they are read; those that were taken are left out."""
        while True:
            self._check_process()
            reader = self._reader
            with reader.changed:
                wanted = None
                while reader.n_left and not wanted and not reader.is_closed:
                    if not reader.done:
                        reader.changed.wait()
                    elif not reader.done[0].is_taken:
                        wanted = reader.done[0]
                    else:
                        reader.done.popleft()
                if not reader.n_left:
                    return
                if not wanted:
                    raise SafetensorError("the loader is closed")
                wanted.is_taken = True
                reader.n_left -= 1
                reader.done.popleft()
                tensor = self._hand_out(wanted)
            yield wanted.key, tensor

    def _hand_out(self, wanted):
        reader = self._reader
        tensor, wanted.tensor = wanted.tensor, None
        if reader.is_closed:
            raise SafetensorError("the loader is closed")
        reader.held_nbytes -= wanted.nbytes
        reader.changed.notify_all()
        if isinstance(wanted.error, (Error, MemoryError)):
            with as_the_package():
                raise wanted.error
        if wanted.error:
            raise SafetensorError(f"{shown(wanted.key)}: {wanted.error}") from wanted.error
        return moved(tensor, self._device)

    def close(self):
        """Ends the reading; what was handed out stays. It may be closed twice."""
        self._end()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _wanted_of(file, key, name, part):
    import torch

    from berth.safetensors._open import DTYPE_CODES
    with as_the_package():
        dtype, shape, _, nbytes, _ = file._file.tensor(name)
    if dtype.startswith("q"):
        raise SafetensorError(f"{shown(key)}: a quantized tensor has no parts: get_tensor() gives all of it")
    if not hasattr(torch, dtype):
        raise SafetensorError(f"{shown(key)}: {DTYPE_CODES.get(dtype, dtype)}: this PyTorch has no torch.{dtype}")
    items = [part] if isinstance(part, slice) else list(part) if isinstance(part, tuple) else []
    if part is not None and not items or not all(isinstance(item, slice) for item in items):
        raise SafetensorError(f"{shown(key)}: a plan has None or a slice, or a tuple of slices, not {part!r:.100}")
    if len(items) > len(shape):
        raise SafetensorError(f"{shown(key)}: {len(items)} slices for a tensor of {len(shape)}-d")
    if any(item.step not in (None, 1) for item in items):
        raise SafetensorError(f"{shown(key)}: a plan has slices of step 1, not {part!r:.100}")
    starts, lengths = [], []
    for item, size in zip(items + [slice(None)] * (len(shape) - len(items)), shape):
        first, last, _ = item.indices(size)
        starts.append(first)
        lengths.append(max(last - first, 0))
    nbytes = nbytes * math.prod(lengths) // math.prod(shape) if nbytes else 0
    return _Wanted(key, name, starts, lengths, getattr(torch, dtype), nbytes)
