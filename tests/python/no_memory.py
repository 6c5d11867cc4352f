# SPDX-License-Identifier: BSD-3-Clause
"""Saves and loads in which each allocation of Python's fails in turn.

usage: no_memory.py FOLDER      prints "ok", and exits with 0, if all went well

Each operation is tried until the failing allocation lies behind its end. What it raises is the
matter of whoever ran out of memory: Berth, Python, or PyTorch. It must not crash, keep a reference,
a descriptor, a lock or a thread, nor leave anything beside the file, which stays whole.
"""

import collections
import gc
import os
import sys
import threading

import _testcapi
import berth
import torch
from berth import _native
from berth._errors import Declined

PATH = os.path.join(sys.argv[1], "v.pt")


def make():
    """A value, and the objects whose references are counted."""
    text, tensors = "a text of its own" * 2, [torch.ones(300) for _ in range(3)]
    attributed = torch.ones(2)
    attributed.note = text
    items = [2.5, 2**80, b"bytes", bytearray(b"bytes"), {"a", "b"}, (1, 2j), text]
    value = {"t": tensors, text: items, "parameter": torch.nn.Parameter(torch.ones(3)),
             "view": tensors[0][2:], "sparse": torch.eye(2).to_sparse(), "attributed": attributed,
             "quantized": torch.quantize_per_tensor(torch.ones(3), 0.5, 1, torch.qint8),
             "ordered": collections.OrderedDict(a=1), "dtype": torch.float16}
    return value, [text, value, items, *items, *value.values(), *tensors,
                   *[tensor.untyped_storage() for tensor in tensors]]


def save(value):
    berth.save(value, PATH)


def save_declined(value):
    try:
        _native.save_begin([value, object()], os.fsencode(PATH), None, False)
    except Declined:
        pass


def begin(snapshot):
    def begin(value):
        _native.save_begin(value, os.fsencode(PATH), None, snapshot)  # and drops it: cancelled

    return begin


def load(value):
    berth.load(PATH)


def load_mapped(value):
    berth.load(PATH, mmap=True)


def load_moved(value):
    berth.load(PATH, lambda storage, location: storage)


def use_file(value):
    with berth.open(PATH) as file:
        file["t.1"], file.keys(), file.info, file.slice("t.2")[1:5]


def fails(operation, value, n):
    """Whether it raises something when allocation n from here on fails."""
    _testcapi.set_nomemory(n, n + 1)
    try:
        operation(value)
    except (MemoryError, RuntimeError, SystemError, KeyError, AttributeError):  # Python has slips, too
        return True
    finally:
        _testcapi.remove_mem_hooks()
    return False


def counted(everything):
    return ([sys.getrefcount(each) for each in everything], len(os.listdir("/proc/self/fd")),
            threading.active_count(), os.listdir(sys.argv[1]), gc.isenabled(),
            sys.getswitchinterval())


def sweep(operation, value, everything):
    """Fails each allocation in turn. Returns: how many there were."""
    operation(value)
    gc.collect()
    before, n, n_failed, good_in_a_row = counted(everything), 0, 0, 0
    while good_in_a_row < 10:
        failed = fails(operation, value, n)
        good_in_a_row = 0 if failed else good_in_a_row + 1
        n_failed += failed
        n += 1
        after = counted(everything)
        assert after == before, (operation.__name__, n, before, after)
    berth.load(PATH)
    return n_failed


def main():
    berth.config.save.durability = "none"
    torch.set_num_threads(1)
    value, everything = make()
    berth.save(value, PATH)
    for operation in (save, save_declined, begin(True), begin(False), load, load_mapped, load_moved,
                      use_file):
        n_failed = sweep(operation, value, everything)
        assert n_failed > 20, (operation.__name__, n_failed)
        print(f"{operation.__name__}: {n_failed} allocations failed")
    print("ok")


if __name__ == "__main__":
    main()
