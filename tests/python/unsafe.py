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
                except (berth.Error, RuntimeError, ValueError, TypeError):
                    pass
        self.assertGreater(n_read, 100)
