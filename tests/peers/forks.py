# SPDX-License-Identifier: BSD-3-Clause
"""A data loader that forks: workers read their parent's checkpoint while its threads read, too (X11)."""

import ctypes as c
import hashlib
import multiprocessing
import os
import threading

import berth_ctypes as b
import torch
from files import expect

N_TENSORS, N_WORKERS, N_EPOCHS = 40, 4, 6
DEADLINE = 60  # seconds for one epoch


class Reader:
    """A checkpoint that is open."""

    def __init__(self, path, options):
        self.handle = c.c_void_p()
        with b.patched(options):
            b.check(b.LIBRARY.berth_open, os.fsencode(path), None, c.byref(self.handle))
        named = b.NamedTensor()
        self.tensors = {}
        for i in range(b.LIBRARY.berth_tensor_count(self.handle)):
            b.check(b.LIBRARY.berth_tensor_at, self.handle, i, c.byref(named))
            # A copy of the pointer: the field is the struct's, which the next call fills anew.
            self.tensors[named.name.decode()] = c.cast(named.tensor, c.POINTER(b.Tensor))

    def digest(self, name, in_place):
        tensor = self.tensors[name]
        numel = b.numel(tensor)
        if in_place:
            data = b.check(b.LIBRARY.berth_tensor_data, self.handle, tensor)
            return hashlib.sha256(c.string_at(data, 4 * numel)).hexdigest()
        buffer = c.create_string_buffer(4 * numel)
        b.check(b.LIBRARY.berth_tensor_read, self.handle, tensor, 0, numel, buffer)
        return hashlib.sha256(buffer.raw[:4 * numel]).hexdigest()

    def close(self):
        b.LIBRARY.berth_close(self.handle)


def work(reader, names, queue):
    """A worker's process: its share of the tensors, through what it inherited."""
    try:
        for i, name in enumerate(names):
            queue.put((name, reader.digest(name, i % 2 == 0)))
        with b.patched("io.threads=2"):
            b.check(b.LIBRARY.berth_load, reader.handle, None, None)
        queue.put((None, len(names)))
        reader.close()
    except Exception as error:  # the parent tells
        queue.put(("error", str(error)))


def epoch(path, options, wanted):
    """Opens, lets threads of the parent read, forks the workers in the midst of it."""
    reader = Reader(path, options)
    over = threading.Event()

    def read_on():
        while not over.is_set():
            for name in wanted:
                reader.digest(name, True)

    threads = [threading.Thread(target=read_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    shares = [list(wanted)[i::N_WORKERS] for i in range(N_WORKERS)]
    workers = [context.Process(target=work, args=(reader, share, queue)) for share in shares]
    for worker in workers:
        worker.start()
    timer = threading.Timer(DEADLINE, lambda: [worker.kill() for worker in workers])
    timer.start()
    try:
        collect(queue, workers, wanted)
    finally:
        timer.cancel()
        over.set()
        for thread in threads:
            thread.join()
        reader.close()


def collect(queue, workers, wanted):
    for worker in workers:
        worker.join(DEADLINE)
    expect([worker.exitcode for worker in workers] == [0] * N_WORKERS,
           f"exit codes {[worker.exitcode for worker in workers]}")
    seen = {}
    while not queue.empty():
        name, said = queue.get()
        expect(name != "error", f"a worker: {said}")
        if name:
            seen[name] = said
    expect(seen == wanted, "workers read other bytes, or not all")


def all_cases(results, folder):
    path = f"{folder}/forks.pt"
    state = {f"w{i}": torch.arange(3000 + 1000 * i, dtype=torch.float32) + i
             for i in range(N_TENSORS)}
    torch.save(state, path)
    wanted = {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
              for name, tensor in state.items()}
    for options in ("load.method=map", "load.method=read", "load.method=direct",
                    "load.check=data load.mmap=off", "load.prefetch=read load.method=read"):
        for i in range(N_EPOCHS):
            results.run(f"forks: epoch {i} of workers, {options}", epoch, path, options, wanted)
    os.remove(path)
