# SPDX-License-Identifier: BSD-3-Clause
"""The global of a refused pickle is named: in every form, of every protocol, in every place (P1)."""

import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile

from case import BERTH, HANG_SECONDS, Case
from pickles import archive

MAGIC = 0x1950A86A20F9469CFC6C
SYSTEM = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
PROTOCOLS = range(6)


def text4(string):
    return b"X" + struct.pack("<I", len(string)) + string


def text8(string, opcode=b"\x8d"):
    return opcode + struct.pack("<Q", len(string)) + string


def short(string):
    return b"\x8c" + bytes([len(string)]) + string


TEXTS = {
    "SHORT_BINUNICODE": short,
    "BINUNICODE": text4,
    "BINUNICODE8": text8,
    "UNICODE": lambda s: b"V" + s + b"\n",
    "UNICODE in \\u": lambda s: b"V" + b"".join(b"\\u%04x" % c for c in s) + b"\n",
    "UNICODE in \\U": lambda s: b"V" + b"".join(b"\\U%08X" % c for c in s) + b"\n",
    "STRING": lambda s: b"S'" + s + b"'\n",
    "STRING in \\x": lambda s: b'S"' + b"".join(b"\\x%02x" % c for c in s) + b'"\n',
    "STRING in octal": lambda s: b"S'" + b"".join(b"\\%o" % c for c in s) + b"'\n",
    "BINSTRING": lambda s: b"T" + struct.pack("<I", len(s)) + s,
    "SHORT_BINSTRING": lambda s: b"U" + bytes([len(s)]) + s,
}
POSIX, NAME = short(b"posix"), short(b"system")
COMMAND = b"S'touch witness'\n"
CALL = b"(" + COMMAND + b"tR"
GLOBAL = b"cposix\nsystem\n"

# What stands in front, without a global of its own: each argument looks like opcodes.
BEFORE = {
    "nothing": b"",
    "FLOAT": b"F1.5\n0", "INT": b"I01\n0", "LONG": b"L5L\n0", "LONG1": b"\x8a\x02c.0", "LONG4": b"\x8b\x02\0\0\0c.0",
    "BININT": b"J....0", "BININT1": b"K.0", "BININT2": b"M..0", "BINFLOAT": b"G........0",
    "STRING": b"S'.'\n0", "UNICODE": b"V.\n0", "BINSTRING": b"T\x02\0\0\0c.0", "SHORT_BINSTRING": b"U\x02c.0",
    "BINUNICODE": text4(b"cos\nsystem\n.") + b"0", "BINBYTES": b"B\x02\0\0\0c.0", "SHORT_BINBYTES": b"C\x02c.0",
    "BINUNICODE8": text8(b"c.") + b"0", "BINBYTES8": text8(b"c.", b"\x8e") + b"0",
    "BYTEARRAY8": text8(b"c.", b"\x96") + b"0", "SHORT_BINUNICODE": short(b"c.") + b"0",
    "PERSID": b"P.\n0", "BINPERSID": b"NQ0", "memo": b"Np.\n0".replace(b".", b"46"), "a mark": b"(0", "marks": b"((11",
    "a list": b"](NNe0", "a dict": b"}(NNu0", "a set": b"\x8f(N\x900", "a frozenset": b"(N\x910", "LIST": b"(Nl0",
    "DICT": b"(NNd0", "APPEND": b"]Na0", "SETITEM": b"}NNs0", "tuples": b"N\x85N\x86NN\x870", "NEWTRUE": b"\x88\x890",
    "300 values": b"N" * 300 + b"0" * 300, "300 marks": b"(" * 300 + b"1" * 300,
    "300 texts": b"".join(b"U\x01ar%s0" % struct.pack("<I", i) for i in range(100, 400)),
    "an allowed global": b"ccollections\nOrderedDict\n)R0", "an allowed STACK_GLOBAL": short(b"torch") + short(b"Size") + b"\x930",
}

FORMS = {
    "GLOBAL, named only": GLOBAL,
    "GLOBAL, REDUCE": GLOBAL + CALL,
    "GLOBAL, OBJ": b"(" + GLOBAL + COMMAND + b"o",
    "GLOBAL, NEWOBJ": GLOBAL + b"(" + COMMAND + b"t\x81",
    "GLOBAL, NEWOBJ_EX": GLOBAL + b"(" + COMMAND + b"t}\x92",
    "GLOBAL, BUILD": GLOBAL + b"}b",
    "INST": b"(" + COMMAND + b"iposix\nsystem\n",
    "a persistent id": GLOBAL + b"Q",
    "in a list": b"](" + GLOBAL + CALL + b"e",
    "in a dict's key": b"}" + GLOBAL + CALL + b"Ns",
    "in a state": b"ccollections\nOrderedDict\n)R}" + text4(b"a") + GLOBAL + CALL + b"sb",
    "popped": GLOBAL + CALL + b"0N",
    "STACK_GLOBAL": POSIX + NAME + b"\x93" + CALL,
    "STACK_GLOBAL, MEMOIZE": POSIX + b"\x94" + NAME + b"\x94\x93\x94" + CALL,
    "STACK_GLOBAL, MEMOIZE and BINGET": POSIX + b"\x94" + NAME + b"\x9400" + b"h\x00h\x01\x93" + CALL,
    "STACK_GLOBAL, PUT and GET": POSIX + b"p7\n0" + NAME + b"p12\n0g7\ng12\n\x93" + CALL,
    "STACK_GLOBAL, BINPUT and BINGET": POSIX + b"q\xfe0" + NAME + b"q\x070h\xfeh\x07\x93" + CALL,
    "STACK_GLOBAL, LONG_BINPUT and LONG_BINGET":
        POSIX + b"r\0\0\1\0000" + NAME + b"r\1\0\1\0000j\0\0\1\0j\1\0\1\0\x93" + CALL,
    "STACK_GLOBAL, a memo index twice": short(b"a") + b"q\0000" + POSIX + b"q\0000h\x00" + NAME + b"\x93" + CALL,
    "STACK_GLOBAL, DUP": POSIX + NAME + b"20\x93" + CALL,
    "STACK_GLOBAL, others popped": POSIX + NAME + short(b"a") + short(b"b") + b"00\x93" + CALL,
    "STACK_GLOBAL, others popped to a mark": POSIX + NAME + b"(" + short(b"a") + short(b"b") + b"1\x93" + CALL,
    "STACK_GLOBAL, others in a list": POSIX + NAME + b"](" + short(b"a") + short(b"b") + b"e0\x93" + CALL,
    "STACK_GLOBAL, 200 values popped": POSIX + NAME + b"N" * 200 + b"0" * 200 + b"\x93" + CALL,
    **{f"STACK_GLOBAL, {name}": made(b"posix") + made(b"system") + b"\x93" + CALL for name, made in TEXTS.items()},
    **{f"behind {name}": before + GLOBAL + CALL for name, before in BEFORE.items()},
}
NAMES = {  # other names than posix system
    "a dotted name": (b"cos\npath.os.system\n", "os path.os.system"),
    "a dotted name, STACK_GLOBAL": (short(b"os") + short(b"path.os.system") + b"\x93", "os path.os.system"),
    "nearly allowed": (b"ctorch\nSize.__class__\n", "torch Size.__class__"),
    "the first of two": (b"cnt\nsystem\ncposix\nsystem\n\x86", "nt system"),
    "in UTF-8": ("cm\u043edule\nname\n".encode(), "m\u043edule name"),
    "no UTF-8": (b"cm\xff\nname\n", r"m\xff name"),
    "control characters": (b"cm\x1b[2J\r\nna\0me\n", r"m\x1b[2J\r na?me"),
    "long": (b"c" + b"m" * 500 + b"\n" + b"n" * 500 + b"\n", "m" * 100 + " " + "n" * 100),
    "empty": (b"c\n\n", " "),
}
EXTENSIONS = {b"\x82\xf0": 240, b"\x83\x34\x12": 0x1234, b"\x84\x78\x56\x34\x12": 0x12345678}


class Seen(Exception):
    pass


class Anything:
    def __new__(cls, *_words, **_more):
        return object.__new__(cls)

    def __init__(self, *_words, **_more):
        pass

    def __setstate__(self, state):
        pass


class Watcher(pickle._Unpickler):
    """Python's own, which tells what it would import first that is not allowed. Runs nothing."""

    def find_class(self, module, name):
        if (module, name) in (("collections", "OrderedDict"), ("torch", "Size")):
            return Anything
        raise Seen(f"{module} {name}")

    def persistent_load(self, pid):
        return pid


def of_protocol(body, protocol):
    """A whole pickle; from protocol 4 on in a frame."""
    begin = b"\x80" + bytes([protocol]) if protocol >= 2 else b""
    frame = b"\x95" + struct.pack("<Q", len(body) + 1) if protocol >= 4 else b""
    return begin + frame + body + b"."


def legacy(protocol, pickles):
    """Five pickles, some of them replaced."""
    whole = [pickle.dumps(value, protocol) for value in (MAGIC, 1001, SYSTEM, {}, [])]
    for i, made in pickles.items():
        whole[i] = made
    return b"".join(whole)


def tar(made):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as members:
        for name, data in (("sys_info", pickle.dumps(SYSTEM, 2)), ("pickle", made), ("storages", b"\x80\x02K\x00.")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            members.addfile(member, io.BytesIO(data))
    return file.getvalue()


PLACES = {
    "a bare pickle": lambda made, protocol: made,
    "data.pkl": lambda made, protocol: archive(made),
    "the legacy format": lambda made, protocol: legacy(protocol, {3: made}),
    "a tar file": lambda made, protocol: tar(made),
}


class Named(Case):
    def refusal(self, content, command="info"):
        """The one line with which the file is refused; nothing of it was run."""
        path = self.write("bad.pt", content)
        done = subprocess.run([BERTH, command, path], capture_output=True, cwd=self.folder, timeout=HANG_SECONDS)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), ["bad.pt"])
        self.assertEqual(done.stderr.count(b"\n"), 1)
        return done.stderr.decode()

    def expect(self, body, words, what, places=PLACES):
        n = 0
        for protocol in PROTOCOLS:
            for place, put in places.items():
                told = self.refusal(put(of_protocol(body, protocol), protocol))
                self.assertIn(words, told, (what, protocol, place))
                self.assertNotIn("weights_only=False", told, (what, protocol, place))
                n += 1
        return n

    def test_every_form_is_named(self):
        n = 0
        for what, body in FORMS.items():
            with self.assertRaises(Seen, msg=what) as seen:
                Watcher(io.BytesIO(of_protocol(body, 4))).load()
            self.assertEqual(str(seen.exception), "posix system", what)
            n += self.expect(body, "global posix system", what)
        print(f"named globals: {n} in {len(FORMS)} forms, 6 protocols and {len(PLACES)} places", file=sys.stderr)

    def test_every_name_is_shown_in_one_line(self):
        for what, (body, shown) in NAMES.items():
            self.expect(body, f"global {shown}", what)

    def test_extensions_are_named_by_their_code(self):
        for body, code in EXTENSIONS.items():
            self.expect(body + CALL, f"the global of extension code {code},", body)

    def test_what_picklers_write(self):
        class Attack:
            def __reduce__(self):
                return os.system, ("touch witness",)

        for protocol in PROTOCOLS:
            for value in (Attack(), [1.5, {"a": (Attack(), b"bytes", "text", 1 << 70, {1}, None, True)}]):
                made = pickle.dumps(value, protocol)
                for place, put in PLACES.items():
                    self.assertIn("global posix system", self.refusal(put(made, protocol)), (protocol, place))

    def test_each_pickle_of_the_legacy_format(self):
        """PyTorch loads all five, each with a new memo; the first may also hide behind another magic."""
        for protocol in PROTOCOLS:
            for i in range(5):
                made = of_protocol(GLOBAL + CALL + b"0" + pickle.dumps(MAGIC if i == 0 else 1001, 2)[2:-1], protocol)
                self.assertIn("global posix system", self.refusal(legacy(protocol, {i: made})), (protocol, i))
            other = of_protocol(b"N0\x8b\x0a\0\0\0" + MAGIC.to_bytes(10, "little"), protocol)
            self.assertIn("global posix system", self.refusal(
                legacy(protocol, {0: other, 3: of_protocol(GLOBAL + CALL, protocol)})), protocol)

    def test_what_is_refused_before_its_global(self):
        """By an opcode, by an underflow, by a wrong argument, by a header that is wrong."""
        for before in (b"0", b"R", b"a", b"ctorch\nSize\n)R0", b"h\x09", b"r\xff\xff\xff\x7f", b"\x95" + bytes(8), b"I1\n0"):
            for protocol in PROTOCOLS:
                made = of_protocol(before + GLOBAL + CALL, protocol)
                for place in ("data.pkl", "the legacy format"):
                    self.assertIn("global posix system", self.refusal(PLACES[place](made, protocol)), (before, place))
                if protocol >= 2:
                    self.assertIn("global posix system", self.refusal(made), before)
        for protocol in (2, 3):
            wrong = pickle.dumps(1002, protocol)
            self.assertIn("; it names the global posix system, which Berth never calls", self.refusal(
                legacy(protocol, {1: wrong, 3: of_protocol(GLOBAL + CALL, protocol)})))
            cut = legacy(protocol, {3: of_protocol(b"0" + GLOBAL + CALL, protocol)[:-1], 4: b""})
            self.assertIn("global posix system", self.refusal(cut))

    def test_without_its_stop(self):
        """It would have run before the end was missed."""
        for place in ("a bare pickle", "data.pkl"):
            for protocol in PROTOCOLS:
                made = of_protocol(GLOBAL + CALL, protocol)[:-1]
                self.assertIn("global posix system", self.refusal(PLACES[place](made, protocol)), (place, protocol))

    def test_who_names_none_is_not_blamed(self):
        honest = [{"a": [1, 2.5, "text", None, True, (1, 2, 3, 4)]}, [b"bytes" * 100], list(range(3000)),
                  {str(i): [str(i)] * 2 for i in range(3000)}, __import__("collections").OrderedDict(a=1)]
        for protocol in PROTOCOLS:
            for value in honest:
                made = pickle.dumps(value, protocol)
                for place in PLACES if protocol not in (2, 3) else ("a bare pickle", "a tar file"):
                    told = self.berth("info", self.write("good.pt", PLACES[place](made, protocol)))
                    if protocol == 1 and told.returncode == 0:
                        continue  # opcodes of protocol 2 alone
                    self.assertEqual(told.returncode, 1, told.err)
                    if protocol >= 3 or not any(type(v) is bytes for v in value):  # by _codecs or builtins
                        self.assertNotIn("names", told.err, (protocol, place))

    def test_files_of_other_kinds_are_no_pickles(self):
        for content in (b"checkpoint\nof the last epoch\n(see below)\n", b"config\nlr\n0.1\n", b"cats\ndogs\n",
                        b"classes\nnames\nRabbit\n", b"(a)\n(b)\n", b"I have no checkpoint.\n", b"ccc\nddd\n"):
            told = self.refusal(content)
            self.assertNotIn("pickle", told, content)
            self.assertNotIn("global", told, content)

    def test_all_commands_name_it(self):
        path = self.write("bad.pt", of_protocol(POSIX + NAME + b"\x93" + CALL, 4))
        for command, done in self.everything(path).items():
            self.assertEqual(done.returncode, 1, command)
            self.assertRegex(done.err + done.out.decode(), "it names the global posix system, which Berth never calls|"
                             "it names 1 class or function that is not allowed: posix system", command)
