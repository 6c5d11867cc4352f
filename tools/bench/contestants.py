# SPDX-License-Identifier: BSD-3-Clause
"""Those who save: functions that save the state to a path and return {figure: seconds}."""

import ctypes as c
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/peers"))

import berth_ctypes as b
import torch


class Tree:
    """A state_dict as Berth's values, over the same memory as PyTorch's tensors."""

    def __init__(self, state):
        self.state = state
        self.tree = b.check(b.berth_tree_new)
        self.root = b.berth_make_dict(self.tree, b.KINDS["ORDERED_DICT"])
        for name, tensor in state.items():
            shape = (c.c_int64 * tensor.dim())(*tensor.shape)
            made = b.Tensor(dtype=b.DTYPES[str(tensor.dtype).removeprefix("torch.")],
                            rank=tensor.dim(), shape=shape)
            self.give_bytes(made, tensor)
            key = name.encode()
            b.berth_dict_set_value(self.root, b.berth_make_str(self.tree, key, len(key)),
                                   b.berth_make_tensor(self.tree, c.byref(made)))
        b.check(b.berth_tree_error, self.tree)

    def give_bytes(self, made, tensor):
        made.data = tensor.data_ptr()

    def free(self):
        b.berth_tree_free(self.tree)


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def then_synced(name, save, path):
    """For a peer that does not sync: two figures, in the page cache and on the disk."""
    begin = time.perf_counter()
    save(path)
    cached = time.perf_counter()
    sync(path)
    return {name: cached - begin, f"{name} + fsync": time.perf_counter() - begin}


def torch_save(state, crc32, synced=True):
    name = "torch.save" if crc32 else "torch.save, CRC off"

    def run(path):
        torch.serialization.set_crc32_options(crc32)
        seconds = then_synced(name, lambda to: torch.save(state, to), path)
        return seconds if synced else {name: seconds[name]}
    return run


def safetensors_save(state):
    import safetensors.torch

    return lambda path: then_synced(
        "safetensors", lambda to: safetensors.torch.save_file(state, to), path)


def berth_save(name, tree, options):
    def run(path):
        with b.patched(options):
            begin = time.perf_counter()
            b.check(b.berth_save, path.encode(), tree.root, None)
            return {name: time.perf_counter() - begin}
    return run


def memory_copy(nbytes):
    """What memory itself allows: one thread, 1 GiB at most, scaled to nbytes."""
    n = min(nbytes, 1 << 30)
    source, target = torch.ones(n, dtype=torch.uint8), torch.ones(n, dtype=torch.uint8)

    def run(_):
        begin = time.perf_counter()
        c.memmove(target.data_ptr(), source.data_ptr(), n)
        return {"memcpy": (time.perf_counter() - begin) * nbytes / n}
    return run


def verify(path, state):
    """Checks every CRC, and that PyTorch reads what was saved."""
    b.check(b.berth_verify, b.from_path(path), None, None, None, None)
    loaded = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    if list(loaded) != list(state):
        raise b.BerthError(f"{path}: PyTorch finds other names than were saved")
    for name, tensor in state.items():
        # By bytes: random floats contain NaNs, which are equal to nothing.
        if not torch.equal(loaded[name].view(torch.uint8), tensor.cpu().view(torch.uint8)):
            raise b.BerthError(f"{path}: PyTorch reads {name} differently")
