# SPDX-License-Identifier: BSD-3-Clause
"""Storages around 2^32 bytes and headers past 4 GiB, as sparse files."""

import ctypes as c
import os
import zipfile

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.serialization import config

import berth_ctypes as b
from build_tree import Tree
from describe import FromBerth, FromTorch, difference
from files import LONG, expect, libzip_accepts, same_bytes, unzip_accepts, zipfile_accepts

GIB4 = 2**32
SIZES = (GIB4 - 2, GIB4 - 1, GIB4, GIB4 + 5)


def nothing(nbytes):
    """Zeros that no memory holds until they are written to."""
    return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage(nbytes))


def small():
    return torch.zeros(3)


def values():
    """Each size first in a file and after 4 GiB of others, with small records between."""
    for nbytes in SIZES:
        yield f"{nbytes} bytes", {"big": nothing(nbytes), "after": small()}
    order = {}
    for nbytes in SIZES:
        order[f"small before {nbytes}"] = small()
        order[f"{nbytes}"] = nothing(nbytes)
    yield "all sizes", {**order, "empty": torch.zeros(0), "last": small()}
    # The header of the second begins right below, at and above 4 GiB.
    for less in (400, 320, 256, 192, 128, 64, 0):
        yield f"header near 4 GiB, {less} less", {"a": nothing(GIB4 - 1024 - less), "b": small(),
                                                  "c": small()}


def torch_saves(value, path):
    with torch.serialization.skip_data():
        torch.save(value, path)


def plan_agrees(tree, path):
    records, nbytes = tree.plan(path)
    size = os.path.getsize(path)
    expect(nbytes == size, f"the plan says {nbytes} bytes, PyTorch's file has {size}")
    reader = torch._C.PyTorchFileReader(path)
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
    expect(len(infos) == len(records), f"{len(records)} records, PyTorch has {len(infos)}")
    for info, (name, length, header, offset) in zip(infos, records):
        theirs = (info.filename.split("/", 1)[1], info.file_size, info.header_offset,
                  reader.get_record_offset(name))
        expect((name, length, header, offset) == theirs,
               f"planned {(name, length, header, offset)}, PyTorch has {theirs}")


def loads_alike(path, calculate):
    with FakeTensorMode(), config.patch({"load.calculate_storage_offsets": calculate}):
        theirs = FromTorch(data=False)
        theirs.describe(torch.load(path, weights_only=True))
    with (b.patched(f"load.check=headers load.calculate_storage_offsets={'on' if calculate else 'off'}"),
          FromBerth(path, data=False) as checkpoint):
        checkpoint.root()
        mine = checkpoint.offsets()
    expect(mine == theirs.offsets, f"offsets {mine} are not {theirs.offsets}")


class SparseFile:
    """A sink that skips zeros."""

    def __init__(self, path):
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self.zeros = bytes(1 << 20)
        self.end = 0
        self.write = b.WRITE(self.on_write)

    def on_write(self, _, buffer, nbytes, offset):
        self.end = max(self.end, offset + nbytes)
        for at in range(0, nbytes, len(self.zeros)):
            piece = c.string_at(buffer + at, min(len(self.zeros), nbytes - at))
            if piece != self.zeros[: len(piece)]:
                os.pwrite(self.file, piece, offset + at)
        return 0

    def close(self):
        os.ftruncate(self.file, self.end)
        os.close(self.file)


def parts(path):
    """(offset, bytes) of all that is not a hole, zeros at their ends taken off."""
    found = []
    with open(path, "rb") as file:
        size = os.path.getsize(path)
        at = 0
        while at < size:
            try:
                begin = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            at = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            found.append((begin, os.pread(file.fileno(), at - begin, begin)))
    return found, size


def sparse_equal(mine, theirs):
    """Two sparse files: every part of one is in the other."""
    (my_parts, my_size), (their_parts, their_size) = parts(mine), parts(theirs)
    expect(my_size == their_size, f"{my_size} bytes, PyTorch's has {their_size}")
    tail = my_size - 65536
    with open(mine, "rb") as one, open(theirs, "rb") as other:
        for begin, piece in my_parts + their_parts:
            length = min(len(piece), tail - begin)
            if length > 0:
                expect(os.pread(one.fileno(), length, begin) == os.pread(other.fileno(), length, begin),
                       f"other bytes between {begin} and {begin + length}")
        same_bytes(*[os.pread(file.fileno(), 65536, tail) for file in (one, other)], theirs, tail)


def write(tree, path, crc32):
    sink = SparseFile(path)
    target = b.Sink(write=sink.write, context=None, in_order=True)
    with b.patched(f"save.compute_crc32={crc32}"):
        params = b.Call(archive_name=b"huge")
        b.check(b.berth_save_to, b.to_sink(target), b.of_value(tree.root), c.byref(params))
    sink.close()


def writes_alike(tree, mine, theirs):
    """A real save of more than 4 GiB, without CRCs as skip_data has none."""
    write(tree, mine, "off")
    sparse_equal(mine, theirs)


def has_right_sums(tree, path):
    write(tree, path, "on")
    zipfile_accepts(path)
    libzip_accepts(path)
    if LONG:  # 4 GiB take it half a minute
        unzip_accepts(path)


def torch_maps(path, value):
    for calculate in (True, False):
        with config.patch({"load.calculate_storage_offsets": calculate}):
            loaded = torch.load(path, weights_only=True, mmap=True)
        found = difference(FromTorch().describe(loaded), FromTorch().describe(value))
        expect(found is None, found)


def all_sizes(results, folder):
    for name, value in values():
        title = f"huge: {name}"
        if results.words and not any(word in title for word in results.words):
            continue
        path = f"{folder}/huge.pt"
        torch_saves(value, path)
        with Tree(value) as tree:
            results.run(f"{title}: plan", plan_agrees, tree, path)
            for calculate in (True, False):
                results.run(f"{title}: loads, calculated offsets={calculate}", loads_alike, path,
                            calculate)
            results.run(f"{title}: libzip accepts PyTorch's", libzip_accepts, path)
            if name == f"{GIB4 + 5} bytes":
                with config.patch({"save.compute_crc32": False}):
                    torch_saves(value, path)
                mine = f"{folder}/mine.pt"
                results.run(f"{title}: byte-identical", writes_alike, tree, mine, path)
                results.run(f"{title}: Berth -> PyTorch", torch_maps, mine, value)
                results.run(f"{title}: with CRCs", has_right_sums, tree, mine)
                os.remove(mine)
        os.remove(path)
