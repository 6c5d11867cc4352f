# SPDX-License-Identifier: BSD-3-Clause
"""berth.save and berth.load against torch.save and torch.load.

usage: run [--alone | --beside] [WORD...]
--beside: only BESIDE below; --alone: only the others; words: only tests that have one of them in their names, those
of wheels.py only by the word wheels
BERTH_BUILD: folder of a built variant; BERTH_PYTHON: a Python with PyTorch
"""

import gc
import os
import signal
import sys
import warnings

import starter

os.environ.setdefault("BERTH_PYTHON", sys.executable)
starter.start((*starter.IMPORTED, "berth", "torch._dynamo"))  # before the others: it imports beside them

import torch

import attributes
import bases
import beside_torch
import calls
import command
import dcp
import dcp_bases
import devices
import differential
import ends
import errors
import gate
import installed
import integrations
import jobs
import lazily
import loads
import mounts
import pages
import places
import processes
import raising
import records
import refusals
import robust
import rows
import sanitized
import saves
import sets
import settings
import simulated
import stubs
import suite
import unsafe
import weights
import wheels


# What takes long first: two classes run at a time.
BESIDE = (calls, mounts, raising, ends, robust, processes, jobs)  # threads, forks, ^C, ends of processes, odd mounts
ALONE = (dcp, bases, dcp_bases, sets, weights, attributes, loads, records, differential, saves, places, rows, installed, errors, lazily, refusals,
         command, settings, beside_torch, stubs, pages, unsafe, gate, devices, simulated, integrations, sanitized)


def main():
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" leaves it ignored
    torch.set_num_threads(1)
    if "--old-dlpack" in sys.argv:  # as before PyTorch 2.10, which brought its table of C functions
        sys.argv.remove("--old-dlpack")
        del torch.Tensor.__dlpack_c_exchange_api__
    sys.setrecursionlimit(5000)  # for the walks of these files
    words = sys.argv[1:]
    modules = BESIDE * ("--alone" not in words) + ALONE * ("--beside" not in words)
    # pip and compilers: a part of tools/check by themselves.
    modules = (wheels,) if "wheels" in words else modules
    gc.collect()
    gc.freeze()  # PyTorch's modules: each collection would look at all of them, and each fork copy them
    suite.run(suite.load(modules, [each for each in words if each[:2] != "--"]))


if __name__ == "__main__":
    main()
