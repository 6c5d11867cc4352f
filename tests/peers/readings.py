# SPDX-License-Identifier: BSD-3-Clause
"""Files that are made, or changed by chance, to be read in two ways: what Berth reads, PyTorch reads
just so, or not at all (One reading)."""

import glob
import os
import pickletools
import random
import subprocess
import sys
from contextlib import contextmanager

import berth_ctypes as b
import cases
import torch
from describe import FromBerth, FromTorch, difference
from files import LONG, Bad, expect
from torch.utils.serialization import config

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.join(HERE, "../hostile"))
import pickles  # noqa: E402

N_CHANGED = 100000 if LONG else 3000
# Not those for which PyTorch makes tensors of its own from what it reads: quantized, nested.
CHANGED = ("training_script", "state_dict", "shapes", "many_shapes_of_one_storage", "conjugates",
           "parameters_with_attributes", "keys", "sharing", "sets_and_counters", "sparse", "texts",
           "binary", "torch_objects", "bare_storages")
# What load.check=directory does not look at: local headers of later storages (SECURITY.md). Variants
# whose data PyTorch takes from where such a header puts them; from load.check=headers on refused.
ELSEWHERE_BY_LOCAL_HEADER = (
    "sizes:-a-local-header-of-a-later-storage-that-takes-its-data-to-begin-four-bytes-earlier",
    "sizes:-a-local-header-of-a-later-storage-that-takes-its-data-to-begin-four-bytes-later")
# What a pickle is made of, beside what those hold.
PIECES = [b"N", b"\x88", b"\x89", b"]", b"}", b")", b"\x8f", b"(", b"t", b"\x85", b"\x86", b"\x87",
          b"a", b"e", b"s", b"u", b"b", b"R", b"\x81", b"Q", b".", b"K\x00", b"K\x01", b"K\x02",
          b"J\xff\xff\xff\xff", b"\x8a\x00", b"\x8a\x02\x01\x00", b"\x8a\x09" + b"\xff" * 8 + b"\x00",
          b"G" + bytes(8), b"G\x80" + bytes(7), b"G\x7f\xf8" + bytes(6), b"G\x7f\xf0" + bytes(5) + b"\1",
          b"G\x3f\xf0" + bytes(6), pickles.text("0"), pickles.text("1"), pickles.text("a"),
          pickles.text(""), pickles.text("latin1"), b"X\3\0\0\0\xed\xa0\x80", b"U\x02\xff\xfe",
          b"c_codecs\nencode\n", b"c__builtin__\nset\n", b"c__builtin__\nbytearray\n",
          b"cbuiltins\ncomplex\n", b"ccollections\nCounter\n", b"ctorch\nSize\n",
          b"ccollections\nOrderedDict\n", b"ctorch\nfloat16\n", b"ctorch\nUntypedStorage\n",
          b"ctorch.nn.parameter\nParameter\n", pickles.text("data"), pickles.text("real"),
          pickles.text("requires_grad"), pickles.text("__class__"), pickles.text("meta")]


# ---- both readings ----


def plain(described):
    """Without what only one side shows: whether the tensor inside of a Parameter requires grad."""
    if not isinstance(described, tuple):
        return described
    if described[:1] == ("Parameter",) and described[2][0] == "tensor":
        tensor = described[2]
        return (*described[:2], (*tensor[:5], False, *tensor[6:]))
    return tuple(plain(item) for item in described)


def berth_reads(path, options):
    """None: refused; and whether the file was repacked (Z13), or has deflated storages (Z12)."""
    try:
        with b.patched(options), FromBerth(path) as checkpoint:
            info = checkpoint.info()
            return plain(checkpoint.root()), info.repacked, info.n_deflated > 0
    except b.BerthError:
        return None, False, False


def torch_reads(path, mmap, calculate):
    try:
        with config.patch({"load.calculate_storage_offsets": calculate}):
            return plain(FromTorch().describe(torch.load(path, weights_only=True, mmap=mmap)))
    except Exception:  # of many kinds; whatever it says, it is no other reading
        return None


def read_alike(path, check):
    """Whether Berth reads it; then PyTorch in no way reads anything else. Of what Berth calls
    repacked, calculated offsets are known to be wrong; and PyTorch maps deflated bytes as they are."""
    ours, repacked, deflated = berth_reads(path, f"debug=off load.check={check}")
    for mmap in () if ours is None else (False,) if deflated else (False, True):
        for calculate in (False,) if repacked else (False, True):
            theirs = torch_reads(path, mmap, calculate)
            found = theirs and difference(ours, theirs)
            expect(not found, f"load.check={check}, PyTorch with mmap={mmap}, calculated offsets="
                              f"{calculate}: {found}")
    return ours is not None


def read_elsewhere(path):
    """Berth by default and PyTorch differ, as is told; once they agree this is no exception."""
    expect(berth_reads(path, "debug=off load.check=headers")[0] is None, "load.check=headers: read")
    try:
        read_alike(path, "directory")
    except Bad:
        return
    expect(False, "load.check=directory: read alike, or refused: no exception any more")


@contextmanager
def without_debug():
    """With it, both compare offsets, and refuse more."""
    was = os.environ.pop("TORCH_SERIALIZATION_DEBUG", None)
    yield
    if was is not None:
        os.environ["TORCH_SERIALIZATION_DEBUG"] = was


# ---- archives ----


def variants(results, folder):
    """Those of tests/hostile/ambiguity.c."""
    kept = os.path.join(folder, "variants")
    os.mkdir(kept)
    subprocess.run([os.path.join(b.BUILD, "tests/hostile/all"), "--jobs=1", "--filter=ambiguity/*"], check=True,
                   env=dict(os.environ, BERTH_KEEP=kept), stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    with without_debug():
        for path in sorted(glob.glob(f"{kept}/*.pt")):
            variant = os.path.basename(path)[:-3]
            if variant in ELSEWHERE_BY_LOCAL_HEADER:
                results.run(f"read elsewhere by default: {variant}", read_elsewhere, path)
                continue
            name = f"read alike: {variant}"
            for check in ("directory", "headers"):
                results.run(f"{name}, load.check={check}", read_alike, path, check)


# ---- pickles ----


def operations(path):
    """Of a file of PyTorch's: its pickle by opcodes, its storages."""
    reader = torch._C.PyTorchFileReader(path)
    pickle = reader.get_record("data.pkl")
    places = [place for _, _, place in pickletools.genops(pickle)] + [len(pickle)]
    storages = [(name[5:], reader.get_record(name)) for name in reader.get_all_records()
                if name.startswith("data/")]
    return [pickle[i:j] for i, j in zip(places, places[1:])], storages


def changed(rng, parts, pool):
    parts = list(parts)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, other = rng.randrange(1, len(parts)), rng.randrange(1, len(parts))
        piece = rng.choice(pool) if rng.random() < 0.5 else rng.choice(PIECES)
        kind = rng.randrange(5)
        if kind == 0:
            del parts[at]
        elif kind == 1:
            parts[at] = piece
        elif kind == 2:
            parts.insert(at, piece)
        elif kind == 3:
            parts[at], parts[other] = parts[other], parts[at]
        else:
            byte = rng.randrange(len(parts[at]))
            parts[at] = parts[at][:byte] + bytes([rng.randrange(256)]) + parts[at][byte + 1:]
    return b"".join(parts)


def changed_pickles(path, seeds, n):
    rng = random.Random(31)
    pool = [part for parts, _ in seeds for part in parts]
    n_read = 0
    for i in range(n):
        parts, storages = rng.choice(seeds)
        content = pickles.archive(changed(rng, parts, pool), storages)
        with open(path, "wb") as file:
            file.write(content)
        n_read += read_alike(path, "headers")
    print(f"changed pickles: {n_read} of {n} read, and alike by PyTorch", flush=True)
    expect(n_read > n // 50, "too few to tell anything")


def pickles_by_chance(results, folder):
    path, seeds = os.path.join(folder, "changed.pt"), []
    for name in CHANGED:
        torch.save(cases.CASES[name](), path)
        seeds.append(operations(path))
    with without_debug():
        results.run("read alike: pickles changed by chance", changed_pickles, path, seeds, N_CHANGED)
