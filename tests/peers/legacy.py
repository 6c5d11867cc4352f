# SPDX-License-Identifier: BSD-3-Clause
"""Every case in the format from before PyTorch 1.6, in each protocol that the library reads."""

import os
import subprocess

import berth_ctypes as b
import cases
import torch
from describe import FromBerth, FromTorch, difference
from files import Bad, expect

COMMAND = os.path.join(b.BUILD, "berth")

def torch_saves(value, path, protocol):
    torch.save(value, path, _use_new_zipfile_serialization=False, pickle_protocol=protocol)


def same_values(path, value):
    with FromBerth(path) as checkpoint:
        found = difference(checkpoint.root(), FromTorch().describe(value))
    expect(found is None, found)


def converted(folder, path, value):
    """What the command makes of it is a file of today for PyTorch."""
    new = f"{folder}/new.pt"
    done = subprocess.run([COMMAND, "convert", path, new], capture_output=True, text=True, check=False)
    expect(done.returncode == 0, done.stderr.strip()[-300:])
    loaded = FromTorch().describe(torch.load(new, weights_only=True))
    found = difference(loaded, FromTorch().describe(value))
    expect(found is None, found)


def protocols(differs):
    """weights_only=True refuses b'' in protocol 2; protocol 3 has an opcode for it. PyTorch writes
    bytes that no element of the storage has, and overlooks them when it reads on: only_mmap. Each if it is not large."""
    if differs.get("only_mmap"):
        return ()
    return (3,) if differs.get("torch_cannot_load") else (2,) if differs.get("is_large") else (2, 3)


def all_cases(results, folder):
    path = f"{folder}/legacy.pt"
    for name, make in cases.CASES.items():
        for protocol in protocols(make.differs):
            title = f"legacy, protocol {protocol}: {name}"
            if results.words and not any(word in title for word in results.words):
                continue
            value = make()
            torch_saves(value, path, protocol)
            results.run(f"{title}: values", same_values, path, value)
            if not make.differs.get("torch_loads_otherwise"):
                results.run(f"{title}: convert", converted, folder, path, value)
