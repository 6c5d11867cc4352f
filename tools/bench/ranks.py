# SPDX-License-Identifier: BSD-3-Clause
"""Processes of torch.distributed that save one state together, and what they do in a turn."""

import datetime
import gc
import multiprocessing
import os
import signal
import time

import machine
import shapes
from raw import LIBC

COLUMNS = 4096  # of float32


class PeakMemory:
    """The most memory that this process had in a turn, beyond what it had before."""

    def __init__(self):
        gc.collect()
        LIBC.malloc_trim(0)  # or what an earlier turn has freed would count as memory before
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
        self.before = self.of("VmRSS")

    @staticmethod
    def of(name):
        [line] = [line for line in machine.text_of("/proc/self/status").splitlines() if line.startswith(name)]
        return int(line.split()[1]) * 1024

    def rise(self):
        return max(0, self.of("VmHWM") - self.before)


def dimensions(nbytes):
    """(number of tensors, rows of each)"""
    n = max(4, nbytes // (64 << 20))
    return n, max(1, nbytes // n // (COLUMNS * 4))


class Rank:
    """One process: its part of each tensor, and the ways to save them. dim: what is sharded."""

    def __init__(self, rank, n_ranks, dim, nbytes, store):
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        self.torch, self.dist, self.rank, self.n_ranks, self.dim = torch, dist, rank, n_ranks, dim
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=n_ranks,
                                timeout=datetime.timedelta(seconds=300))
        self.mesh = init_device_mesh("cpu", (n_ranks,))
        n, self.rows = dimensions(nbytes)
        self.parts = {f"layers.{i}.weight": self.part(i) for i in range(n)}
        self.state = {name: self.sharded(part) for name, part in self.parts.items()}

    def part(self, number):
        """This rank's part of a tensor, which is the same whatever the number of ranks."""
        made = shapes.make("one", self.rows * COLUMNS * 4)["tensor.0"].view(self.rows, COLUMNS)
        made[0, 0] = number
        return self.chunks_of(made)[self.rank].clone(memory_format=self.torch.contiguous_format)

    def chunks_of(self, whole):
        """As DTensor cuts: the first ranks have the larger parts, the last may have none."""
        chunks = list(whole.chunk(self.n_ranks, self.dim))
        empty = whole.narrow(self.dim, 0, 0)
        return chunks + [empty] * (self.n_ranks - len(chunks))

    def sharded(self, part):
        from torch.distributed.tensor import DTensor, Shard

        return DTensor.from_local(part, self.mesh, [Shard(self.dim)], run_check=False,
                                  shape=self.torch.Size((self.rows, COLUMNS)), stride=(COLUMNS, 1))

    # ---- the ways ----

    def one_process(self, path):
        import berth

        berth.save(self.parts, path)

    def writers(self, path):
        import berth

        berth.dcp.save(self.state, path)

    def gather(self, path):
        """Rank 0 gets all parts, and saves the whole."""
        whole = {name: self.gather_one(part) for name, part in self.parts.items()}
        if self.rank == 0:
            self.torch.save(whole, path)
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)

    def gather_one(self, part):
        if self.rank:
            self.dist.send(part, 0)
            return None
        whole = self.torch.empty(self.rows, COLUMNS)
        for rank, chunk in enumerate(self.chunks_of(whole)):
            if rank == 0:
                chunk.copy_(part)
            elif self.dim == 0:
                self.dist.recv(chunk, rank)
            else:
                received = self.torch.empty(chunk.shape)
                self.dist.recv(received, rank)
                chunk.copy_(received)
        return whole

    def directory(self, path, is_synced):
        import torch.distributed.checkpoint as dcp

        dcp.save(self.state, storage_writer=dcp.FileSystemWriter(path, sync_files=is_synced))

    def turn(self, way, path):
        """(seconds until all ranks have done it, bytes of memory beyond those before)"""
        ways = {"one": self.one_process, "writers": self.writers, "gather": self.gather,
                "directory": lambda path: self.directory(path, False),
                "synced directory": lambda path: self.directory(path, True)}
        memory = PeakMemory()
        self.dist.barrier()
        begin = time.perf_counter()
        ways[way](path)
        self.dist.barrier()
        return time.perf_counter() - begin, memory.rise()


def serve(pipe, options, rank, *arguments):
    import berth

    with berth.config.patch(options):
        made = Rank(rank, *arguments)
        pipe.send("ready")
        while asked := pipe.recv():
            pipe.send(made.turn(*asked))


def run_rank(pipe, options, rank, *arguments):
    """Answers turns until its process is ended; what goes wrong is an answer, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C ends who asks, and that ends this
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        serve(pipe, options, rank, *arguments)
    except Exception as error:
        pipe.send(f"rank {rank}: {error}")
    os._exit(1)  # other ranks may wait for this one


class Ranks:
    """A world of such processes."""

    def __init__(self, options, n_ranks, dim, nbytes, store):
        fork, self.all = multiprocessing.get_context("fork"), []
        for rank in range(n_ranks):
            mine, theirs = multiprocessing.Pipe()
            process = fork.Process(target=run_rank, daemon=True,
                                   args=(theirs, " ".join(options), rank, n_ranks, dim, nbytes, store))
            process.start()
            theirs.close()
            self.all.append((process, mine))
        self.answers()

    def answers(self):
        made = []
        for process, pipe in self.all:
            try:
                made.append(pipe.recv())
            except EOFError:
                process.join()
                raise OSError(f"a rank ended with {process.exitcode}") from None
            if isinstance(made[-1], str) and made[-1] != "ready":
                raise OSError(made[-1])
        return made

    def turn(self, way, path):
        """(seconds, the most memory of a rank)"""
        for _, pipe in self.all:
            pipe.send((way, path))
        seconds, nbytes = zip(*self.answers())
        return max(seconds), max(nbytes)

    def end(self):
        for process, _ in self.all:
            process.kill()
            process.join()
