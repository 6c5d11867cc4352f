# SPDX-License-Identifier: BSD-3-Clause
"""DCP directories, judged by dcp_to_torch_save: dcp_make.py makes them. BERTH_LONG=1: also two processes."""

import json
import os
import random
import re
import shutil
import struct
import subprocess
import tempfile
import unittest

from case import BERTH, HERE, Case

PYTHON = os.environ.get("BERTH_PYTHON")
LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")
MAKER = os.path.join(HERE, "dcp_make.py")

# Each lie of dcp_make.py, and what is said of it.
REFUSED = {
    "outside": '"../small/__0_0.distcp" is no name of a file of the directory',
    "absolute": '"/etc/passwd" is no name of a file of the directory',
    "parent": '".." is no name of a file of the directory',
    "folder": '"folder" is no file',
    "offset": '"b": 1577 bytes from byte 1000000 on are not in __0_0.distcp, which has 4543',
    "negative": '"b": no piece has 1577 bytes from byte -1 on',
    "length": '"b": 1000000000000 bytes from byte 1705 on are not in __0_0.distcp',
    "huge": '"b": 4611686018427387904 bytes from byte 4611686018427387904 on are not in',
    "shared": "the pieces at bytes 0 and 0 of __0_0.distcp overlap",
    "short-piece": 'chunk 0 of "b" is larger than its piece of 8 bytes',
    "transformed": '"b": its pieces are transformed (compressed or encrypted), which Berth does not read',
    "beyond": '"a": a chunk of 4 from 7 on is outside of dimension 0, which has 8',
    "overlap": '"a": its chunks overlap', "overlap-more": '"a": its chunks overlap',
    "hole": '"a": 8 of 64 elements are in no chunk',
    "rank": '"a": a chunk has not the rank of the tensor',
    "no-place": 'does not say where chunk 0 of "b" is', "no-value": 'does not say where "n" is',
    "large": '"b": its size is above 2^63 bytes or 63 dimensions',
    "far-item": '"b" is item 1125899906842624 of a list, far behind its others',
    **dict.fromkeys(("two-kinds", "twice", "no-path", "number-first"),
                    'the path of "b" in planner_data does not fit the others'),
    **dict.fromkeys(("runs", "runs-key", "only-runs"),
                    "names posix system, which no DCP directory needs; nothing was run"),
    **dict.fromkeys(("runs-getattr", "runs-private"), "names builtins getattr, which no DCP directory needs"),
    "no-metadata": "is no Metadata of torch.distributed.checkpoint",
    "no-pickle": "at byte 0: BINGET of memo index 101, where nothing was put",
    "cut": "at byte 2: FRAME of 1011 bytes: 1002 are left",
}

# Of these, all but what they name is as it should be.
INTACT = {"runs", "runs-key", "runs-getattr", "runs-private"}
# What is told of one piece by `verify`, which goes on with the others.
NOT_THERE = {"folder", "offset", "length", "huge"}


@unittest.skipUnless(PYTHON, "BERTH_PYTHON names no Python with PyTorch")
class Directories(Case):
    @classmethod
    def setUpClass(cls):
        cls.made = tempfile.mkdtemp(prefix="berth-dcp-")
        cls.addClassCleanup(shutil.rmtree, cls.made, ignore_errors=True)
        subprocess.run([PYTHON, MAKER, cls.made], check=True, timeout=300, stderr=subprocess.DEVNULL)

    def at(self, *names):
        return os.path.join(self.made, *names)

    def copy(self, name):
        shutil.copytree(self.at(name), self.path(name))
        return name

    def expect_judged(self, name):
        self.berth("convert", self.at(name), f"{name}.pt")
        with open(self.at("judged", f"{name}.pt"), "rb") as judged:
            self.assertEqual(self.read(f"{name}.pt"), judged.read(), name)

    def test_convert_writes_the_bytes_of_dcp_to_torch_save(self):
        for name in ("nested", "chunked", "small", "by-name"):
            with self.subTest(name):
                self.expect_judged(name)
                judged = self.at("judged", f"{name}.pt")
                self.assertEqual(self.berth("diff", self.at(name), judged).out, "equal\n")
        self.berth("convert", self.at("chunked"), "c.safetensors")
        self.berth("convert", self.at("judged", "chunked.pt"), "judged.safetensors")
        self.assertEqual(self.read("c.safetensors"), self.read("judged.safetensors"))
        self.berth("convert", self.at("nested"), "model.pt", "--root", "model", "--without", "turned")
        self.assertNotIn("turned", self.berth("ls", "model.pt").out)

    def test_convert_of_some_values_reads_no_other_piece(self):
        """The other pieces are zeros; what is inside of a piece is chosen by the piece's name."""
        for words, used in ((["--only", "model.layers*"], {"model.layers.0.weight"}),
                            (["--only", "epoch", "--only", "optimizer.param_groups.0.betas.1"],
                             {"epoch", "optimizer.param_groups.0.betas"}),
                            (["--only", "list"], {"list.0", "list.1", "list.2"}),
                            (["--root", "optimizer.state"], {"optimizer.state.0.step", "optimizer.state.0.exp"}),
                            (["--root", "name"], {"name"}), (["--root", "set"], {"set"}),
                            (["--root", "optimizer.param_groups", "--only", "0.lr"], {"optimizer.param_groups.0.lr"}),
                            (["--without", "[!s]*"], {"set"})):
            with self.subTest(words):
                shutil.rmtree(self.path("nested"), ignore_errors=True)
                self.copy("nested")
                with open(self.at("nested.json"), encoding="utf-8") as places:
                    for name, file, offset, nbytes in json.load(places):
                        if name in used:
                            used = used - {name}
                            continue
                        with open(self.path(f"nested/{file}"), "r+b") as pieces:
                            pieces.seek(offset)
                            pieces.write(bytes(nbytes))
                self.assertEqual(used, set())
                self.berth("convert", "nested", "some.pt", *words)
                some = self.read("some.pt")
                self.berth("convert", self.at("judged", "nested.pt"), "some.pt", *words)
                self.assertEqual(self.read("some.pt"), some)
        self.refused("convert", self.at("nested"), "some.pt", "--only", "none", "--only", "between", code=1,
                     says="--only 'between' matches nothing")

    def test_every_command(self):
        whole = self.at("judged", "nested.pt")
        for words in (["show"], ["show", "--json"], ["cat", "model.turned"], ["cat", "model.conjugate"]):
            with self.subTest(words):
                one, other = (self.berth(words[0], path, *words[1:]) for path in (self.at("nested"), whole))
                self.assertEqual(one.stdout, other.stdout)
        one, other = (json.loads(self.berth("ls", "--json", path).out) for path in (self.at("nested"), whole))
        self.assertEqual([dict(row, offset=None) for row in other], one)
        info = json.loads(self.berth("info", "--json", self.at("chunked")).out)
        self.assertEqual((info["container"], info["files"], info["pieces"], info["tensors"]),
                         ("DCP directory", 4, 45, 10))
        self.assertIn("4, with 45 pieces", self.berth("info", self.at("chunked")).out)
        self.assertEqual(self.berth("verify", self.at("small")).out,
                         "ok: 3 values in 4 pieces, 6.1 KiB; 27 checksums match\n")
        report = json.loads(self.berth("verify", "--json", self.at("small")).out)
        self.assertEqual((report["ok"], report["pieces"], report["bad"]), (True, 4, []))
        done = self.berth("ls", self.at("small"), self.demo)
        self.assertIn(f"{self.at('small')}:\n", done.out)
        done = self.berth("diff", self.at("small"), self.at("chunked"), code=1)
        self.assertIn(f"['n']: only in: {self.at('small')} | \n", done.out)

    def expect_both_answers(self, name, bad, says):
        """verify and info: is it whole, and what does it name?"""
        is_intact, is_allowed = name in INTACT, "names" not in says
        done = self.berth("verify", bad, code=1)
        lines = done.out.splitlines()
        self.assertEqual(done.err, "")
        self.assertRegex(lines[0], rf"\A(bad: )?{re.escape(bad)}/\.metadata: .*{re.escape(says)}")
        self.assertTrue(lines[-1].startswith("intact: " if is_intact else "bad: "), lines)
        self.assertEqual(lines[-1].endswith(("are not allowed: posix system, posix system", ": posix system",
                                             ": builtins getattr")), not is_allowed, lines)
        for command in ("verify", "info"):
            found = json.loads(self.berth(command, "--json", bad, code=1).out)
            if command == "verify" or not is_intact:
                self.assertEqual((found["intact"], found["allowed"]), (is_intact, is_allowed), command)
            self.assertEqual(found["allowed"], is_allowed)
            if name != "only-runs" or command == "verify":  # info tells damage alone
                self.assertIn(says, found["reason"])
            self.assertEqual([row["name"] for row in found["globals"] if not row["allowed"]],
                             [] if is_allowed else ["getattr" if "getattr" in says else "system"])
        info = self.berth("info", bad, code=1)
        self.assertTrue(info.out.startswith("container          DCP dir" if is_intact else "intact             no\n"), info.out)
        self.assertEqual("not allowed        it names 1 class" in info.out, not is_allowed, info.out)

    def test_what_lies(self):
        """D2, D3"""
        for name, says in REFUSED.items():
            bad = self.at("bad", name)
            if name == "folder":
                os.mkdir(os.path.join(bad, "folder"))
            for words in (["ls"], ["verify"], ["convert", "--set", "load.check=directory"]):
                with self.subTest((name, words)):
                    if words == ["verify"] and name in NOT_THERE:
                        self.assertRegex(self.berth("verify", bad, code=1).out,
                                         re.escape(says) + r".*\n(.*\n)*bad: 1 of 4 pieces\n\Z")
                        continue
                    if words == ["verify"]:
                        self.expect_both_answers(name, bad, says)
                        continue
                    self.refused(*words, bad, *(["x.pt"] if words[0] == "convert" else []), code=1,
                                 says=[f"{bad}/.metadata: ", says])
        for words in (["info"], ["ls"], ["show"], ["convert"], ["cat"], ["diff"]):
            with self.subTest(words):
                more = {"convert": ["x.pt"], "cat": ["w"], "diff": ["demo.pt"]}.get(words[0], [])
                self.refused(*words, self.at("bad", "no-file"), *more, code=1,
                             says=["bad/no-file/.metadata: ", "gone.distcp: No such file"])
        self.assertEqual(self.entries(), ["demo.pt"])

    def test_globals_are_passed_over_if_that_is_wanted(self):
        """D1: and are not run."""
        for name in ("runs", "runs-key"):
            self.berth("diff", "--set", "load.unknown_globals=inert", self.at("bad", name), self.at("small"))
        self.assertEqual(self.entries(), ["demo.pt"])

    def test_pieces_that_are_others(self):
        for name in ("shape", "size", "dtype"):
            bad = self.at("bad", name)
            says = 'is not the piece of "b" that .metadata says'
            for words in (["convert", bad, "x.pt"], ["cat", bad, "b"], ["diff", bad, bad]):
                self.refused(*words, code=1, says=[f"{bad}/__0_0.distcp at byte 1705: {says}"])
            done = self.berth("verify", bad, code=1)
            self.assertIn(says, done.out)
            self.assertTrue(done.out.endswith("bad: 1 of 4 pieces\n"))

    def test_a_changed_byte(self):
        """D4"""
        name = self.copy("chunked")
        content = bytearray(self.read(f"{name}/__1_0.distcp"))
        at = content.index(struct.pack("<d", 250 * 401 + 10))  # row 250, column 10 of "columns"
        content[at] ^= 1
        self.write(f"{name}/__1_0.distcp", content)
        done = self.berth("verify", name, code=1)
        self.assertRegex(done.out, r'^"columns": chunked/__1_0.distcp at byte \d+: data/0.*: .*CRC')
        bad = json.loads(self.berth("verify", "--json", name, code=1).out)["bad"]
        self.assertEqual([(row["name"], row["in"]) for row in bad], [("columns", "__1_0.distcp")])
        self.refused("convert", name, "x.pt", code=1, says="CRC")
        self.berth("convert", name, "x.pt", "--set", "load.check=directory")
        self.assertIn("['columns']: bytes: first at element",
                      self.berth("diff", "x.pt", self.at("judged", "chunked.pt"), code=1).out)

    def test_any_bytes(self):
        """Changed, cut and repeated bytes of .metadata end in an exit code, with one line for each error."""
        name, dice = self.copy("small"), random.Random(1)
        content = self.read(f"{name}/.metadata")
        for i in range(5000 if LONG else 100):
            changed = bytearray(content)
            for _ in range(dice.choice((1, 1, 2, 5))):
                at, other = (dice.randrange(len(changed)) for _ in range(2))
                n = dice.randrange(1, 20)
                changed[at:at + dice.choice((0, 1, n))] = dice.choice((
                    b"", bytes([dice.randrange(256)]), changed[other:other + n]))
            if len(changed) > 11 and dice.random() < 0.7:
                changed[3:11] = struct.pack("<Q", len(changed) - 11)  # the length of the frame
            self.write(f"{name}/.metadata", changed)
            done = subprocess.run([BERTH, *dice.choice((["verify"], ["show", "--json"], ["ls"])), name],
                                  cwd=self.folder, capture_output=True, timeout=600)
            self.assertIn(done.returncode, (0, 1, 2), (i, done.stderr))
            n_lines = 0 if done.returncode == 0 or b"bad" in done.stdout else 1
            self.assertEqual(done.stderr.count(b"\n"), n_lines, (i, done.stderr))

    def test_a_cut_file(self):
        name = self.copy("small")
        os.truncate(self.path(f"{name}/__1_0.distcp"), 1000)
        self.refused("convert", name, "x.pt", code=1, says="are not in __1_0.distcp, which has 1000")
        done = self.berth("verify", name, code=1)
        self.assertIn("are not in __1_0.distcp, which has 1000", done.out)
        self.assertTrue(done.out.endswith("bad: 1 of 4 pieces\n"), done.out)

    def test_metadata_that_is_no_file(self):
        os.mkdir(self.path("d"))
        os.mkfifo(self.path("d/.metadata"))
        self.refused("ls", "d", code=1, says="d/.metadata: is no file of at most 256 MiB")
        os.remove(self.path("d/.metadata"))
        self.refused("ls", "d", says="d: the folder has no index, no model file (.safetensors, .pt, .pth, .bin, .ckpt) and "
                     "no .metadata")

    def test_memory_is_constant(self):
        """256 MiB in one piece, and in one file of a set: through less than 128 MiB."""
        index = "large.safetensors.index.json"
        for source, out in ((self.at("large"), index), (self.path(index), "large.pt")):
            child = os.fork()
            if child == 0:
                os.chdir(self.folder)
                os.execv(BERTH, ["berth", "convert", source, out, "--set", "save.durability=none"])
            _, status, usage = os.wait4(child, 0)
            self.assertEqual(status, 0)
            self.assertLess(usage.ru_maxrss, 128 << 10, out)
        self.assertGreater(os.path.getsize(self.path("large.pt")), 256 << 20)

    @unittest.skipUnless(LONG, "two processes with PyTorch: BERTH_LONG=1")
    def test_of_two_processes(self):
        subprocess.run([PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", MAKER,
                        "--ranks", self.made], check=True, timeout=300, stderr=subprocess.DEVNULL)
        self.assertIn("__1_0.distcp", os.listdir(self.at("ranks")))
        self.expect_judged("ranks")
