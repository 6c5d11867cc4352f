#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Prints the bytes of data.pkl as PyTorch itself writes them, as C constants.

    pickle_write_expected.py values > pickle_write_expected.h
    pickle_write_expected.py tensors > pickle_write_tensor_expected.h

with PyTorch 2.13 on CPython 3.11; pickle_write.c and pickle_write_tensor.c build the same
values through Berth.
"""

import io
import pickletools
import sys
import warnings
import zipfile
import zlib
from collections import Counter, OrderedDict

import torch

warnings.simplefilter("ignore")


def data_pkl(value):
    file = io.BytesIO()
    torch.save(value, file)
    return zipfile.ZipFile(file).read("archive/data.pkl")


def literal(piece):
    """A C string literal; octal escapes, as a hexadecimal one would swallow what follows."""
    text = ""
    for byte in piece:
        char = chr(byte)
        text += char if 32 <= byte < 127 and char not in '"\\?' else f"\\{byte:03o}"
    return f'"{text}"'


def print_bytes(name, value):
    pickle = data_pkl(value)
    starts = [at for _, _, at in pickletools.genops(pickle)] + [len(pickle)]
    print(f"\nstatic const char {name}[] =")
    line = "   "
    for start, end in zip(starts, starts[1:]):
        piece = literal(pickle[start:end])
        if len(line) + len(piece) >= 100:
            print(line)
            line = "   "
        line += " " + piece
    print(line + ";")


def print_sums(name, makers):
    print(f"\nstatic const struct expected_sum {name}[] = {{")
    for n, value in makers:
        pickle = data_pkl(value)
        print(f"    {{{n}, {len(pickle)}, 0x{zlib.crc32(pickle):08x}}},")
    print("};")


def values():
    yield "integers", [0, 255, 256, 65535, 65536, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1,
                       2**63 - 1, 2**63, -(2**63), 2**70, -(2**70), -128 - 2**40]
    yield "scalars", [None, True, False, 1.5, -0.0, float("inf"), 1 + 2j]
    wide = chr(0x1F600)
    yield "strings", ["weight", "weight"[:3] + "ght", "", "", "é", "é", "a", "a", wide, "\udc80",
                      "cpu", "latin1", "storage"]
    yield "byte_strings", [b"a", bytes([97]), "a", bytes([0, 127, 128, 255]), b"xy", "xy" + ""]
    yield "bytearrays", [bytearray(b""), bytearray(b"a"), bytearray(b"ab"), bytearray(b"a")]
    shared = (1, "x")
    yield "tuples", [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), shared, shared, ((),)]
    ring = [1]
    ring.append(ring)
    yield "list_in_itself", ring
    yield "sets", [{1}, {1, 2}, set(), {7}]
    yield "counters", [Counter("aab"), Counter()]
    size = torch.Size([2, 3])
    yield "torch_objects", [size, torch.Size([]), size, torch.device("cuda", 1),
                            torch.device("cpu"), torch.float16, torch.uint16, torch.float16,
                            torch.per_tensor_affine, torch.sparse_coo, torch.strided,
                            torch.sparse_coo]
    ordered = OrderedDict(a=1)
    ordered._metadata = OrderedDict()
    yield "state_dict", ordered
    key = "epoch time"
    yield "shared_key", [{key: 1}, {key: 2}, key]


def tensors():
    base = torch.zeros(2, 3)
    yield "tensor", base
    yield "views", [base, base[1], base.t(), base, "0", "cpu"]
    yield "scalar_tensor", torch.zeros((), dtype=torch.int64, requires_grad=False)
    yield "gradient", torch.zeros(2, dtype=torch.float64, requires_grad=True)
    yield "new_dtypes", [torch.zeros(2, dtype=torch.uint16), torch.zeros(3, dtype=torch.float8_e5m2)]
    yield "conjugate", [torch.zeros(2, dtype=torch.complex64).conj(),
                        torch._neg_view(torch.zeros(2, dtype=torch.complex64).conj()),
                        torch._neg_view(torch.zeros(2))]
    yield "meta", torch.zeros(2, device="meta")
    parameter = torch.nn.Parameter(torch.zeros(2))
    yield "parameter", [parameter, parameter]
    parameter = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    parameter.tag = "x"
    yield "parameter_with_state", parameter
    tensor = torch.zeros(2)
    tensor.tag = 1
    yield "attributes", [tensor, tensor]
    yield "quantized", torch.quantize_per_tensor(torch.zeros(3), 0.5, 3, torch.qint8)
    yield "per_channel", torch.quantize_per_channel(
        torch.zeros(3, 2), torch.ones(3), torch.zeros(3), 0, torch.quint8)
    yield "sparse_coo", torch.eye(2).to_sparse()
    yield "sparse_csr", torch.eye(2).to_sparse_csr()
    yield "nested", torch.nested.nested_tensor([torch.zeros(2), torch.ones(3)])
    storage = torch.zeros(2).untyped_storage()
    yield "storages", [torch.zeros(2)._typed_storage(), storage, storage]


def value_sums():
    counts = [0, 1, 2, 999, 1000, 1001, 2000, 2001]
    yield "list", [(n, [None] * n) for n in counts]
    yield "dict", [(n, {i: None for i in range(n)}) for n in counts]
    yield "ordered_dict", [(n, OrderedDict((i, None) for i in range(n))) for n in counts]
    yield "counter", [(n, Counter({i: i for i in range(n)})) for n in counts]
    # Each string is met twice; the memo passes 255.
    texts = [[f"item {i}" for i in range(n)] for n in [200, 300]]
    yield "memo", [(len(text), text + text) for text in texts]


def tensor_sums():
    # More storages than a digit counts, all tied twice.
    many = [torch.zeros(1) for _ in range(12)]
    yield "storage", [(12, many + [t.view(1) for t in many])]


def main():
    print("/* SPDX-License-Identifier: BSD-3-Clause */")
    print(f"/* Made by pickle_write_expected.py {sys.argv[1]}: as PyTorch 2.13 writes them. */")
    print("/* clang-format off */")
    print("#include <stddef.h>\n#include <stdint.h>\n")
    print("/* For n items: the pickle's bytes and their CRC-32. */")
    print("struct expected_sum {\n    size_t n;\n    size_t nbytes;\n    uint32_t crc32;\n};")
    cases = {"values": (values, value_sums), "tensors": (tensors, tensor_sums)}
    literals, sums = cases[sys.argv[1]]
    for name, value in literals():
        print_bytes(f"expected_{name}", value)
    for name, makers in sums():
        print_sums(f"{name}_sums", makers)


main()
