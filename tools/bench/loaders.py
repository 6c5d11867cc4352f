# SPDX-License-Identifier: BSD-3-Clause
"""Those who load: functions that return the seconds until all is there.

What it loaded is freed after the clock was read.
"""

import ctypes as c
import mmap
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/peers"))

import berth_ctypes as b
import numpy
import torch
import torch.utils.serialization


def touch(address, nbytes):
    """Looks at every byte, as fast as one thread can. All who map use it."""
    if nbytes < 8:
        return
    words = numpy.frombuffer((c.c_char * (nbytes // 8 * 8)).from_address(address), numpy.uint64)
    for at in range(0, words.size, 1 << 20):
        words[at:at + (1 << 20)].max()


def touch_tensors(state):
    for tensor in state.values():
        touch(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def timed(load, then=None):
    """Seconds of load(), and of then(what it gave) if there is one."""
    def run():
        begin = time.perf_counter()
        loaded = load()
        if then:
            then(loaded)
        return time.perf_counter() - begin
    return run


# ---- Berth ----

class Checkpoint:
    """An open checkpoint; closed when it is deleted."""

    def __init__(self, path):
        self.pointer, self.stats = c.c_void_p(), b.Stats()
        call = b.Call(stats=c.addressof(self.stats))
        b.check(b.berth_open, path.encode(), c.byref(call), c.byref(self.pointer))

    def __del__(self):
        b.berth_close(self.pointer)

    def named(self):
        """Each tensor of the list, in the same struct again and again."""
        named = b.NamedTensor()
        for i in range(b.berth_tensor_count(self.pointer)):
            b.check(b.berth_tensor_at, self.pointer, i, c.byref(named))
            if named.tensor and named.tensor.contents.storage:
                yield named

    def first_offset(self):
        """Where the first tensor's bytes begin in the file."""
        return next(self.named()).offset

    def storages(self):
        """Each storage's (address, bytes), in the file's order; asked for one by one."""
        found = {named.tensor.contents.storage: named.offset for named in self.named()}
        for storage in sorted(found, key=found.get):
            yield b.storage_data(self.pointer, storage), b.berth_storage_get_info(storage)[0].nbytes

    def fetch(self):
        """All bytes are in memory."""
        b.check(b.berth_load, self.pointer, None, None)

    def touch(self):
        """Asks for one storage after the other, and looks at every byte."""
        for address, nbytes in self.storages():
            touch(address, nbytes)

    def fetch_and_touch(self):
        self.fetch()
        self.touch()

    def tensors(self):
        """{name: bytes of a tensor, as numpy sees them}: for those that are contiguous."""
        found = {}
        for named in self.named():
            tensor = named.tensor.contents
            address = b.check(b.berth_tensor_data, self.pointer, named.tensor)
            n = DTYPE_NBYTES[tensor.dtype]
            for axis in range(tensor.rank):
                n *= tensor.shape[axis]
            found[named.name.decode()] = numpy.frombuffer((c.c_char * n).from_address(address),
                                                          numpy.uint8)
        return found


DTYPE_NBYTES = {i: getattr(torch, name).itemsize for i, name in b.DTYPE_NAMES.items()
                if hasattr(torch, name)}


def berth(path, options, load_bytes=Checkpoint.fetch):
    """Until load_bytes(checkpoint) is done; by default until all bytes are in memory."""
    def run():
        with b.patched(options):
            begin = time.perf_counter()
            checkpoint = Checkpoint(path)
            load_bytes(checkpoint)
            return time.perf_counter() - begin
    return run


def prefetch_and_touch(path, options, stats, ahead=None):
    """Opens the file, prefetches everything, and looks at every byte in order, in parts of 16 MiB.
    Appends the statistics of the prefetch to `stats`; calls ahead(offset) after each part."""
    def run():
        with b.patched(options):
            begin = time.perf_counter()
            stats.append(consume(Checkpoint(path), ahead))
            return time.perf_counter() - begin
    return run


def consume(checkpoint, ahead):
    prefetch, stats = c.c_void_p(), b.PrefetchStats()
    b.check(b.berth_prefetch_begin, checkpoint.pointer, None, 0, None, c.byref(prefetch))
    try:
        found = {named.offset: c.addressof(named.tensor.contents) for named in checkpoint.named()}
        for offset in sorted(found):
            tensor = c.cast(found[offset], c.POINTER(b.Tensor))
            item, numel = DTYPE_NBYTES[tensor.contents.dtype], b.numel(tensor)
            address, part = b.check(b.berth_tensor_data, checkpoint.pointer, tensor), (16 << 20) // item
            for first in range(0, numel, part):
                n = min(part, numel - first)
                b.check(b.berth_prefetch_advance, prefetch, tensor, first, n)
                if ahead:
                    ahead(offset + (first + n) * item)  # behind what is in use
                touch(address + first * item, n * item)
        b.check(b.berth_prefetch_get_stats, prefetch, c.byref(stats))
    finally:
        b.berth_prefetch_free(prefetch)
    return stats


# ---- beside other work ----

OTHER_SECONDS = 0.2


def other_work():
    """What else a program does when it starts. Returns the part of one processor that it got:
    who loads meanwhile may take some."""
    begin, end = time.thread_time(), time.perf_counter() + OTHER_SECONDS
    while time.perf_counter() < end:
        sum(range(1000))
    return (time.thread_time() - begin) / OTHER_SECONDS


def beside_other_work(start, finish, parts):
    """start(), other work, finish(what start gave): the seconds beyond those of the other work. Appends
    what that got to `parts`."""
    def run():
        begin = time.perf_counter()
        started = start()
        parts.append(other_work())
        finish(started)
        return max(time.perf_counter() - begin - OTHER_SECONDS, 1e-4)
    return run


def prefetched(path, kind=Checkpoint):
    """An open checkpoint, and a prefetch of all of it."""
    checkpoint, prefetch = kind(path), c.c_void_p()
    b.check(b.berth_prefetch_begin, checkpoint.pointer, None, 0, None, c.byref(prefetch))
    return checkpoint, prefetch


def touch_prefetched(started):
    checkpoint, prefetch = started
    checkpoint.touch()
    b.berth_prefetch_free(prefetch)


def berth_startup(path, options, parts, start=prefetched, finish=touch_prefetched):
    """Opens the file with a prefetch; after other work every byte is looked at."""
    def run():
        with b.patched(options):
            return beside_other_work(lambda: start(path), finish, parts)()
    return run


def touch_map(mapped):
    words = numpy.frombuffer(mapped, numpy.uint8)
    touch(words.ctypes.data, words.size)
    del words  # or it could not be closed
    mapped.close()


def map_startup(path, parts, advice=0, flags=0):
    """The same by a plain map, with one advice for all of it or with flags."""
    def start():
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE | flags, prot=mmap.PROT_READ)
        if advice:
            mapped.madvise(advice)
        return mapped
    return beside_other_work(start, touch_map, parts)


def read_startup(path, parts):
    """The same by plain reads into fresh memory, after the other work."""
    def finish(file):
        nbytes = os.path.getsize(path)
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with file, memoryview(memory) as view:
            at = 0
            while at < nbytes:
                at += file.readinto(view[at:at + (4 << 20)])
        touch_map(memory)
    return beside_other_work(lambda: open(path, "rb", buffering=0), finish, parts)


def berth_open(path, options):
    """Until every tensor has its name and can be asked for."""
    def run():
        with b.patched(options):
            begin = time.perf_counter()
            checkpoint = Checkpoint(path)
            b.berth_tensor_count(checkpoint.pointer)
            return time.perf_counter() - begin
    return run


def berth_verify(path, options):
    def run():
        with b.patched(options):
            begin = time.perf_counter()
            b.check(b.berth_verify, b.from_path(path), None, None, None, None)
            return time.perf_counter() - begin
    return run


def compare(path, options):
    """Checks that Berth loads what PyTorch loads, byte for byte."""
    with b.patched(options):
        checkpoint = Checkpoint(path)
        ours, theirs = checkpoint.tensors(), torch.load(path, mmap=True)
        if list(ours) != list(theirs):
            raise b.BerthError(f"{path}: PyTorch finds other names than Berth")
        for name, tensor in theirs.items():
            if not numpy.array_equal(ours[name], tensor.view(-1).view(torch.uint8).numpy()):
                raise b.BerthError(f"{path}: PyTorch reads {name} differently")


# ---- peers ----

def map_file(path, advice):
    """Maps the file, gives one advice for all of it (0: none), and looks at every byte."""
    def run():
        begin = time.perf_counter()
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE,
                                                 mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
            if advice:
                mapped.madvise(advice)
            first = c.c_char.from_buffer(mapped)
            touch(c.addressof(first), len(mapped))
            seconds = time.perf_counter() - begin
            del first  # or it could not be closed
        return seconds
    return run


def torch_load(path, mapped=False, calculated=False, then=None):
    def load():
        torch.utils.serialization.config.load.calculate_storage_offsets = calculated
        return torch.load(path, mmap=mapped, weights_only=True)
    return timed(load, then)


def safetensors_load(path, backend="mmap", then=None):
    import safetensors.torch

    return timed(lambda: safetensors.torch.load_file(path, backend=backend), then)


def safetensors_open(path):
    import safetensors

    def load():
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    return timed(load)


def fastsafetensors_load(path):
    import fastsafetensors as fast

    def run():
        begin = time.perf_counter()
        loader = fast.SafeTensorsFileLoader(fast.SingleGroup(), device="cpu", nogds=True)
        loader.add_filenames({0: [path]})
        buffer = loader.copy_files_to_device()
        for name in loader.get_keys():
            buffer.get_tensor(name)
        seconds = time.perf_counter() - begin
        buffer.close()
        loader.close()
        return seconds
    return run


def runai_load(path):
    from runai_model_streamer import SafetensorsStreamer

    def load():
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            # The streamer uses its buffers again: copy.
            return {name: tensor.clone() for name, tensor in streamer.get_tensors()}
    return timed(load)
