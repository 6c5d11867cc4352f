# SPDX-License-Identifier: BSD-3-Clause
"""Files made to hurt, through Python: nothing is run (P1), and nothing takes long (P3)."""

import io
import struct
import sys
import time

import berth
import forbidden
import torch
from pickles import HUGE, ONE, PROTO, archive, doubled, get, put, tensor, text

from folder import Folder

# What a file could make Python do, by the names of its audit events.
EVENTS = ("exec", "compile", "import", "open", "os.", "subprocess.", "socket.", "ctypes.", "marshal.",
          "pickle.find_class", "code.", "shutil.", "urllib.")
seen = None


def audit(event, arguments):
    if seen is not None and event.startswith(EVENTS):
        seen.append((event, arguments))


sys.addaudithook(audit)


def events_of(function, *arguments):
    global seen
    seen = []
    try:
        function(*arguments)
    except berth.Error:
        pass
    found, seen = seen, None
    return found


class Unsafe(Folder):
    def load(self, pickle, storages=ONE):
        return berth.load(io.BytesIO(archive(PROTO + pickle + b".", storages)))

    def test_the_audit_sees_what_runs(self):
        self.assertTrue(events_of(lambda: __import__("os").system("true")))
        self.assertEqual(events_of(lambda: self.load(b"K\1")), [])

    def test_no_global_is_called_or_imported(self):
        self.load(b"K\1")  # all that is imported once is there
        modules = set(sys.modules)
        for name in forbidden.Forbidden.GLOBALS:
            module, _, attribute = name.partition(" ")
            call = f"c{module}\n{attribute}\n".encode() + b"(" + text("true") + b"tR"
            with self.subTest(name):
                self.assertEqual(events_of(self.load, call), [])
                with self.assertRaises(berth.Error):
                    self.load(call)
        self.assertEqual(set(sys.modules), modules)

    def test_classes_that_are_values_are_those_of_torch_load(self):
        data = archive(PROTO + b"(ccollections\nOrderedDict\nctorch\nFloatStorage\n"
                       b"ctorch._utils\n_rebuild_tensor_v2\nt.", ONE)
        self.assertEqual(berth.load(io.BytesIO(data)),
                         torch.load(io.BytesIO(data), weights_only=True))

    def test_attributes_that_would_run_code(self):
        for name in ("__class__", "data", "grad", "__dict__", "requires_grad", "_backward_hooks"):
            state = b"}" + text(name) + b"]s"
            attack = (b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\n"
                      b"ctorch\nTensor\n(" + tensor().split(b"\n_rebuild_tensor_v2\n(")[1][:-1] +
                      state + b"tR")
            with self.subTest(name), self.assertRaises(berth.UnsafeFileError):
                self.load(attack)

    def in_time(self, pickle, storages=ONE):
        """Loaded or refused, soon."""
        began = time.process_time()
        try:
            return self.load(pickle, storages)
        except berth.Error:
            return None
        finally:
            self.assertLess(time.process_time() - began, 5)

    def test_what_doubles(self):
        self.in_time(tensor() + doubled(b"", 60, lambda i: get(i) + b"\x86"))
        self.in_time(tensor() + b"".join(put(i) + b"](" + get(i) * 2 + b"e" for i in range(60)))

    def test_keys_that_double(self):
        key = doubled(b"K\x01", 60, lambda i: get(i) + b"\x86")
        self.assertIsNone(self.in_time(b"}" + key + tensor() + b"s"))
        with self.assertRaisesRegex(berth.UnsafeFileError, "Python cannot hash"):
            self.load(b"}" + key + tensor() + b"s")
        pairs = b"".join(b"K\x01" + doubled(b"", 22, lambda i: get(i) + b"\x86") + b"N" +
                         b"" for _ in range(100))
        self.in_time(b"}(" + pairs + b"u")

    def test_keys_that_collide(self):
        """Of each kind whose hash is no secret, in each container; what programs use stays (Y6)."""
        n = 20_000

        def real(value):
            return b"G" + struct.pack(">d", value)

        def of_hash(i):  # Python's modulus is 2^61 - 1
            return b"\x8a\x10" + (i * (2**61 - 1)).to_bytes(16, "little")

        kinds = {"int": of_hash, "negative": lambda i: b"\x8a\x10" + (-i * (2**61 - 1)).to_bytes(
                     16, "little", signed=True),
                 "float": lambda i: real(2.0**(61 * (i % 16)) * (1 + i // 16)),
                 "tuple": lambda i: of_hash(i) + b"\x85",
                 "sequence": lambda i: b"J" + struct.pack("<i", i),
                 "strided": lambda i: b"\x8a\x08" + struct.pack("<q", i << 40),
                 "fractions": lambda i: real(i / 1024)}
        for kind, key in kinds.items():
            keys = [key(i) for i in range(n)]
            pairs = b"(" + b"".join(each + b"N" for each in keys) + b"u"
            for what, pickle in (("dict", b"}" + pairs),
                                 ("set", b"c__builtin__\nset\n](" + b"".join(keys) + b"e\x85R"),
                                 ("ordered", b"ccollections\nOrderedDict\n)R" + pairs),
                                 ("attributes", b"ccollections\nOrderedDict\n)R}" + pairs + b"b")):
                with self.subTest(kind, what=what):
                    value = self.in_time(pickle)
                    if kind in ("sequence", "strided", "fractions"):
                        self.assertEqual(len(vars(value) if what == "attributes" else value), n)
                    elif kind != "float":
                        self.assertTrue(value is None)

    def test_keys_that_are_compared(self):
        """Few keys of one hash, as -1 and -2 have it: to compare two takes a step for each item (Y6)."""
        signs = b"J\xff\xff\xff\xff", b"J\xfe\xff\xff\xff"

        def keys(depth):
            for i in range(64):
                out = b"K\1K\1\x86"
                for slot in range(i * depth, (i + 1) * depth):
                    out += put(slot) + get(slot) + b"\x86"
                yield out + b"(" + b"".join(signs[i >> bit & 1] for bit in range(6)) + b"t\x86"

        for depth in (2, 14):
            pairs = b"(" + b"".join(each + b"N" for each in keys(depth)) + b"u"
            for what, pickle in (("dict", b"}" + pairs), ("ordered", b"ccollections\nOrderedDict\n)R" + pairs),
                                 ("set", b"c__builtin__\nset\n](" + b"".join(keys(depth)) + b"e\x85R")):
                with self.subTest(what, depth=depth):
                    if depth == 2:
                        self.assertEqual(len(self.in_time(pickle)), 64)
                        continue
                    with self.assertRaisesRegex(berth.UnsafeFileError, "hashes collide"):
                        self.load(pickle)

    def test_keys_of_long_items(self):
        """A text or a number of many bytes is as many items, each time that it is one."""
        for item in (text("a" * 40_000), b"B" + struct.pack("<i", 40_000) + b"a" * 40_000,
                     b"\x8a\xff" + b"a" * 255):
            key = doubled(item, 20, lambda i: get(i) + b"\x86")
            with self.subTest(item[:10]), self.assertRaisesRegex(berth.UnsafeFileError, "Python cannot hash"):
                self.load(b"}" + key + b"Ns")
            self.assertEqual(len(self.load(b"}" + item + b"\x85Ns")), 1)

    def test_keys_that_are_deep(self):
        for n in (400, 100_000):
            key = b"K\x01" + b"\x85" * n
            loaded = self.in_time(b"}" + key + b"K\x02s")
            self.assertEqual(loaded is not None, n == 400)
            self.in_time(b"(" + key + put(0) + b"}h\0K\2st")
        shown = self.in_time(b"c__builtin__\nset\n](K\x01" + b"\x85" * 100_000 + b"e\x85R")
        self.assertIsNone(shown)

    def test_what_is_large_in_few_bytes(self):
        value = self.in_time(b"}" + text("t") + tensor(size=HUGE, stride=b"K\x00") + b"s")
        if value:
            self.assertEqual(value["t"].untyped_storage().nbytes(), 4)
        self.in_time(tensor(size=HUGE))
        self.in_time(b"](" + b"".join(tensor() for _ in range(20_000)) + b"e")

    def test_every_change_of_a_byte_of_a_pickle(self):
        """Any answer will do, but a crash, or something that runs."""
        value = {"a": torch.ones(1), "b": [torch.nn.Parameter(torch.ones(1)), (1, "x", b"y", 2.5)],
                 "s": torch.ones(1).to_sparse(), "set": {1, 2}}
        buffer = io.BytesIO()
        torch.save(value, buffer)
        import zipfile

        with zipfile.ZipFile(buffer) as file:
            pickle = file.read("archive/data.pkl")
            storages = [(str(i), file.read(f"archive/data/{i}")) for i in range(4)]
        n_read = 0
        for at in range(2, len(pickle) - 1):
            for other in (pickle[at] ^ 1, pickle[at] ^ 0x10, 0, 0xff):
                data = pickle[:at] + bytes([other]) + pickle[at + 1:]
                try:
                    berth.load(io.BytesIO(archive(data, storages)))
                    n_read += 1
                except berth.Error:
                    pass
        self.assertGreater(n_read, 100)
