# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints of devices, in both directions.

Everywhere: what tensors on simulated:0, and those recorded as of cuda:0, become; that PyTorch loads
them with map_location="cpu"; that they are the bytes that torch.save writes of CUDA tensors. With a
GPU: CUDA tensors themselves.
"""

import ctypes as c
import io
import json
import os
import subprocess
from contextlib import contextmanager

import berth_ctypes as b
import cases
import torch
from build_tree import Tree
from describe import FromBerth, FromTorch, difference, digest
from files import expect, identical

SIMULATED = "simulated:0"
Rule = b.structure("berth_storage_rule")


class Recorded(Tree):
    """Tensors in main memory, recorded as of a device."""

    def __init__(self, value, location):
        self.location = location
        super().__init__(value)

    def new_storage(self, untyped, kind):
        return b.berth_storage_new(self.tree, kind, untyped.data_ptr(), untyped.nbytes(),
                                   self.location.encode())


class Simulated(Tree):
    """The same tensors, their bytes in the memory of a simulated device."""

    def __init__(self, value):
        self.addresses = []
        super().__init__(value)

    def new_storage(self, untyped, kind):
        address, nbytes = c.c_size_t(), untyped.nbytes()
        b.check(b.berth_device_memory_new, SIMULATED.encode(), nbytes, c.byref(address))
        self.addresses.append(address.value)
        b.check(b.berth_device_memory_copy, SIMULATED.encode(), address, untyped.data_ptr(), nbytes,
                b.TO_DEVICE)
        return b.berth_device_storage_new(self.tree, kind, address, nbytes, SIMULATED.encode(), None)

    def __exit__(self, *_):
        super().__exit__()
        for address in self.addresses:
            b.berth_device_memory_free(SIMULATED.encode(), address)


def save(make_tree, path, *arguments):
    with make_tree(*arguments) as tree:
        tree.save(path)


@contextmanager
def torch_records(location):
    """What torch.save writes when tensors lie there: it asks this function, and nothing else. Of
    devices the answer is a new text each time, which the pickle cannot refer back to."""
    asked = torch.serialization.location_tag
    torch.serialization.location_tag = lambda storage: "".join(list(location))
    try:
        yield
    finally:
        torch.serialization.location_tag = asked


def torch_loads(path, wanted, mmap=False):
    loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    found = difference(FromTorch().describe(loaded), wanted)
    expect(found is None, found)


def berth_loads(path, wanted):
    """Everything to main memory, wherever it was."""
    with b.patched("load.check=data"), FromBerth(path) as checkpoint:
        found = difference(checkpoint.root(), wanted)
    expect(found is None, found)


class ToDevice(FromBerth):
    """A checkpoint all of whose storages go to a device, and are copied back to be looked at."""

    def __init__(self, path, place):
        super().__init__(path)
        self.place = place.encode()
        rule = Rule(device=self.place)
        b.check(b.berth_set_storage_rules, self.checkpoint, c.byref(rule), 1)
        b.check(b.berth_load, self.checkpoint, None, None)

    def digest_of(self, storage, nbytes):
        address, back = c.c_size_t(), c.create_string_buffer(nbytes)
        shape, stride = (c.c_int64 * 1)(nbytes), (c.c_int64 * 1)(1)
        whole = b.Tensor(dtype=b.DTYPES["uint8"], rank=1, shape=shape, stride=stride, storage=storage)
        b.check(b.berth_tensor_device_address, self.checkpoint, c.byref(whole), c.byref(address))
        b.check(b.berth_device_memory_copy, self.place, address, back, nbytes, b.FROM_DEVICE)
        return digest(c.addressof(back), nbytes)


def berth_loads_to(place, path, wanted):
    with b.patched("load.check=data load.mmap=off"), ToDevice(path, place) as checkpoint:
        found = difference(checkpoint.root(), wanted)
    expect(found is None, found)


def torch_misses(path, text):
    """Without map_location it looks for the device: the file does say so."""
    try:
        torch.load(path, weights_only=True)
    except RuntimeError as error:
        expect(text in str(error), f"another error: {error}")
    else:
        expect(False, "PyTorch loads it without the device")


def has_bytes(value):
    """Whether a storage of it lies anywhere."""
    found = []

    def look(description):
        if isinstance(description, tuple):
            if description[:1] in (("tensor",), ("storage",)):
                found.append(description[-1] != "meta")
            for item in description:
                look(item)

    look(FromTorch().describe(value))
    return any(found)


def one_case(results, folder, name, value, differs):
    ours, theirs = f"{folder}/ours/{name}.pt", f"{folder}/theirs/{name}.pt"
    mmap = bool(differs.get("only_mmap"))
    for location, tree in (("cuda:0", (Recorded, ours, value, "cuda:0")),
                           (SIMULATED, (Simulated, ours, value))):
        title = f"devices: {name}: {location}"
        wanted = FromTorch().describe(value)
        with torch_records(location):
            torch.save(value, theirs)
        if differs.get("torch_loads_otherwise"):
            wanted = FromTorch().describe(torch.load(theirs, map_location="cpu", mmap=mmap))
        results.run(f"{title}: Berth saves", save, *tree)
        if not differs.get("bytes_differ"):
            results.run(f"{title}: byte-identical", identical, ours, theirs)
        results.run(f"{title}: Berth -> PyTorch, map_location=cpu", torch_loads, ours, wanted, mmap)
        if not differs.get("torch_loads_otherwise"):
            results.run(f"{title}: Berth -> Berth", berth_loads, ours, wanted)
        if not differs.get("torch_loads_otherwise") and not differs.get("torch_cannot_load"):
            results.run(f"{title}: PyTorch -> Berth, to a device", berth_loads_to, SIMULATED, theirs, wanted)
        if location == "cuda:0" and has_bytes(value) and not mmap and not torch.cuda.is_available():
            results.run(f"{title}: recorded", torch_misses, ours, "map_location")


def all_cases(results, folder):
    for side in ("ours", "theirs"):
        os.makedirs(f"{folder}/{side}", exist_ok=True)
    for name, make in cases.CASES.items():
        if not make.differs.get("is_large"):
            one_case(results, folder, name, make(), make.differs)


# ---- several devices in one file ----


def command(*words):
    done = subprocess.run([os.path.join(b.BUILD, "berth"), *words, "--json"], capture_output=True,
                          text=True, check=True)
    return json.loads(done.stdout)


class Scattered(Tree):
    """Storages one by one recorded as of several devices."""

    PLACES = ("cuda:0", "cpu", "cuda:1", "cuda:0")

    def new_storage(self, untyped, kind):
        place = self.PLACES[len(self.storages)]
        return b.berth_storage_new(self.tree, kind, untyped.data_ptr(), untyped.nbytes(),
                                   place.encode())


def told_by_the_command(path):
    rows = command("ls", path)
    expect([row["device"] for row in rows] == [*Scattered.PLACES, "meta"], f"ls: {rows}")
    places = command("info", path)["devices"]
    expect(places == [{"device": "cpu", "storages": 1, "nbytes": 8},
                      {"device": "cuda:0", "storages": 2, "nbytes": 20},
                      {"device": "cuda:1", "storages": 1, "nbytes": 12}], f"info: {places}")
    text = subprocess.run([os.path.join(b.BUILD, "berth"), "info", path], capture_output=True,
                          text=True, check=True).stdout
    expect("cuda:0, 2 storages, 20 bytes\n" in text, text)


def mixed(results, folder):
    value = [cases.numbers(n + 1) for n in range(4)] + [torch.empty(3, device="meta")]
    path = f"{folder}/mixed.pt"
    results.run("devices: several in one file: Berth saves", save, Scattered, path, value)
    results.run("devices: several in one file: map_location=cpu", torch_loads, path,
                FromTorch().describe(value))
    results.run("devices: several in one file: ls and info", told_by_the_command, path)


# ---- a GPU ----


def on_gpu(value):
    """The same value with the same sharing, on the GPU; PyTorch itself moves it."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, map_location="cuda:0", weights_only=True)


def save_from_gpu(path, value):
    """Behind the kernels that make the values: PyTorch's own stream has them under way."""
    event = torch.cuda.Event()
    event.record()

    class Ready(Tree):
        ready = event.cuda_event

    save(Ready, path, value)


def torch_loads_to_gpu(path, wanted):
    loaded = torch.load(path, weights_only=True)
    found = difference(FromTorch().describe(loaded), wanted)
    expect(found is None, found)


def cuda(results, folder):
    if not torch.cuda.is_available():
        print("skipped: CUDA tensors, in both directions: PyTorch finds no GPU here", flush=True)
        return
    for name, make in cases.CASES.items():
        differs = make.differs
        if any(differs.get(each) for each in ("is_large", "torch_cannot_load", "only_mmap")):
            continue
        try:
            value = on_gpu(make())
            wanted = FromTorch().describe(value)
        except (RuntimeError, NotImplementedError) as error:
            print(f"skipped: {name} on a GPU: {str(error).splitlines()[0][:100]}", flush=True)
            continue
        ours, theirs = f"{folder}/ours/{name}.pt", f"{folder}/theirs/{name}.pt"
        torch.save(value, theirs)
        title = f"devices: {name}: a GPU"
        results.run(f"{title}: Berth saves", save_from_gpu, ours, value)
        results.run(f"{title}: byte-identical", identical, ours, theirs)
        if differs.get("torch_loads_otherwise"):
            continue
        results.run(f"{title}: Berth -> PyTorch", torch_loads_to_gpu, ours, wanted)
        results.run(f"{title}: Berth -> PyTorch, map_location=cpu", torch_loads, ours, wanted)
        results.run(f"{title}: PyTorch -> Berth, to main memory", berth_loads, theirs, wanted)
        results.run(f"{title}: PyTorch -> Berth, to the GPU", berth_loads_to, "cuda:0", theirs, wanted)


if __name__ == "__main__":  # tools/gpu: these alone
    import sys
    import tempfile
    import warnings

    from peers import Results

    warnings.simplefilter("ignore")
    sys.setrecursionlimit(20000)
    outcome = Results(sys.argv[1:], False)
    with tempfile.TemporaryDirectory(prefix="berth-peers-") as place:
        for group in (all_cases, mixed, cuda):
            group(outcome, place)
    print(f"{outcome.passed} passed, {outcome.failed} failed")
    sys.exit(1 if outcome.failed or not outcome.passed else 0)
