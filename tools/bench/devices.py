# SPDX-License-Identifier: BSD-3-Clause
"""Devices that are saved from and loaded to: a GPU as PyTorch has it, or a simulated one.

What differs between them is here; the simulated one has no peers, and its figures say nothing.
"""

import ctypes as c
import gc
import re
import time

import contestants
import loaders
import machine
import shapes
import tool
import torch
from contestants import b
from tool import MIB
from turns import Turn

try:
    from torch.utils.serialization import config
except ImportError:  # PyTorch before 2.7
    config = None

MAX_BLOCK_NBYTES = 256 * MIB  # of the copy loops: more than caches hold
Rule = b.structure("berth_storage_rule")


class Tree(contestants.Tree):
    """A state_dict whose tensors are on a device."""

    def __init__(self, state, device_name):
        self.device_name = device_name.encode()
        super().__init__(state)

    def address_of(self, tensor):
        return tensor.data_ptr()

    def give_bytes(self, made, tensor):
        nbytes = tensor.numel() * tensor.element_size()
        made.storage = b.berth_device_storage_new(self.tree, made.dtype, self.address_of(tensor), nbytes,
                                                  self.device_name, None)


class CopiedTree(Tree):
    """The same for tensors in main memory that are copied to a device of Berth."""

    def __init__(self, state, device_name):
        self.memory = [memory_of(device_name, tensor) for tensor in state.values()]
        self.left = iter(self.memory)
        super().__init__(state, device_name)

    def address_of(self, tensor):
        return next(self.left)

    def free(self):
        super().free()
        for address in self.memory:
            b.berth_device_memory_free(self.device_name, address)


def memory_of(device_name, tensor):
    address, nbytes = c.c_size_t(), tensor.numel() * tensor.element_size()
    b.check(b.berth_device_memory_new, device_name.encode(), nbytes, c.byref(address))
    b.check(b.berth_device_memory_copy, device_name.encode(), address, tensor.data_ptr(), nbytes,
            b.TO_DEVICE)
    return address.value


# ---- loading ----


class DeviceCheckpoint(loaders.Checkpoint):
    """An open checkpoint, all of which goes to a device: at once, or later by send()."""

    def __init__(self, path, device_name=None):
        super().__init__(path)
        if device_name:
            self.send(device_name)

    def send(self, device_name):
        self.device_name = device_name.encode()
        rule = Rule(device=self.device_name)
        b.check(b.berth_set_storage_rules, self.pointer, c.byref(rule), 1)

    def tensors(self):
        """{name: bytes of a tensor, copied back}: for those that are contiguous."""
        found, address = {}, c.c_size_t()
        for named in self.named():
            nbytes = b.numel(named.tensor) * loaders.DTYPE_NBYTES[named.tensor.contents.dtype]
            back = torch.empty(nbytes, dtype=torch.uint8)
            b.check(b.berth_tensor_device_address, self.pointer, named.tensor, c.byref(address))
            b.check(b.berth_device_memory_copy, self.device_name, address, back.data_ptr(), nbytes,
                    b.FROM_DEVICE)
            found[named.name.decode()] = back
        return found


def berth_load(path, options, device_name):
    """Until all bytes are on the device. Opening the device is not counted: a process does it once."""
    def run():
        with b.patched(options):
            begin = time.perf_counter()
            checkpoint = DeviceCheckpoint(path, device_name)
            checkpoint.fetch()
            return time.perf_counter() - begin
    return run


def compare(path, options, device_name):
    """Checks that Berth loads to the device what PyTorch reads, byte for byte."""
    with b.patched(options):
        checkpoint = DeviceCheckpoint(path, device_name)
        checkpoint.fetch()
        ours, theirs = checkpoint.tensors(), torch.load(path, map_location="cpu", mmap=True)
        if list(ours) != list(theirs):
            raise b.BerthError(f"{path}: PyTorch finds other names than Berth")
        for name, tensor in theirs.items():
            if not torch.equal(ours[name], tensor.view(-1).view(torch.uint8)):
                raise b.BerthError(f"{path}: PyTorch reads {name} differently")


# ---- the kinds ----


class Gpu:
    is_real = True

    def __init__(self, device_name):
        if not torch.cuda.is_available():
            raise OSError("PyTorch finds no GPU here (torch.cuda.is_available() is false): nothing was "
                          "measured. `--device simulated` runs all of this without one, for no figures")
        self.device_name = device_name if ":" in device_name else f"{device_name}:0"
        if torch.device(self.device_name).index >= torch.cuda.device_count():
            raise OSError(f"{self.device_name}: PyTorch finds {torch.cuda.device_count()} GPUs here")
        torch.cuda.set_device(self.device_name)
        b.check(b.berth_device_memory_new, self.device_name.encode(), 0, c.byref(c.c_size_t()))  # can Berth?
        self.host = self.block = None

    def facts(self):
        properties = torch.cuda.get_device_properties(self.device_name)
        return {"device": self.device_name, "name": properties.name, "memory_nbytes": properties.total_memory,
                "cuda": torch.version.cuda, "driver": machine.text_of("/proc/driver/nvidia/version")[:80]}

    def room(self):
        self.settle()
        return torch.cuda.mem_get_info(self.device_name)[0]

    def settle(self):
        """Waits for all work, and frees what earlier turns left."""
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def make(self, shape, nbytes):
        state = shapes.make(shape, nbytes, self.device_name)
        torch.cuda.synchronize()
        return state, Tree(state, self.device_name)

    def copy(self, nbytes, to_host):
        """A plain loop of copies between pinned memory and the device: the bus alone."""
        n = min(nbytes, MAX_BLOCK_NBYTES)
        if self.host is None or self.host.numel() < n:
            self.host = torch.ones(n, dtype=torch.uint8).pin_memory()
            self.block = torch.ones(n, dtype=torch.uint8, device=self.device_name)
            torch.cuda.synchronize()
        target, source = (self.host, self.block) if to_host else (self.block, self.host)
        begin = time.perf_counter()
        for at in range(0, nbytes, n):
            part = min(n, nbytes - at)
            target[:part].copy_(source[:part], non_blocking=True)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    def savers(self, state):
        made = [torch_save(state, pinned, crc32) for pinned in (False, True) for crc32 in (True, False)]
        if tool.version_of("safetensors"):
            made.append(contestants.safetensors_save(state))
        return [each for each in made if each]

    def loaders(self, pt, safetensors, cache):
        device = self.device_name

        def synced(load):
            return loaders.timed(load, lambda _: torch.cuda.synchronize())

        made = [Turn("torch.load", synced(lambda: torch.load(pt, map_location=device, weights_only=True)),
                     pt, cache),
                Turn("torch.load(mmap)", synced(lambda: torch.load(pt, map_location=device, mmap=True,
                                                                   weights_only=True)), pt, cache)]
        if safetensors:
            from safetensors.torch import load_file

            made.append(Turn("safetensors", synced(lambda: load_file(safetensors, device=device)),
                             safetensors, cache))
        return made


class Simulated:
    is_real = False

    def __init__(self, device_name):
        self.device_name = device_name if ":" in device_name else f"{device_name}:0"
        b.check(b.berth_device_memory_new, self.device_name.encode(), 0, c.byref(c.c_size_t()))

    def facts(self):
        return {"device": self.device_name, "name": "simulated", "memory_nbytes": 0}

    def room(self):
        return machine.available_nbytes() / 2

    def settle(self):
        gc.collect()

    def make(self, shape, nbytes):
        state = shapes.make(shape, nbytes)
        return state, CopiedTree(state, self.device_name)

    def copy(self, nbytes, to_host):
        n, address = min(nbytes, 16 * MIB), c.c_size_t()
        host = torch.ones(n, dtype=torch.uint8)
        b.check(b.berth_device_memory_new, self.device_name.encode(), n, c.byref(address))
        direction = b.FROM_DEVICE if to_host else b.TO_DEVICE
        begin = time.perf_counter()
        for at in range(0, nbytes, n):
            b.check(b.berth_device_memory_copy, self.device_name.encode(), address, host.data_ptr(),
                    min(n, nbytes - at), direction)
        seconds = time.perf_counter() - begin
        b.berth_device_memory_free(self.device_name.encode(), address)
        return seconds

    def savers(self, state):
        return []

    def loaders(self, pt, safetensors, cache):
        return []


def device_of(name):
    found = re.fullmatch(r"(cuda|simulated)(:\d+)?", name)
    if not found:
        raise OSError(f"there is no device '{name}'; there are cuda:0 and simulated")
    return (Gpu if found[1] == "cuda" else Simulated)(name)


def torch_save(state, pinned, crc32):
    """None where this PyTorch cannot."""
    if pinned and not hasattr(getattr(config, "save", None), "use_pinned_memory_for_d2h"):
        return None
    name = "torch.save" + (", pinned" if pinned else "") + ("" if crc32 else ", CRC off")

    def run(path):
        if config:
            config.save.use_pinned_memory_for_d2h = pinned
        torch.serialization.set_crc32_options(crc32)
        return contestants.then_synced(name, lambda to: torch.save(state, to), path)
    return run
