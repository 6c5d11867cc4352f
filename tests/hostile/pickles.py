# SPDX-License-Identifier: BSD-3-Clause
"""Archives and pickles, made byte by byte."""

import struct
import zlib

PROTO = b"\x80\x02"


# ---- archives by the layout (FORMAT.md 1 to 3) ----

def local(name, data, at):
    """A record with its local header at byte `at`, as PyTorch writes it."""
    padding = -(at + 30 + len(name) + 4) % 64
    flags = 0x0808 if data else 0x0800
    record = struct.pack("<IHHHHHIIIHH", 0x04034B50, 0, flags, 0, 0, 0, 0, 0, 0, len(name),
                         4 + padding)
    record += name + b"FB" + struct.pack("<H", padding) + b"Z" * padding + data
    if data:
        record += struct.pack("<IIII", 0x08074B50, zlib.crc32(data), len(data), len(data))
    return record


def central(name, data, at):
    flags = 0x0808 if data else 0x0800
    return struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 0, 0, flags, 0, 0, 0, zlib.crc32(data),
                       len(data), len(data), len(name), 0, 0, 0, 0, 0, at) + name


def end(n, directory_nbytes, directory_at):
    at = directory_at + directory_nbytes
    few = min(n, 0xFFFF)
    return (struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 0x31E, 45, 0, 0, n, n, directory_nbytes,
                        directory_at) + struct.pack("<IIQI", 0x07064B50, 0, at, 1) +
            struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, few, few, directory_nbytes, directory_at, 0))


def archive(pickle, storages=()):
    records = [("data.pkl", pickle), (".format_version", b"1"), (".storage_alignment", b"64"),
               ("byteorder", b"little"), *((f"data/{key}", data) for key, data in storages),
               ("version", b"3\n"), (".data/serialization_id", b"1" * 40)]
    out, directory = bytearray(), bytearray()
    for name, data in records:
        name = b"a/" + name.encode()
        directory += central(name, data, len(out))
        out += local(name, data, len(out))
    return bytes(out + directory + end(len(records), len(directory), len(out)))


# ---- pickles ----

def text(string):
    return b"X" + struct.pack("<I", len(string.encode())) + string.encode()


def put(i):
    return b"q" + bytes([i]) if i < 256 else b"r" + struct.pack("<I", i)


def get(i):
    return b"h" + bytes([i]) if i < 256 else b"j" + struct.pack("<I", i)


def tensor(key="0", size=b"K\x01", stride=b"K\x01", location=b"cpu"):
    """A float32 tensor of one dimension over a storage of one element."""
    pid = (b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + b"X" +
           struct.pack("<I", len(location)) + location + b"K\x01tQ")
    return (b"ctorch._utils\n_rebuild_tensor_v2\n(" + pid + b"K\x00" + size + b"\x85" + stride +
            b"\x85\x89ccollections\nOrderedDict\n)RtR")


def number(n):
    return b"\x8a\x08" + struct.pack("<q", n)


def view(kind, key, numel, shape, stride):
    """A tensor of any shape and strides over the whole of a storage."""
    pid = (b"(" + text("storage") + b"ctorch\n" + kind + b"Storage\n" + text(key) + text("cpu") +
           number(numel) + b"tQ")
    return (b"ctorch._utils\n_rebuild_tensor_v2\n(" + pid + b"K\x00(" +
            b"".join(map(number, shape)) + b"t(" + b"".join(map(number, stride)) +
            b"t\x89ccollections\nOrderedDict\n)RtR")


def sparse(layout, shape, *parts):
    """Of COO: {indices, values}; of the others three parts."""
    return (b"ctorch._utils\n_rebuild_sparse_tensor\nctorch.serialization\n_get_layout\n" +
            text("torch.sparse_" + layout) + b"\x85R(" + b"".join(parts) + b"ctorch\nSize\n(" +
            b"".join(map(number, shape)) + b"t\x85R" + (b"\x89" if layout == "coo" else b"") +
            b"t\x86R")


def doubled(begin, n, step):
    return begin + b"".join(put(i) + step(i) for i in range(n))


ONE = [("0", b"abcd")]
HUGE = b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x0f"
