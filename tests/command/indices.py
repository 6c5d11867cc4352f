# SPDX-License-Identifier: BSD-3-Clause
"""Wrong indices of sparse tensors (T6): the commands that read them refuse the file."""

import json
import os
import struct
import zipfile

from case import Case


def text(word):
    return b"X" + struct.pack("<I", len(word)) + word.encode()


def vector(key, storage, *shape):
    """A contiguous tensor over the whole of a storage."""
    numbers = b"".join(b"K" + bytes([size]) for size in shape)
    strides = b"".join(b"K" + bytes([shape[1] if d + 1 < len(shape) else 1]) for d in range(len(shape)))
    n = shape[0] * (shape[1] if len(shape) > 1 else 1)
    return (b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + b"ctorch\n" + storage +
            b"\n" + text(key) + text("cpu") + b"K" + bytes([n]) + b"tQK\x00(" + numbers + b"t(" +
            strides + b"t\x89ccollections\nOrderedDict\n)RtR")


SIZE = b"ctorch\nSize\nK\x02K\x03\x86\x85R"  # 2 x 3


def sparse(layout, *parts):
    return (b"ctorch._utils\n_rebuild_sparse_tensor\nctorch.serialization\n_get_layout\n" +
            text("torch.sparse_" + layout) + b"\x85R(" + b"".join(parts) + b"t\x86R")


def longs(*numbers):
    return struct.pack(f"<{len(numbers)}q", *numbers)


class Indices(Case):
    def make(self, name, coo, csr, method=zipfile.ZIP_STORED):
        """Two tensors of two elements each: indices of the one, column indices of the other."""
        pickled = (b"\x80\x02}(" + text("a") +
                   sparse("coo", vector("0", b"LongStorage", 2, 2), vector("1", b"FloatStorage", 2),
                          SIZE, b"\x89") + text("b") +
                   sparse("csr", vector("2", b"LongStorage", 3), vector("3", b"LongStorage", 2),
                          vector("1", b"FloatStorage", 2), SIZE) + b"u.")
        with zipfile.ZipFile(self.path(name), "w", method) as archive:
            for record, content in (("data.pkl", pickled), ("byteorder", b"little"),
                                    ("data/0", longs(*coo)), ("data/1", struct.pack("<2f", 1, 2)),
                                    ("data/2", longs(0, 1, 2)), ("data/3", longs(*csr)),
                                    ("version", b"3\n")):
                archive.writestr("v/" + record, content)

    def setUp(self):
        super().setUp()
        self.leave_debug_mode()  # no archive of Python's has the layout
        self.make("good.pt", (0, 1, 2, 0), (1, 0))

    def test_each_command_that_reads_them(self):
        self.make("coo.pt", (0, 2, 2, 0), (1, 0))
        self.make("csr.pt", (0, 1, 2, 0), (1, -3))
        self.make("deflated.pt", (0, 2, 2, 0), (1, 0), zipfile.ZIP_DEFLATED)
        wrong = "indices[0, 1] is 2, but dimension 0 has the size 2; "
        advice = ("PyTorch's check_sparse_tensor_invariants refuses this torch.sparse_%s tensor, "
                  "too; load.check=directory opens it unchecked")
        for name, part, says in (
                ("coo.pt", '"a.indices": data/0', wrong + advice % "coo"),
                ("deflated.pt", '"a.indices": data/0', wrong + advice % "coo"),
                ("csr.pt", '"b.col_indices": data/3',
                 "col_indices[1] is -3, but a row has the size 3; " + advice % "csr")):
            self.assertIn(": ".join((name, part)), self.berth("verify", name, code=1).out)
            self.assertTrue(self.berth("verify", name, code=1).out.endswith(f": {says}\n"))
            report = json.loads(self.berth("verify", name, "--json", code=1).out)
            self.assertEqual((report["ok"], report["bad"], report["record"]), (False, [], part[-6:]))
            self.assertTrue(report["reason"].endswith(says))
            for command in (("convert", name, "new.pt"), ("convert", name, "new.safetensors", "-t"),
                            ("diff", name, "good.pt"), ("diff", "good.pt", name), ("diff", name, name),
                            ("ls", name, "--set", "load.check=data")):
                with self.subTest(command):
                    told = self.refused(*command, code=1, says=[name, part])
                    self.assertTrue(told.endswith(f": {says}\n"), told)
            self.assertFalse([file for file in self.entries() if file.startswith("new.")])

    def test_they_can_be_read_unchecked(self):
        self.make("coo.pt", (0, 2, 2, 0), (1, 0))
        unchecked = ("--set", "load.check=directory")
        self.berth("ls", "coo.pt")
        self.berth("convert", "coo.pt", "new.pt", *unchecked)
        self.berth("verify", "new.pt", code=1)
        self.assertEqual(self.berth("diff", "coo.pt", "new.pt", *unchecked).out, "equal\n")
        self.assertIn("first at element 1", self.berth("diff", "coo.pt", "good.pt", *unchecked, code=1).out)

    def test_good_ones(self):
        self.assertIn("\nok: ", "\n" + self.berth("verify", "good.pt").out)
        self.berth("convert", "good.pt", "new.pt")
        self.assertEqual(self.berth("diff", "good.pt", "new.pt").out, "equal\n")
        self.make("other.pt", (0, 1, 1, 0), (1, 0))
        self.assertIn("first at element 2", self.berth("diff", "good.pt", "other.pt", code=1).out)
        self.assertEqual(os.path.getsize(self.path("good.pt")), os.path.getsize(self.path("other.pt")))
