# SPDX-License-Identifier: BSD-3-Clause
"""Names of a file, in each command: what moves, turns, joins or hides text is shown escaped (F7)."""

import json
import os
import struct
import subprocess
import unicodedata
import unittest

from case import BERTH, Case

# Kinds of characters, one or more of each; what is shown instead.
KINDS = {
    "a new line": "\n", "a return": "\r", "a tab": "\t", "escape": "\x1b[2J", "a backspace": "\b", "delete": "\x7f",
    "C1": "\x9b31m", "a next line": "\x85", "a soft hyphen": "\xad", "no-break space": "\xa0",
    "a bidirectional mark": "\u200e\u200f\u061c", "embedding": "\u202a\u202b", "override": "\u202d\u202e",
    "isolates": "\u2066\u2067\u2068", "their ends": "\u202c\u2069", "a line separator": "\u2028",
    "a paragraph separator": "\u2029", "zero width": "\u200b\u200c\u200d\u2060", "BOM": "\ufeff",
    "invisible operators": "\u2061\u2064", "deprecated": "\u206a\u206f", "variation selectors": "\ufe00\ufe0f\u180b",
    "more of them": "\U000e0100\U000e01ef", "tags": "\U000e0001\U000e0041\U000e007f", "spaces": "\u1680\u2003\u3000",
    "fillers": "\u115f\u3164\uffa0\u2800", "annotations": "\ufff9\ufffb", "music": "\U0001d173",
    "no characters": "\ufffe\uffff\U0010ffff\ufdd0", "a joiner": "\u034f",
}
PLAIN = "w\u00e9ight_\u6a21\u578b_\U0001f600"


def escaped(text):
    known = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
    return "".join(known.get(c) or (rf"\x{ord(c):02x}" if ord(c) < 0x80 else rf"\u{ord(c):04x}" if ord(c) < 0x10000
                                    else rf"\U{ord(c):08x}") if is_unseen(c) else c for c in text)


def is_unseen(c):
    """By Python's own tables, and the few that these call seen."""
    return (unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") or (c.isspace() and c != " ") or
            c in "\u1680\u034f\u115f\u1160\u3164\uffa0\u2800\u17b4\u17b5" or "\ufe00" <= c <= "\ufe0f" or
            "\u180b" <= c <= "\u180f" or "\U000e0000" <= c <= "\U000e0fff" or "\ufdd0" <= c <= "\ufdef" or
            ord(c) & 0xfffe == 0xfffe)


def safetensors(names, value=1.0):
    """One float of each name."""
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
                         for i, name in enumerate(names)}).encode()
    return struct.pack("<Q", len(header)) + header + struct.pack("<f", value) * len(names)


class Shown(Case):
    def run_all(self, name, other):
        """(words, stdout and stderr) of each command that shows the name of a tensor, or of the file."""
        self.write("a.safetensors", safetensors([name, "x"]))
        self.write("b.safetensors", safetensors([name, "x"], 2.0))
        self.write("two.safetensors", safetensors([name, name + "2"]))
        subprocess.run([BERTH, "convert", "a.safetensors", "a.pt"], cwd=self.folder, check=True)
        broken = bytearray(self.read("a.pt"))
        at = broken.index(struct.pack("<f", 1.0))
        broken[at] ^= 1
        self.write("broken.pt", bytes(broken))
        for number, name_of_file in enumerate(("m" + other + ".pt", "m" + other + ".safetensors.index.json")):
            self.write(name_of_file, self.read("a.pt") if number == 0 else json.dumps(
                {"weight_map": {name: "none" + other + ".safetensors"}}).encode())
        file = "m" + other + ".pt"
        for words in (["ls", "a.pt"], ["ls", "a.safetensors"], ["ls", "--records", file], ["ls", "a.pt", file],
                      ["ls", "--json", "a.pt"], ["info", "a.pt"], ["info", "--json", file], ["show", "a.pt"],
                      ["show", "--json", "a.pt"], ["show", "a.safetensors", name], ["map", "a.pt"],
                      ["map", "--json", "a.pt"], ["map", "-o", "-", "a.pt"], ["map", "-o", "-", "a.safetensors"],
                      ["diff", "a.pt", "b.safetensors"], ["diff", "--json", "a.safetensors", "b.safetensors"],
                      ["diff", "a.safetensors", "two.safetensors"], ["verify", "broken.pt"],
                      ["verify", "--json", "broken.pt"], ["cat", "a.pt", name + "none"], ["cat", "none" + other, name],
                      ["copy", "broken.pt", "out" + other + ".pt"], ["convert", "broken.pt", "out.safetensors"],
                      ["verify", file, "none" + other], ["info", "m" + other + ".safetensors.index.json"],
                      ["ls", "a.pt", "--only", name + "no"], ["ls", "a.pt", "--set", name + "=1"],
                      ["ls", "a.pt", "--" + name], [name], ["verify", "m" + other + ".safetensors.index.json"],
                      ["copy", file, "no" + other + "/out.pt"], ["clean", "none" + other],
                      ["config", "--set", "trace=x" + other], ["config", "trace", "--set", "trace=x" + other]):
            done = subprocess.run([BERTH, *words], cwd=self.folder, capture_output=True, check=False, timeout=600)
            yield words, done.stdout.decode(), done.stderr.decode()

    def test_kinds_of_characters(self):
        """F7"""
        self.leave_debug_mode()
        for kind, characters in KINDS.items():
            name = "a" + characters + "b"
            with self.subTest(kind=kind):
                n_shown = 0
                for words, out, err in self.run_all(name, characters):
                    for text in (out.replace("\n", ""), err.replace("\n", "")):
                        seen = [f"{ord(c):x}" for c in text if is_unseen(c)]
                        self.assertEqual(seen, [], (words, text))
                    n_shown += escaped(name) in out + err
                    if "--json" in words and out:
                        json.loads(out)
                    self.assertLess(err.count("\n"), 3, (words, err))
                self.assertGreater(n_shown, 10)

    def test_all_else_stays(self):
        for words, out, err in self.run_all(PLAIN, PLAIN):
            self.assertNotIn("\\", out.replace("\\u", "") if "--json" in words else out + err, (words, out, err))

    def test_bytes_that_are_no_utf8(self):
        """F7: in names of files; names in files are checked."""
        for raw, shown in ((b"\xff", r"\xff"), (b"\xed\xa0\x80", r"\xed\xa0\x80"), (b"\xc0\xaf", r"\xc0\xaf"),
                           (b"\xe2\x82", r"\xe2\x82"), (b"\xf5\x80\x80\x80", r"\xf5\x80\x80\x80"), (b"\x9b", r"\x9b")):
            name = os.fsdecode(b"no" + raw + b"ne.pt")
            for words in (["ls", name], ["copy", "demo.pt", name + "/x"], ["verify", "demo.pt", name], ["diff", name, name],
                          ["convert", "demo.pt", name.replace(".pt", "")], ["ls", "demo.pt", "--only", name],
                          ["cat", "demo.pt", name], ["--" + name]):
                done = subprocess.run([BERTH, *words], cwd=self.folder, capture_output=True, check=False)
                self.assertNotIn(raw, done.stdout + done.stderr, words)
                self.assertIn("no" + shown + "ne", (done.stdout + done.stderr).decode(), words)

    def test_a_long_name_leaves_room_for_the_reason(self):
        """F7: a name of 1 MB does not fill a terminal."""
        for character in ("n", "\u6a21", "\U0001f600", "\u202e"):
            name = character * (1 << 20 >> len(character.encode()) // 2)
            self.write("a.safetensors", safetensors([name, "x"]))
            self.write("b.safetensors", safetensors([name, "x"], 2.0))
            for words, code in ((["verify", "a.safetensors"], 0), (["info", "a.safetensors"], 0),
                                (["cat", "a.safetensors", "no"], 1), (["map", "a.safetensors"], 0),
                                (["convert", "a.safetensors", "out.pt"], 0)):
                done = subprocess.run([BERTH, *words], cwd=self.folder, capture_output=True, check=False)
                self.assertEqual(done.returncode, code, (words, done.stderr[:2000]))
                self.assertLess(len(done.stderr.decode()), 1500, words)
        path = "d/" * 2000 + "none.pt"
        self.refused("ls", path, says=("No such file", "none.pt: ", "..."))


if __name__ == "__main__":
    unittest.main()
