#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Whether the command does the same on another kind of machine: same words, same files.

usage: same_files.py NATIVE FOREIGN...

NATIVE is one command, FOREIGN another with what runs it. Both list, verify, copy and convert the
files of tests/data, each in a folder of its own and in each byte order. Ends with "N passed, N
failed": one for each file that is read.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
ORDERS = ("little", "big")
# What PyTorch would not swap back is refused in the order that is not the machine's own.
OTHER_ORDER = b"cannot be saved in the other byte order"


def commands(path):
    """What is asked of one file; whatever the answer is, it must be the same."""
    name = path.stem
    yield "ls", path
    yield "ls", "--json", path
    yield "info", "--json", path
    yield "verify", path
    for order in ORDERS:
        in_order = ("--set", f"save.byteorder={order}")
        for inert in ((), ("--set", "load.unknown_globals=inert")):
            saved = f"{name}-{order}{'-inert' if inert else ''}.pt"
            yield "convert", path, saved, *in_order, *inert
            yield "verify", saved
            yield "diff", path, saved, *inert
        yield "copy", path, f"{name}-{order}-copy.pt", *in_order
        yield "convert", "--tensors-only", f"{name}-{order}.pt", f"{name}-{order}.safetensors"
        back = f"{name}-{order}-back.pt"
        yield "convert", f"{name}-{order}.safetensors", back, "--set", f"save.byteorder={order}"


def run(command, arguments, folder):
    done = subprocess.run([*command, *map(str, arguments)], cwd=folder, capture_output=True)
    return done.returncode, done.stdout, done.stderr


def differences(native, foreign, path):
    """The sentences that say what differs."""
    n_good = 0
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
        refused = set()
        for arguments in commands(path):
            if refused & set(arguments):
                continue
            mine, other = run(native, arguments, here), run(foreign, arguments, there)
            n_good += mine[0] == 0
            if OTHER_ORDER in mine[2] + other[2]:
                refused.add(arguments[2])
                continue
            if mine != other:
                yield f"{' '.join(map(str, arguments))}:\n  {mine}\n  {other}"
        names = sorted(set(os.listdir(here)) | set(os.listdir(there)))
        for name in names:
            if not all(os.path.exists(os.path.join(folder, name)) for folder in (here, there)):
                continue  # the commands that make it, or read it, have told
            pair = [pathlib.Path(folder, name) for folder in (here, there)]
            if pair[0].read_bytes() != pair[1].read_bytes():
                yield f"{name}: other bytes"
        print(f"{path.name}: {n_good} commands succeed, {len(names)} files are made")


def main(native, *foreign):
    passed = failed = 0
    for path in sorted([*DATA.glob("torch/*.pt"), *DATA.glob("old/*.pt*")]):
        told = list(differences([native], foreign, path))
        for each in told:
            print(each)
        passed, failed = passed + (not told), failed + bool(told)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
