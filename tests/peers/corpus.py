# SPDX-License-Identifier: BSD-3-Clause
"""What people do to files, by the tools that they use: each kind opens as in PyTorch, or is refused
with the sentence of its row, and mended by the command in it."""

import math
import os
import random
import re
import shutil
import subprocess
import zipfile

import berth_ctypes as b
import torch
from corpus_files import DAMAGED, DOWNLOADS, WHOLE, WRAPPED
from corpus_saves import SAVED
from corpus_zips import COMPRESSED, REPACKED
from describe import FromBerth, FromTorch, difference
from files import expect
from torch.utils.serialization import config

SEED = 20
LEVELS = ("load.check=none", "load.check=directory", "load.check=headers", "load.mmap=on", "load.mmap=off",
          "load.calculate_storage_offsets=off", "load.check=data")
BLIND = LEVELS[0]  # looks at no directory
KINDS = REPACKED + COMPRESSED + WRAPPED + DAMAGED + WHOLE + SAVED + DOWNLOADS
MIN_KINDS = 60


def noise(dtype, *shape):
    """What no tool makes smaller, with a line end of Windows in it."""
    nbytes = dtype.itemsize * math.prod(shape)
    return torch.frombuffer(bytearray(random.Random(SEED).randbytes(nbytes)), dtype=dtype).reshape(shape)


def value():
    weight = noise(torch.float32, 96, 96)
    return {"state_dict": {"layer.weight": weight, "layer.weight_t": weight.t(), "layer.row": weight[3, 4:],
                           "layer.bias": noise(torch.bfloat16, 96), "steps": torch.tensor(7),
                           "mask": torch.tensor([True, False, True]), "half": noise(torch.float16, 5, 3),
                           "none": torch.zeros(0, 4), "zeros": torch.zeros(64, 64, dtype=torch.int64)},
            "epoch": 3, "name": "Größe", "lr": 1e-3, "betas": (0.9, 0.999)}


def run(command):
    done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, check=False, timeout=600)
    expect(done.returncode == 0, f"{command}: {done.stdout[-300:]}")


# ---- one kind ----


def torch_reads(mmap, path):
    with config.patch({"load.calculate_storage_offsets": False}):
        return FromTorch().describe(torch.load(path, weights_only=True, mmap=mmap))


def torch_tells(mmap=False, path="new.pt"):
    """What PyTorch reads, and None; or None, and what it says."""
    try:
        return torch_reads(mmap, path), None
    except Exception as error:  # of any class: it has its own for every kind
        return None, f"{type(error).__name__}: {str(error)[:150]}"


def berth_tells(options, path="new.pt"):
    """The same of Berth."""
    try:
        with b.patched(f"debug=off {options}"), FromBerth(path) as checkpoint:
            return checkpoint.root(), None
    except b.BerthError as error:
        return None, str(error).removeprefix(f"{path}: ")


def can_be_mapped():
    """PyTorch maps no other format, and takes what is compressed for what it says."""
    with open("new.pt", "rb") as file:
        if file.read(4) != b"PK\3\4":
            return False
    with zipfile.ZipFile("new.pt") as archive:
        return all(info.compress_type == 0 for info in archive.infolist() if "/data/" in info.filename)


def expect_same(who, found, why, wanted):
    expect(why is None, f"{who} refuses it: {why}")
    where = difference(found, wanted)
    expect(where is None, f"{who} reads something else: {where}")


def opens(kind, original):
    wanted, why = torch_tells()
    expect((why is None) == kind.torch_opens, f"PyTorch: {why or 'opens it'}")
    wanted = wanted or original
    if not kind.is_changed:
        expect_same("PyTorch", wanted, None, original)
    if kind.torch_opens and can_be_mapped():
        expect_same("PyTorch, mapped", *torch_tells(True), wanted)
    for level in ("", *LEVELS):
        found, why = berth_tells(level)
        if level == "load.check=data" and kind.sums:
            expect(why == kind.sums, f"{level}: {why}")
        else:
            expect_same(f"Berth, {level or 'as it is'},", found, why, wanted)


def is_said(said, wanted):
    """In the table # stands for a number that depends on the tool's version."""
    pattern = re.escape(wanted).replace(r"\#", "[0-9]+")
    return said is not None and re.fullmatch(pattern, said, re.DOTALL)


def refused(kind):
    _, why = torch_tells()
    expect((why is None) == kind.torch_opens, f"PyTorch: {why or 'opens it'}")
    for level in ("", *LEVELS):
        _, said = berth_tells(level)
        expect(level == BLIND or said is not None, f"{level}: it opens")
        expect(level or is_said(said, kind.says), f"it says: {said}")
        if not level and not kind.name.endswith("protocol 0"):
            pasted(said)


def pasted(says):
    """The command that is said makes a checkpoint of the file, or the next kind that says how."""
    found = re.search("`(.*NEW[.](?:pt|zip).*?)`", says)
    if not found or "convert . " in found[1]:  # of a directory: only this file of it is here
        return
    words = re.sub(r"\bFILE\b", "new.pt", found[1]).replace("NAME.zip", "split.zip")
    words = words.replace("python3", os.environ["BERTH_PYTHON"], 1).replace("berth ", f"{b.BUILD}/berth ", 1)
    words = re.sub("^7z x", "7zz x -psecret", words)  # the corpus's password
    run(words)
    if "NEW.zip" in words:
        os.rename("NEW.zip", "NEW.pt")
    read, why = berth_tells("", "NEW.pt")
    if read is None:
        expect("`" in why, f"{found[1]} makes no checkpoint: {why}")
    else:
        expect_same("PyTorch", *torch_tells(path="NEW.pt"), read)


def check(kind, original):
    expect(bool(kind.why) == (kind.torch_opens != kind.opens), "why is PyTorch's verdict another one?")
    if kind.opens:
        opens(kind, original)
    else:
        refused(kind)


# ---- all of them ----


def begin(folder, made):
    """Where each kind begins: a checkpoint, and its folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(made, folder, symlinks=True)
    os.chdir(folder)


def make_original(folder):
    os.makedirs(folder)
    os.chdir(folder)
    saved = value()
    torch.save(saved, "model.pt")
    subprocess.run(["unzip", "-q", "model.pt"], check=True)
    return FromTorch().describe(saved)


def make(kind):
    if callable(kind.make):
        kind.make(value())
    else:
        run(kind.make)


def try_kind(kind, folder, made, original):
    begin(folder, made)
    make(kind)
    check(kind, original)


def all_kinds(results, folder):
    was = os.environ.pop("TORCH_SERIALIZATION_DEBUG", None)  # it refuses what was repacked
    here, made = os.getcwd(), f"{folder}/corpus-made"
    original = make_original(made)
    kinds = KINDS
    names = [kind.name for kind in kinds]
    expect(len(set(names)) == len(names) >= MIN_KINDS, f"{len(names)} kinds")
    for kind in kinds:
        missing = [tool for tool in kind.tools if not shutil.which(tool)]
        if missing and (os.environ.get("CI") != "true" or missing == ["jar"]):  # a JDK is too large for it
            print(f"skipped: corpus: {kind.name}: no {', '.join(missing)}")
            continue
        results.run(f"corpus: {kind.name}", try_kind, kind, f"{folder}/corpus", made, original)
    os.chdir(here)
    if was is not None:
        os.environ["TORCH_SERIALIZATION_DEBUG"] = was
