# SPDX-License-Identifier: BSD-3-Clause
"""Files that others made: fixtures of older PyTorch, and the checkpoints that a package ships."""

import glob
import importlib.util
import os
import subprocess

import torch

import berth_ctypes as b
from describe import FromBerth, FromTorch, difference
from files import expect

HERE = os.path.dirname(os.path.abspath(__file__))
COMMAND = os.path.join(b.BUILD, "berth")
# Each has its own sentence in tests/command; PyTorch refuses them too.
NO_VALUES = ("module-", "package-", "tar-", "torchscript-", "unknown-")


def fixtures():
    for path in sorted(glob.glob(os.path.join(HERE, "..", "data", "old", "*.p*"))):
        if not os.path.basename(path).startswith(NO_VALUES):
            yield path


def shipped():
    """The six streams from before 1.6 in the wheel of lpips; found, not imported."""
    found = importlib.util.find_spec("lpips")
    folder = os.path.dirname(found.origin) if found else ""
    return sorted(glob.glob(os.path.join(folder, "weights", "v0.*", "*.pth"))) if folder else []


def both_read(path, options=""):
    wanted = FromTorch().describe(torch.load(path, weights_only=True, map_location="cpu"))
    with b.patched(options), FromBerth(path) as checkpoint:
        parted = difference(checkpoint.root(), wanted)
    expect(parted is None, parted)


def left_behind(path, new):
    """Old to new by `berth convert`; the newest PyTorch maps what came out."""
    wanted = FromTorch().describe(torch.load(path, weights_only=True, map_location="cpu"))
    done = subprocess.run([COMMAND, "convert", path, new], capture_output=True, text=True, check=False)
    expect(done.returncode == 0, done.stderr.strip())
    opened = torch.load(new, weights_only=True, mmap=True, map_location="cpu")
    parted = difference(FromTorch().describe(opened), wanted)
    os.remove(new)
    expect(parted is None, parted)


def all_files(results, folder):
    from_package = shipped()
    results.run("shipped: lpips has six checkpoints", expect, len(from_package) == 6,
                f"{len(from_package)} found: is lpips installed?")
    for path in [*fixtures(), *from_package]:
        name = "shipped: " + "/".join(path.split(os.sep)[-2:])
        results.run(name, both_read, path)
        results.run(f"{name}, read", both_read, path, "load.mmap=off load.check=data")
        results.run(f"{name} converted", left_behind, path, os.path.join(folder, "new.pt"))
