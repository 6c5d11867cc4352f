# SPDX-License-Identifier: BSD-3-Clause
"""Cases of dcp_bases.py: what all ranks of a world do, each a function of the rank."""

import logging
import os
import signal
import subprocess

import berth
import berth.dcp
import torch
import torch.distributed as dist
from berth import _native
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

MIB = 1 << 20
BLOCKS = "save.storage_alignment"


def tensors():
    """Each of 2 MiB, whose rows are 4 KiB."""
    torch.manual_seed(11)
    return {name: torch.randn(512, 1024) for name in ("rows", "columns", "copies", "more")}


def shards(rank, whole):
    places = {"rows": Shard(0), "columns": Shard(1), "copies": Replicate(), "more": Shard(0)}
    return {name: distribute_tensor(tensor, rank.mesh, [places[name]]) for name, tensor in whole.items()}


class Said(logging.Handler):
    """What the coordinator's logger tells of bases."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def save(rank, whole, path, base, save=berth.dcp.save):
    """(bytes that are shared, why no more), on rank 0; the file is the one of one process without a base."""
    log, said = logging.getLogger("berth"), Said()
    log.addHandler(said)
    log.setLevel(logging.INFO)
    try:
        save(shards(rank, whole), path, base=base)
    finally:
        log.removeHandler(said)
    dist.barrier()
    if rank.rank:
        assert not said.texts, said.texts
        return None
    expected = rank.path("expected/" + os.path.basename(path))
    berth.save(whole, expected, base="")
    with open(path, "rb") as file, open(expected, "rb") as other:
        assert file.read() == other.read(), path
    found = [text for text in said.texts if " shares " in text]
    if not found:
        return 0, ""
    words = found[0].partition(" shares ")[2]
    return int(words.split()[0]), words.partition(": ")[2]


def check(rank, found, least, most, why=""):
    if rank.rank == 0:
        assert least <= found[0] <= most and why in found[1], found


def same_path(rank):
    """Any layout of storages: with the usual alignment the offsets of the same names are the same."""
    path, whole = rank.path("a.pt"), tensors()
    check(rank, save(rank, whole, path, ""), 0, 0)
    check(rank, save(rank, whole, path, path), 5.5 * MIB, 6 * MIB)  # columns are exchanged, and not shared
    whole["rows"] = whole["rows"] + 1
    check(rank, save(rank, whole, path, path), 3.5 * MIB, 4 * MIB)
    whole["more"][-1] += 1  # the end of what the last rank has
    check(rank, save(rank, whole, path, path.encode()), 3.5 * MIB, 6 * MIB)


def asynchronous(rank):
    def later(*arguments, **named):
        berth.dcp.async_save(*arguments, **named).result()

    path, whole = rank.path("b.pt"), tensors()
    check(rank, save(rank, whole, path, "", later), 0, 0)
    whole["copies"] = whole["copies"] * 2
    check(rank, save(rank, whole, path, path, later), 3.5 * MIB, 4 * MIB)


def other_bases(rank):
    path, old, whole = rank.path("c.pt"), rank.path("old.pt"), tensors()
    text, cut, safe, names = rank.path("text"), rank.path("cut.pt"), rank.path("old.safetensors"), rank.path("names.pt")
    with berth.config.patch({BLOCKS: 4096}):
        if rank.rank == 0:
            berth.save({**whole, "rows": whole["rows"][1:].clone()}, old)
            berth.save(whole, cut)
            os.truncate(cut, os.path.getsize(cut) // 2)
            berth.save(whole, safe)
            berth.save(whole, names)
            with open(text, "wb") as file:
                file.write(b"nothing " * 10000)
        dist.barrier()
        check(rank, save(rank, whole, path, old), 3.5 * MIB, 4 * MIB)  # another layout: rows is shorter
        check(rank, save(rank, whole, path, names), 5.5 * MIB, 6 * MIB)
        check(rank, save(rank, whole, path, rank.path("none")), 0, 0, "rank 0: the base does not exist")
        for each in text, cut, safe:
            check(rank, save(rank, whole, path, each), 0, 0, "no zip archive")
        with berth.config.patch("save.base", names):
            check(rank, save(rank, whole, path, None), 5.5 * MIB, 6 * MIB)
        # One rank that cannot.
        mine = names if rank.rank == 0 else "/nowhere"
        check(rank, save(rank, whole, path, mine), 0.5 * MIB, 4 * MIB, "rank 1: the base does not exist")
        with berth.config.patch("debug", True):
            check(rank, save(rank, whole, path, names), 5.5 * MIB, 6 * MIB)


def room(rank):
    """Blocks are shared indeed."""
    path, old, whole = rank.path("d.pt"), rank.path("e/old.pt"), tensors()

    def used():
        if rank.rank == 0:
            subprocess.run(["sync", "-f", rank.folder], check=True)
        dist.barrier()
        status = os.statvfs(rank.folder)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    with berth.config.patch({BLOCKS: 4096, "save.base": old}):
        if rank.rank == 0:
            berth.save(whole, old, base="")
        before = used()
        berth.dcp.save(shards(rank, whole), path)
        grown = used() - before
        assert grown < 4 * MIB, grown  # 2 are columns


def no_path(rank):
    """What is no path."""
    rank.assert_raises(TypeError, 0, "", berth.dcp.save, shards(rank, tensors()), rank.path("f.pt"), base=3)


def killed(rank):
    """J6: while it shares and writes."""
    path, whole = rank.path("k/k.pt"), tensors()
    save(rank, whole, path, "")
    with open(path, "rb") as file:
        old = file.read()
    whole["rows"] = whole["rows"] + 1
    mine = shards(rank, whole)
    dist.barrier()
    if rank.rank == 1:
        _kill_in_writing(path)
    try:
        berth.dcp.save(mine, path, base=path)
    except Exception:
        pass
    else:
        raise AssertionError("no error")
    with open(path, "rb") as file:
        assert file.read() == old


def _kill_in_writing(path):
    """This process dies when it has written its part."""
    inner = _native.joint_write

    def die(*arguments):
        inner(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    _native.joint_write = die


CASES = {each.__name__: each for each in (same_path, asynchronous, other_bases, room, no_path)}
