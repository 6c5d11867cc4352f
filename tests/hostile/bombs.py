# SPDX-License-Identifier: BSD-3-Clause
"""Pickles that cost others seconds or gigabytes (P3): read within bounds, or refused."""

import os
import re
import struct
import sys
import zipfile

from case import Case
from pickles import (HUGE, ONE, PROTO, archive, doubled, get, put, sparse, tensor, text,
                     view)

LONG = os.environ.get("BERTH_LONG") == "1"
# More than a command takes for a harmless file, of the debug variant. A machine that is busy measures
# more than was taken, so the least of several times counts.
MAX_CPU_SECONDS = 0.010
MAX_HEAP_NBYTES = 1 << 20
N_TRIES = 12


class Small(Case):
    """A pickle of less than a kilobyte: whatever it is asked, the answer comes at once."""

    harmless = {}  # what a command costs by itself: seconds, bytes
    worst = {"bombs": 0, "cpu": 0.0, "heap": 0}

    def cost_by_itself(self, command):
        if command not in self.harmless:
            path = self.write("harmless.pt", archive(PROTO + b"}" + text("a") + tensor() + b"s.", ONE))
            more = {"diff": [path], "convert": ["out.safetensors"], "copy": ["out.pt"], "cat": ["a"]}
            runs = [self.berth(command, path, *more.get(command, [])) for _ in range(3)]
            self.harmless[command] = (min(run.cpu_seconds for run in runs), runs[0].heap_nbytes)
        return self.harmless[command]

    def measure(self, words, most_out=65536):
        """The command's answer; the least of its times is bounded, and every run's memory."""
        cpu_seconds, heap_nbytes = self.cost_by_itself(words[0])
        seconds = []
        while len(seconds) < N_TRIES:
            done = self.berth(*words, seconds=10)
            self.assertLess(done.heap_nbytes - heap_nbytes, MAX_HEAP_NBYTES, words)
            self.assertLessEqual(done.out_nbytes, most_out, words)
            seconds.append(done.cpu_seconds - cpu_seconds)
            if seconds[-1] < MAX_CPU_SECONDS:
                break
        self.assertLess(min(seconds), MAX_CPU_SECONDS, words)
        self.worst["cpu"] = max(self.worst["cpu"], min(seconds) + cpu_seconds)
        self.worst["heap"] = max(self.worst["heap"], done.heap_nbytes)
        return done

    def all_commands(self, path, options=()):
        words = {"ls": ["ls", path], "ls --json": ["ls", "--json", path], "info": ["info", path],
                 "verify": ["verify", path], "diff": ["diff", path, path],
                 "convert": ["convert", path, "out.safetensors"], "copy": ["copy", path, "out.pt"],
                 "cat": ["cat", path, "a"], "show": ["show", path, "-q", "-dall", "-nall"],
                 "show --json": ["show", "--json", path],
                 "convert some": ["convert", path, "out.pt", "--without", "nothing"]}
        return {name: self.measure([*each, *options], 131072 if name == "show --json" else 65536)
                for name, each in words.items()}

    def bomb(self, pickle, storages=ONE, options=()):
        self.assertLess(len(pickle), 1024)
        self.worst["bombs"] += 1
        return self.all_commands(self.write("small.pt", archive(pickle, storages)), options)

    def read(self, pickle, storages=ONE, options=()):
        """Legal: every command reads it, whatever it then says of its values."""
        results = self.bomb(pickle, storages, options)
        for name in ("ls", "ls --json", "info", "verify", "diff", "copy", "show", "show --json"):
            self.assertEqual((name, results[name].returncode, results[name].err), (name, 0, ""))
        return results

    def refused(self, pickle, says, storages=ONE):
        """
        The same sentence from every command; verify's goes to its report. Only copy does not look
        into a pickle: it takes records over.
        """
        results = self.bomb(pickle, storages)
        self.assertEqual(results.pop("copy").returncode, 0)
        for name, done in results.items():
            self.assertEqual(done.returncode, 1, (name, done.err))
            told = done.err if name != "verify" else done.out.decode()
            told = told.split("\nintact: ")[0]  # verify's second answer: it is as it was made
            self.assertEqual(told.rstrip("\n").split("small.pt: ")[-1], says, name)


class SmallBombs(Small):
    @classmethod
    def tearDownClass(cls):
        print(f"pickle bombs below 1 KiB: {cls.worst['bombs']} in 11 commands, at most "
              f"{cls.worst['cpu'] * 1e3:.1f} ms of processor and {cls.worst['heap'] >> 10} KiB of "
              "memory", file=sys.stderr)

    # ---- what doubles ----

    def test_tuples_that_double(self):
        self.read(PROTO + tensor() + doubled(b"", 60, lambda i: get(i) + b"\x86") + b".")

    def test_lists_that_double(self):
        step = [b"](" + get(i) * 2 + b"e" for i in range(60)]
        chain = tensor() + b"".join(put(i) + one for i, one in enumerate(step))
        self.read(PROTO + b"(" + chain + b"t.")

    def test_dicts_that_double(self):
        chain = tensor() + b"".join(
            put(i) + b"}(" + text("a") + get(i) + text("b") + get(i) + b"u" for i in range(40))
        self.read(PROTO + b"(" + chain + b"t.")

    def test_keys_that_double(self):
        key = doubled(b"K\x01", 60, lambda i: get(i) + b"\x86")
        self.read(PROTO + b"}" + key + tensor() + b"s.")

    def test_equal_keys_that_double_apart(self):
        one = doubled(b"K\x01", 40, lambda i: get(i) + b"\x86")
        other = b"K\x01" + b"".join(put(100 + i) + get(100 + i) + b"\x86" for i in range(40))
        self.read(PROTO + b"}(" + one + b"K\x05" + other + b"K\x06u.", [])

    def test_what_holds_itself(self):
        self.read(PROTO + b"]q\x00(h\x00" + tensor() + b"h\x00e.")
        self.read(PROTO + b"}q\x00(" + text("a") + b"h\x00" + text("t") + tensor() + b"u.")

    def test_an_expanded_tensor_is_no_work(self):
        results = self.read(PROTO + b"}" + text("t") + tensor(size=HUGE, stride=b"K\x00") + b"s.")
        self.assertEqual(results["diff"].out, b"equal\n")
        self.assertIn("File too large", results["convert"].err)

    def test_expanded_tensors_differ_where_they_differ(self):
        pickle = PROTO + b"}" + text("t") + tensor(size=HUGE, stride=b"K\x00") + b"s."
        a, b = self.write("a.pt", archive(pickle, ONE)), self.write(
            "b.pt", archive(pickle, [("0", b"abce")]))
        done = self.berth("diff", a, b)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"first at element 0", done.out)

    def test_indices_that_repeat_one_are_no_work(self):
        """T6: 2^40 indices over 16 bytes."""
        many, zeros = 1 << 40, [("0", bytes(16)), ("1", b"abcd")]
        values = view(b"Float", "1", 1, [many], [0])
        self.read(PROTO + sparse("coo", [1], view(b"Long", "0", 2, [1, many], [0, 0]), values) + b".",
                  zeros)
        self.read(PROTO + sparse("csr", [many, 1, 1], view(b"Long", "0", 2, [many, 2], [0, 1]),
                                 view(b"Long", "0", 2, [many, 0], [0, 1]),
                                 view(b"Float", "1", 1, [many, 0], [0, 1])) + b".", zeros)

    def test_indices_that_repeat_too_much(self):
        """T6: each of 2^15 batches has 2^15 rows in the same bytes."""
        n = 1 << 15
        rows = view(b"Long", "0", 2 * n, [n, n], [1, 1])
        pickle = PROTO + b"}" + text("a") + sparse(
            "csr", [n, n - 1, 1], rows, view(b"Long", "0", 2 * n, [n, 0], [0, 1]),
            view(b"Float", "1", 1, [n, 0], [0, 1])) + b"s."
        results = self.bomb(pickle, [("0", bytes(16 * n)), ("1", b"abcd")])
        says = ("the indices of sparse tensors are views that repeat the bytes of their storages too "
                "often to be checked; load.check=directory opens them unchecked")
        for name in ("verify", "diff", "convert"):
            done = results[name]
            self.assertEqual(done.returncode, 1, name)
            self.assertTrue((done.err + done.out.decode()).endswith(says + "\n"), (name, done.err))
        self.assertEqual({results[name].returncode for name in ("ls", "ls --json", "info", "copy")}, {0})

    def test_tensors_too_large_for_any_file_together(self):
        several = b"".join(text(str(i)) + tensor(size=HUGE[:2] + bytes([255 - i]) + HUGE[3:], stride=b"K\x00") for i in range(5))
        results = self.read(PROTO + b"}(" + several + b"u.")
        self.assertIn("too large for a file", results["convert"].err)

    def test_tensors_whose_attributes_double(self):
        """Each is made of the one before, twice: 2^30 of them for who does not keep track."""
        build = b"ctorch._tensor\n_rebuild_from_type_v2\n"
        meta = b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n"
        arguments = b"(ctorch\nfloat32\n))\x89t"
        head = (b"(" + build + put(0) + meta + put(1) + b"ctorch\nTensor\n" + put(2) + arguments +
                put(3) + text("a") + put(4) + text("b") + put(5) + b"K\x00" + put(6))
        level = (b"h\x00(h\x01h\x02h\x03}(h\x04h\x06h\x05h\x06utR" + put(6))
        self.read(PROTO + head + level * 30 + b"t.", options=("-q",))  # debug mode logs the names

    def test_sets_of_keys_that_double(self):
        keys = doubled(b"K\x01", 60, lambda i: get(i) + b"\x86")
        self.read(PROTO + b"c__builtin__\nset\n](" + keys + b"K\x02e\x85R.", [])

    def test_sizes_that_double(self):
        size = b"ctorch\nSize\n" + put(0) + b"(" + b"K\x01" * 60 + b"t\x85" + put(1) + b"R"
        self.read(PROTO + b"(" + size + b"h\x00h\x01R" * 100 + b"t.", [])

    def test_text_that_is_made_into_bytes_again_and_again(self):
        encode = b"c_codecs\nencode\n" + put(0) + text("x" * 300) + text("latin1") + b"\x86" + put(1)
        self.read(PROTO + b"(" + encode + b"h\x00h\x01R" * 100 + b"t.", [])

    def test_aliases_of_a_dict_in_a_dict(self):
        chain = b"".join(b"}" + put(i + 1) + b"(" + text("k") + get(i) + text("l") + get(i) + b"u"
                         for i in range(40))
        self.read(PROTO + b"(}" + put(0) + chain + b"t.", [])

    def test_objects_that_double(self):
        inert = ("--set", "load.unknown_globals=inert")
        level = b"".join(get(255) + get(i) * 2 + b"\x86R" + put(i + 1) for i in range(60))
        self.read(PROTO + b"(cx\nY\n" + put(255) + b")R" + put(0) + level + b"t.", [], inert)

    # ---- what holds itself ----

    def test_an_attribute_that_is_its_own_owner(self):
        owner = b"ccollections\nOrderedDict\n)R" + put(0)
        self.read(PROTO + owner + b"}" + text("me") + get(0) + b"sb.", [])
        self.read(PROTO + owner + b"}" + put(1) + text("me") + get(0) + b"s" + text("dict") + get(1) +
                  b"sb.", [])

    def test_many_states_one_after_the_other(self):
        owner = b"ccollections\nOrderedDict\n)R" + put(0)
        self.refused(PROTO + owner + (b"}" + text("a") + get(0) + b"sb") * 60 + b".",
                     "data.pkl at byte 116: BUILD of an OrderedDict that has a state", [])

    def test_a_circle_of_lists_dicts_and_tuples(self):
        self.read(PROTO + b"]" + put(0) + b"}" + text("a") + get(0) + b"\x85sa.", [])

    def test_an_object_whose_state_is_itself(self):
        inert = ("--set", "load.unknown_globals=inert")
        self.read(PROTO + b"cx\nY\n)R" + put(0) + get(0) + b"b.", [], inert)
        self.read(PROTO + b"cx\nY\n)R" + put(0) + get(0) + b"a" + get(0) + get(0) + b"s" +
                  b"}" + text("a") + get(0) + b"sb.", [], inert)

    def test_a_key_that_holds_its_dict(self):
        self.refused(PROTO + b"}" + put(0) + get(0) + b"\x85K\x01s.",
                     "data.pkl at byte 74: SETITEM: a dict cannot be a dict key")

    def test_a_list_that_is_its_own_key(self):
        self.refused(PROTO + b"}]" + put(0) + get(0) + b"\x86K\x01s.",
                     "data.pkl at byte 75: SETITEM: a list cannot be a dict key")

    # ---- depth ----

    def test_depth_of_a_kilobyte(self):
        self.read(PROTO + b"]" * 500 + b"a" * 499 + b".", [])
        self.read(PROTO + b")" + b"\x85" * 1000 + b".", [])
        self.read(PROTO + tensor() + b"\x85" * 800 + b".")
        self.read(PROTO + b"(" + text("a") + put(0) + b"}h\x00" * 250 + b"K\x01" + b"s" * 250 + b"t.",
                  [])
        self.read(PROTO + b"})" + b"\x85" * 900 + b"K\x01s.", [])
        self.refused(PROTO + b"(" * 1000 + b".", "data.pkl at byte 1066: STOP within a MARK")

    # ---- numbers that are no counts ----

    def test_lengths_beyond_the_file(self):
        for pickle, says in (
                (b"X\xff\xff\xff\xff", "the argument of BINUNICODE is cut: 8 bytes are left"),
                (b"X\xff\xff\xff\x7f", "the argument of BINUNICODE is cut: 8 bytes are left"),
                (b"X\x05\x00\x00\x00", "the argument of BINUNICODE is cut: 8 bytes are left"),
                (b"U\xff", "the argument of SHORT_BINSTRING is cut: 5 bytes are left"),
                (b"B\xff\xff\xff\xff", "the argument of BINBYTES is cut: 8 bytes are left"),
                (b"C\xff", "the argument of SHORT_BINBYTES is cut: 5 bytes are left"),
                (b"\x8a\xff", "the argument of LONG1 is cut: 5 bytes are left")):
            self.refused(PROTO + pickle + b"abc.", "data.pkl at byte 66: " + says, [])

    def test_lengths_of_opcodes_that_are_not_read(self):
        for code, name in ((0x8b, "LONG4"), (0x8d, "BINUNICODE8"), (0x8e, "BINBYTES8"),
                           (0x96, "BYTEARRAY8"), (0x95, "FRAME"), (ord("T"), "BINSTRING")):
            self.refused(PROTO + bytes([code]) + b"\xff\xff\xff\x7f\xff\xff\xff\x7f.",
                         f"data.pkl at byte 66: opcode {name} (0x{code:02x}) is not allowed in a checkpoint",
                         [])

    def test_memo_indices(self):
        """Those that no pickler would give are no sizes of anything."""
        for index in (9, 0x7FFFFFFF, 0xFFFFFFFF):
            self.refused(PROTO + b"Nr" + struct.pack("<I", index) + b".",
                         f"data.pkl at byte 67: memo index {index} in a pickle of 9 bytes", [])
        for index in (0, 1, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF):
            self.refused(PROTO + b"j" + struct.pack("<I", index) + b".",
                         f"data.pkl at byte 66: LONG_BINGET of memo index {index}, where nothing was "
                         "put", [])
        puts = b"".join(b"r" + struct.pack("<I", 900 - 4 * i) for i in range(190))
        self.read(PROTO + b"N" + puts + b"j" + struct.pack("<I", 900) + b"\x86.", [])
        self.refused(PROTO + b"p99999999999999999999\n.",
                     "data.pkl at byte 66: opcode PUT (0x70) is not allowed in a checkpoint", [])

    def test_integers_of_many_digits(self):
        self.read(PROTO + b"(" + b"\x8a\xff" + b"\xff" * 254 + b"\x7f" + b"t.", [])
        self.read(PROTO + b"(" + (b"\x8a\xff" + b"\x80" * 255) * 3 + b"t.", [])
        self.read(PROTO + b"}\x8a\xff" + b"\x01" * 255 + b"K\x01s.", [])
        self.read(PROTO + b"(" + b"\x8a\x01\x00" * 300 + b"t.", [])
        self.refused(PROTO + b"I" + b"9" * 900 + b"\n.",
                     "data.pkl at byte 66: opcode INT (0x49) is not allowed in a checkpoint", [])
        self.refused(PROTO + b"L" + b"9" * 900 + b"L\n.",
                     "data.pkl at byte 66: opcode LONG (0x4c) is not allowed in a checkpoint", [])

    def test_storages_larger_than_the_file(self):
        """Z13: if the layout does not fit into the file, the directory decides."""
        other = "data.pkl says [0-9]* bytes, the record has 4"
        for numel, says in (
                (b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
                 "a storage whose numel of 9223372036854775807 x 4 bytes is too large"),
                (b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x10", other),
                (b"J\xff\xff\xff\x7f", other),
                (b"J\xff\xff\xff\xff", "a storage whose numel is -1")):
            pickle = (PROTO + b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") +
                      text("cpu") + numel + b"tQ.")
            results = self.bomb(pickle)
            self.assertEqual(results.pop("copy").returncode, 0)
            for name, done in results.items():
                self.assertEqual(done.returncode, 1, name)
                self.assertRegex(done.err + done.out.decode(), says, name)

    def test_counts_of_nothing(self):
        self.refused(PROTO + b"t.", "data.pkl at byte 66: TUPLE without a MARK", [])
        self.refused(PROTO + b"e.", "data.pkl at byte 66: APPENDS without a MARK", [])
        self.refused(PROTO + b"u.", "data.pkl at byte 66: SETITEMS without a MARK", [])
        self.refused(PROTO + b"\x87.", "data.pkl at byte 66: stack underflow: TUPLE3 needs 3 items, 0 are there", [])
        self.refused(PROTO + b".", "data.pkl at byte 66: STOP with 0 items on the stack", [])
        self.refused(PROTO + b"NN.", "data.pkl at byte 68: STOP with 2 items on the stack", [])
        self.refused(PROTO + b"}(K\x01u.",
                     "data.pkl at byte 70: SETITEMS of 1 items, which are not pairs", [])


class Bombs(Case):
    # A level takes 37 to 285 bytes, most in diff, that opens two, and up to 2 microseconds.
    MAX_NBYTES_A_LEVEL = 400
    MAX_SECONDS_A_LEVEL = 20e-6

    def deep(self, pickle, n, is_tensor, refused):
        """What is in `refused` says why not; all other commands do what they are for."""
        path = self.write("deep.pt", archive(PROTO + pickle + b".", ONE))
        for name, done in self.everything(path, seconds=600).items():
            code, says = refused.get(name, (0, ""))
            told = re.split(r"(?:deep\.pt|out\.safetensors): ", done.err)[-1].rstrip("\n")
            self.assertEqual((name, done.returncode, told), (name, code, says))
            self.assertLess(done.heap_nbytes, MAX_HEAP_NBYTES + n * self.MAX_NBYTES_A_LEVEL, name)
            self.assertLess(done.cpu_seconds, 1 + n * self.MAX_SECONDS_A_LEVEL, name)
            if name == "diff":
                self.assertEqual(done.out, b"equal\n")
            if name == "ls --json" and not code:  # the name has two bytes a level
                self.assertEqual(done.out_nbytes > n, is_tensor)

    def test_depth(self):
        """P3."""
        n = 10000000 if LONG else 1000000
        long_name = (1, "the name of tensor 0 has more than 16777216 bytes")
        names = {"ls": long_name, "ls --json": long_name, "convert": long_name} if LONG else {}
        no_text = (2, "[0]: safetensors cannot hold a str; --tensors-only leaves it out")
        no_int = (2, "[" + "(" * 99 + "...: safetensors cannot hold an int; --tensors-only leaves it out")
        self.deep(b"]" * n + b"a" * (n - 1), n, False, {})
        self.deep(b")" + b"\x85" * n, n, False, {})
        self.deep(tensor() + b"\x85" * n, n, True, names)
        self.deep(b"(" + text("a") + put(0) + b"}h\x00" * n + tensor() + b"s" * n + b"t", n, True,
                  {**names, "convert": no_text})
        self.deep(b"})" + b"\x85" * n + b"K\x01s", n, False, {"convert": no_int})

    def test_a_tensor_at_each_of_many_levels(self):
        n = 100000
        pickle = (PROTO + tensor() + b"q\x00" +
                  b"".join(b"}(" + text("t") + b"h\x00" + text("n") for _ in range(n)) + b"K\x00" +
                  b"u" * n + b"\x86.")
        results = self.everything(self.write("chain.pt", archive(pickle, ONE)))
        for name in ("ls", "ls --json"):
            self.assertIn("names above 1024 bytes", results[name].err)
        self.assertEqual(results["diff"].out, b"equal\n")
        self.assertEqual(results["info"].returncode, 0)

    def test_one_long_key_on_many_levels(self):
        n = 5000
        pickle = (PROTO + tensor() + b"q\x00" + text("k" * 30000) + b"q\x01" + b"}h\x01" * n +
                  b"h\x00" + b"s" * n + b"\x87.")
        results = self.everything(self.write("long.pt", archive(pickle, ONE)))
        self.assertIn("has more than 16777216 bytes", results["ls"].err)

    def test_many_tensors_below_one_long_key_on_many_levels(self):
        """23 KB with names of 16 GB in all."""
        pickle = (PROTO + b"(" + text("k" * 20000) + put(0) + tensor() + put(1) + (b"}" + get(0)) * 400 + b"](" +
                  get(1) * 2000 + b"e" + b"s" * 400 + b"t.")
        path = self.write("names.pt", archive(pickle, ONE))
        results = self.everything(path)
        for words in (("map", ), ("bench", "load"), ("bench", "rows"), ("bench", "save")):
            results[words] = self.berth(*words, path, seconds=20)
        for name in ("ls", "ls --json", *((words for words in results if not isinstance(words, str)))):
            self.assertIn("names above 1024 bytes take more than 16 MiB in all", results[name].err)
        data = archive(pickle, ONE)
        with zipfile.ZipFile(path) as file:
            content = next(file.read(each) for each in file.infolist() if each.filename.endswith("data/0"))
        at = data.index(content, data.index(b"data/0"))
        self.write("bad.pt", data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
        self.assertRegex(self.berth("verify", "bad.pt", seconds=20).out.decode(), r"^data/0 .*; in it: 1, 2\.kkk")

    def test_one_long_text_in_many_places(self):
        pickle = (PROTO + text("x" * 30000) + b"q\x00](" + b"h\x00" * 20000 + b"e\x86.")
        results = self.everything(self.write("text.pt", archive(pickle)))
        self.assertEqual(results["diff"].out, b"equal\n")

    def test_many_tensors(self):
        pickle = (PROTO + tensor() + b"q\x00}(" +
                  b"".join(text(f"name{i}") + b"h\x00" for i in range(100000)) + b"u\x86.")
        results = self.everything(self.write("wide.pt", archive(pickle, ONE)))
        self.assertEqual({r.returncode for r in results.values()}, {0})
