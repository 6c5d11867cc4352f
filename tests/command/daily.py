# SPDX-License-Identifier: BSD-3-Clause
"""The command day by day: show, several files, selections, standard input and output, sets."""

import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import zipfile

from case import BERTH, Case, old


class Show(Case):
    def test_a_whole_checkpoint(self):
        self.assertRegex(self.berth("show", self.demo, "model.layers.0.bias").out,
                         r"^float32 \[256\]: 0.036000013, 0.037(, 0.0\d+){18}, \.\.\.\n$")
        lines = self.berth("show", self.demo).out.splitlines()
        first = "    'layers.0.weight': float32 [256, 256]: -0.5, -0.499, -0.498, -0.497, ..."
        self.assertEqual(lines[:3], ["dict of 3", "  'model': OrderedDict of 9", first])
        self.assertEqual(lines[-2:], ["  'epoch': 3", "  'learning_rate': 0.0001"])

    def test_one_value_by_path(self):
        self.assertEqual(self.berth("show", self.demo, "epoch").out, "3\n")
        self.assertEqual(self.berth("show", self.demo, "['learning_rate']").out, "0.0001\n")
        self.assertEqual(self.berth("show", "--json", self.demo, "epoch").out, "3\n")
        training = old("training-1.13-zip.pth")
        self.assertEqual(self.berth("show", training, "optimizer.param_groups.0.betas").out, "(0.9, 0.999)\n")
        self.refused("show", self.demo, "epok", code=1, says=["demo.pt", '"epok"'])

    def test_what_is_left_out_is_counted(self):
        done = self.berth("show", self.demo, "-n", "2", "-d", "1")
        self.assertEqual(done.out, "dict of 3\n  'model': OrderedDict of 9\n    ... 9 more\n"
                                   "  'epoch': 3\n  ... 1 more\n")
        self.assertEqual(done.err, "berth: 10 values are left out; --length all --depth all shows them\n")
        self.assertEqual(self.berth("show", self.demo, "-qn2", "-d1").err, "")
        self.assertEqual(json.loads(self.berth("show", self.demo, "-n", "2", "-d", "1", "--json").out),
                         {"model": {"...": {"left_out": 9}}, "epoch": 3, "...": {"left_out": 1}})
        elements = json.loads(self.berth("show", self.demo, "model.layers.0.bias", "--json", "-n", "all").out)
        self.assertEqual(len(elements["first_elements"]), 256)

    def test_what_is_there_twice_is_an_alias(self):
        """As written by hand: a list that is in itself, and a dict under two keys."""
        pickle = (b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01}q\x02X\x01\x00\x00\x00kK\x07s"
                  b"X\x01\x00\x00\x00bh\x02X\x04\x00\x00\x00selfh\x00u.")
        with zipfile.ZipFile(self.path("alias.pt"), "w") as archive:
            archive.writestr("alias/data.pkl", pickle)
            archive.writestr("alias/version", "3\n")
        self.assertEqual(self.berth("show", "alias.pt").out,
                         "dict of 3\n  'a': dict of 1\n    'k': 7\n  'b': alias of ['a']\n"
                         "  'self': alias of the whole\n")
        self.assertEqual(json.loads(self.berth("show", "alias.pt", "--json").out),
                         {"a": {"k": 7}, "b": {"alias_of": "['a']"}, "self": {"alias_of": "the whole"}})

    def test_texts_of_python_2(self):
        with zipfile.ZipFile(self.path("old.pt"), "w") as archive:
            archive.writestr("old/data.pkl", b"\x80\x02}U\x04caf\xe9K\x01s.")
            archive.writestr("old/version", "3\n")
        for command in ("show", "ls", "info"):
            self.refused(command, "old.pt", code=1, says=[
                "old.pt: data.pkl at byte", "SHORT_BINSTRING: text that is not UTF-8 at its byte 3 "
                "(load.old_text=latin1 reads it, in Python encoding=\"latin1\")"])
            self.berth(command, "old.pt", "--set", "load.old_text=latin1")
        self.assertEqual(self.berth("show", "old.pt", "--set", "load.old_text=latin1").out,
                         "dict of 1\n  'caf\u00e9': 1\n")

    def test_objects_that_are_not_built(self):
        done = self.berth("show", old("unknown-1.13-zip.pth"), "extra", "--set", "load.unknown_globals=inert")
        self.assertIn("<__main__ Unknown>, not built\n", done.out)
        self.assertIn("'value': 1\n", done.out)

    def test_of_usage(self):
        for words in (["--depth", "0"], ["--length", "many"], ["-n", "-1"]):
            self.assertIn("is not a number", self.berth("show", self.demo, *words, code=2).err)


class SeveralFiles(Case):
    def setUp(self):
        super().setUp()
        bad = bytearray(self.read("demo.pt"))
        bad[100000] ^= 1
        self.write("bad.pt", bad)

    def test_verify_tells_each_and_exits_with_the_worst(self):
        self.berth("copy", self.demo, "two.pt")
        done = self.berth("verify", "demo.pt", "two.pt")
        ok = "ok: 14 records, 8 storages, 1.0 MiB; 14 checksums match\n"
        self.assertEqual(done.out, f"demo.pt: {ok}two.pt: {ok}")
        done = self.berth("verify", "bad.pt", "demo.pt", code=1)
        lines = done.out.splitlines()
        self.assertRegex(lines[0], r"^bad\.pt: data/0 at byte \d+: its bytes have CRC ")
        self.assertEqual(lines[1:], ["bad.pt: bad: 1 of 14 records", "demo.pt: " + ok.strip()])
        done = self.berth("verify", "missing.pt", "bad.pt", "demo.pt", code=2)
        self.assertEqual(done.out.splitlines()[1:], lines[1:])
        self.assertEqual(done.err, "berth: missing.pt: cannot be opened: No such file or directory\n")
        reports = json.loads(self.berth("verify", "--json", "missing.pt", "bad.pt", "demo.pt", code=2).out)
        self.assertEqual([(each["file"], each.get("ok"), each.get("exit_code")) for each in reports],
                         [("missing.pt", None, 2), ("bad.pt", False, None), ("demo.pt", True, None)])

    def test_ls_and_info_print_blocks(self):
        for command in ("ls", "info"):
            alone = self.berth(command, "demo.pt").out
            total = ("\ntotal              2 files, 2.0 MiB; 18 tensors; 16 storages, 2.0 MiB\n"
                     if command == "info" else "")
            self.assertEqual(self.berth(command, "demo.pt", "demo.pt").out,
                             f"demo.pt:\n{alone}\ndemo.pt:\n{alone}{total}")
            self.assertEqual(self.berth(command, "demo.pt", "missing.pt", code=2).out, f"demo.pt:\n{alone}")
            one = json.loads(self.berth(command, "--json", "demo.pt").out)
            several = json.loads(self.berth(command, "--json", "demo.pt", "demo.pt").out)
            wanted = {**one, "file": "demo.pt"} if command == "info" else {"items": one, "file": "demo.pt"}
            self.assertEqual(several, [wanted, wanted])
        records = self.berth("ls", "-r", "demo.pt").out
        self.assertEqual(self.berth("ls", "-r", "demo.pt", "demo.pt").out,
                         f"demo.pt:\n{records}\ndemo.pt:\n{records}")


class Selections(Case):
    def names(self, path, *words, code=0):
        return [row["name"] for row in json.loads(self.berth("ls", "--json", path, *words, code=code).out)]

    def test_ls_lists_what_matches(self):
        bias = [f"model.layers.{i}.bias" for i in range(4)]
        self.assertEqual(self.names(self.demo, "--only", "*.bias"), bias)
        self.assertEqual(self.names(self.demo, "--only", "model.layers.2"),
                         ["model.layers.2.weight", "model.layers.2.bias"])
        self.assertEqual(self.names(self.demo, "--only", "*.bias", "--without", "*.[02].*"), bias[1::2])
        self.assertEqual(self.names(self.demo, "--without", "model"), [])
        for words, total in ((["--only", "*.bias"], "4 of 9 tensors, 4.0 KiB"),
                             ([], "9 tensors, 1.3 MiB; 8 storages, 1.0 MiB"),
                             (["-b"], "9 tensors, 1314816 bytes; 8 storages, 1052672 bytes")):
            self.assertEqual(self.berth("ls", self.demo, *words).out.splitlines()[-1], total)
        self.refused("ls", "-r", self.demo, "--only", "x", says="do not apply to records")

    def test_a_pattern_that_matches_nothing_is_told(self):
        says = "demo.pt: --only 'wieght' matches nothing"
        self.assertIn(says, self.berth("ls", self.demo, "--only", "wieght", code=1).err)
        for command in ("convert", "copy"):
            self.refused(command, self.demo, "out.pt", "--only", "wieght", code=1, says=says)
            self.refused(command, self.demo, "out.pt", "--only", "model", "--without", "wieght", code=1,
                         says="--without 'wieght' matches nothing")
            self.refused(command, self.demo, "out.pt", "--without", "*", code=1, says="nothing is left")
            self.refused(command, self.demo, "out.pt", "--root", "modle", code=1, says='"modle"')
        self.assertNotIn("out.pt", self.entries())

    def test_some_values_are_written(self):
        for command in ("convert", "copy"):
            self.berth(command, self.demo, "some.pt", "--without", "model.layers.0.weight",
                       "--without", "learn*")
            self.assertEqual(len(self.names("some.pt")), 8)
            self.assertEqual(self.berth("show", "some.pt", "-d1", "-q").out,
                             "dict of 2\n  'model': OrderedDict of 8\n    ... 8 more\n  'epoch': 3\n")
            self.assertEqual(self.berth("cat", "some.pt", "model.head.weight").stdout,
                             self.berth("cat", self.demo, "model.head.weight").stdout)
            self.berth("verify", "some.pt")
            self.berth(command, self.demo, "some.pt", "--root", "model", "--only", "layers.0")
            self.assertEqual(self.names("some.pt"), ["layers.0.weight", "layers.0.bias"])
            self.berth(command, self.demo, "all.pt", "--root", "model", "--only", "*")
            self.berth(command, self.demo, "root.pt", "--root", "['model']")
            self.assertEqual(self.berth("diff", "all.pt", "root.pt").out, "equal\n")

    def test_what_is_tied_stays_so(self):
        self.berth("convert", self.demo, "some.pt", "--only", "*.layers.0.weight", "--only", "*.head.*")
        rows = json.loads(self.berth("ls", "--json", "some.pt").out)
        self.assertEqual([row["storage"] for row in rows], ["0", "0"])
        training = old("training-1.13-zip.pth")
        self.berth("convert", training, "some.pt", "--only", "optimizer")
        self.assertNotIn("alias", self.berth("show", "some.pt").out)
        lines = self.berth("show", training, "optimizer", "-n", "all").out
        self.assertEqual(self.berth("show", "some.pt", "optimizer", "-n", "all").out, lines)

    def test_names_of_tied_tensors_go_with_them(self):
        self.berth("convert", "-Ttq", self.demo, "all.safetensors")
        self.assertEqual(len(self.names("all.safetensors")), 8)
        self.berth("convert", "all.safetensors", "all.pt", "-q")
        self.assertEqual(len(self.names("all.pt")), 9)
        self.assertEqual(self.berth("diff", "all.safetensors", "all.pt").out, "equal\n")
        for container in ("some.safetensors", "some.pt"):
            self.berth("convert", "all.safetensors", container, "--only", "*.head.*", "-q")
            self.assertEqual(self.names(container), ["model.head.weight"])
            self.berth("convert", "all.safetensors", container, "--without", "*.head.*", "-q")
            self.assertEqual(len(self.names(container)), 8)

    def test_of_lists_tuples_and_what_is_shared(self):
        pickle = (b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01}q\x02(X\x01\x00\x00\x00kK\x07"
                  b"X\x01\x00\x00\x00mK\x08uX\x01\x00\x00\x00bh\x02"
                  b"X\x01\x00\x00\x00t(K\x01K\x02K\x03tq\x03X\x01\x00\x00\x00l]q\x04"
                  b"(K\x04K\x05eu.")
        with zipfile.ZipFile(self.path("in.pt"), "w") as archive:
            archive.writestr("in/data.pkl", pickle)
            archive.writestr("in/version", "3\n")

        def some(*words):
            self.berth("convert", "in.pt", "out.pt", *words)
            return json.loads(self.berth("show", "--json", "out.pt").out)

        again = {"alias_of": "['a']"}
        self.assertEqual(some(), {"a": {"k": 7, "m": 8}, "b": again, "t": [1, 2, 3], "l": [4, 5]})
        self.assertEqual(some("--without", "t.1", "--without", "l.0"),
                         {"a": {"k": 7, "m": 8}, "b": again, "t": [1, 3], "l": [5]})
        self.assertEqual(some("--only", "t.2", "--only", "l"), {"t": [3], "l": [4, 5]})
        self.assertEqual(some("--without", "a.k", "--without", "[tl]"), {"a": {"m": 8}, "b": again})
        self.assertEqual(some("--without", "a", "--only", "b"), {"b": {"k": 7, "m": 8}})
        self.assertEqual(some("--without", "b", "--only", "a"), {"a": {"k": 7, "m": 8}})


class Misspelt(Case):
    def test_what_was_meant_is_told(self):
        for words, near in (("verfiy a", "berth verify"), ("lss", "berth ls"), ("help shwo", "berth show"),
                            ("bench laod", "berth bench load"), ("ls --jsn", "--json"),
                            ("ls --jsn=1", "--json"), ("ls --without --x --olny a", "--only"),
                            ("bench save --tensor-count", None), ("xyzzy", None), ("ls --=", None)):
            words = words.split()
            told = self.refused(*words, says="--help` lists all")
            if near:
                self.assertIn(f"; the nearest is '{near}'; ", told)
            else:
                self.assertNotIn("nearest", told)
        self.refused("show", self.demo, "epok", code=1, says="\"epok\"; the nearest is 'epoch'")
        self.refused("show", old("training-1.13-zip.pth"), "optimizer.param_groups.0.bettas", code=1,
                     says="the nearest is 'optimizer.param_groups.0.betas'")
        self.refused("show", self.demo, "model.layers.0.wieght", code=1, says='near: "model.layers.0.weight"')

    def test_an_option_may_be_cut_and_a_value_may_look_like_one(self):
        self.assertEqual(self.berth("ls", "--js", self.demo).out, self.berth("ls", "--json", self.demo).out)
        self.assertIn("--set needs NAME=VALUE", self.berth("ls", "--set", "--foo", self.demo, code=2).err)
        self.refused("ls", "--", "--foo", says="--foo: cannot be opened")


class Colours(Case):
    ESCAPE = re.compile(r"\033\[[0-9;]*m")

    def test_when(self):
        """Without a terminal only if they are asked for; of a terminal see terminal.py."""
        for words in (["ls"], ["show"], ["verify"], ["verify", self.demo], ["diff", self.demo]):
            plain = self.berth(*words, self.demo).out
            self.assertNotIn("\033", plain)
            for never in (["--color=never"], ["--color", "auto"]):
                self.assertEqual(self.berth(*words, self.demo, *never).out, plain)
            always = self.berth(*words, self.demo, "--color=always").out
            self.assertNotEqual(always, plain)
            self.assertEqual(self.ESCAPE.sub("", always), plain)
            self.assertEqual(self.berth(*words, self.demo, "--color=always", "--json").out,
                             self.berth(*words, self.demo, "--json").out)
        self.assertIn("--color: 'blue' is not auto, always or never",
                      self.berth("ls", self.demo, "--color=blue", code=2).err)


class StandardFiles(Case):
    def through(self, shell, code=0, **options):
        """Runs a line of a shell in the folder, where `berth` is the command."""
        done = subprocess.run(["bash", "-o", "pipefail", "-c", 'berth() { "$BERTH" "$@"; }; ' + shell],
                              cwd=self.folder, env=dict(os.environ, BERTH=BERTH), capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=600, check=False, **options)
        self.assertEqual(done.returncode, code, (shell, done.stdout[:200], done.stderr))
        return done.stdout.decode(errors="replace"), done.stderr.decode()

    def test_a_pipe_and_a_file_are_read(self):
        for command, rest in (("ls", ""), ("verify", ""), ("show", "epoch"), ("cat", "model.layers.0.bias"),
                              ("ls -r", ""), ("info --json", "")):
            plain = self.through(f"berth {command} demo.pt {rest}")
            for words in ("<demo.pt berth", "cat demo.pt | berth"):
                self.assertEqual(self.through(f"{words} {command} - {rest}"), plain)
        self.assertEqual(self.through("cat demo.pt | berth diff - demo.pt")[0], "equal\n")
        self.assertEqual(self.through("cat demo.pt | berth diff demo.pt -")[0], "equal\n")
        self.assertIn("/dev/stdin: ok: ", self.through("cat demo.pt | berth verify demo.pt -")[0])
        self.write("-", b"a file of that name")
        self.assertIn("./-: ", self.through("berth ls ./-", code=1)[1])

    def test_a_pipe_is_written(self):
        self.through("cat demo.pt | berth copy - - | cmp - demo.pt")
        self.through("berth copy demo.pt - > out.pt; cmp out.pt demo.pt")
        self.through("berth convert -tq demo.pt out.safetensors;"
                     "berth convert -tq demo.pt - --to safetensors | cmp - out.safetensors")
        self.assertEqual(self.through("cat demo.pt | berth convert - - --to pt | berth diff - demo.pt")[0],
                         "equal\n")
        self.berth("convert", "-tq", self.demo, "odd.name", "--to", "safetensors")
        self.assertEqual(self.read("odd.name"), self.read("out.safetensors"))
        done = self.through("berth copy demo.pt - --stats >out.pt")
        self.assertIn("seconds: ", done[1])

    def test_what_makes_no_sense_is_refused(self):
        for words, says in (("convert demo.pt -", "--to pt or --to safetensors"),
                            ("convert demo.pt - --to pt --json", "standard output is for the file"),
                            ("copy demo.pt - --json --stats", "standard output is for the file"),
                            ("verify - <&-", "standard input: Bad file descriptor"),
                            ("convert - out.pt < .", "standard input: Is a directory")):
            self.assertIn(says, self.through("berth " + words, code=2)[1])
        self.assertIn("--to: 'onnx' is not pt or safetensors",
                      self.through("berth convert --to onnx demo.pt out.onnx", code=2)[1])
        self.assertIn("/dev/stdin: the file is empty", self.through("berth ls -", code=1)[1])
        self.assertIn("begins with", self.through("(head -c 7 >seven; berth ls -) <demo.pt", code=1)[1])

    def test_a_terminal_is_refused(self):
        for words, says in ((["ls", "-"], b"standard input is a terminal"),
                            (["copy", self.demo, "-"], b"a file is not written to a terminal")):
            pid, master = os.forkpty()
            if pid == 0:
                try:
                    os.execv(BERTH, [BERTH, *words])
                finally:
                    os._exit(77)
            seen = b""
            while not seen.endswith(b"\n"):
                seen += os.read(master, 1000)
            self.assertIn(says, seen)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 2)
            os.close(master)

    def test_a_reader_that_leaves_ends_it_without_a_word(self):
        for words in (["copy", self.demo, "-"], ["convert", self.demo, "-", "--to", "pt"],
                      ["convert", "-tq", self.demo, "-", "--to", "safetensors"]):
            ours, theirs = os.pipe()
            os.close(ours)
            done = subprocess.run([BERTH, *words], stdout=theirs, stderr=subprocess.PIPE, check=False)
            os.close(theirs)
            self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, b""), words)
        with open("/dev/full", "wb") as full:
            done = subprocess.run([BERTH, "copy", self.demo, "-"], stdout=full, stderr=subprocess.PIPE,
                                  check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"No space left", done.stderr)

    def test_where_a_pipe_is_kept(self):
        """In a folder's unlinked file; without one in memory, as much as io.memory_nbytes allows."""
        self.assertIn("ok: ", self.through("cat demo.pt | TMPDIR=/nowhere berth verify -")[0])
        self.assertIn("more than io.memory_nbytes", self.through(
            "cat demo.pt | TMPDIR=/nowhere berth verify - --set io.memory_nbytes=1MiB", code=2)[1])
        self.through("cat demo.pt | TMPDIR=. berth verify - --set io.memory_nbytes=1MiB")
        self.assertEqual(self.entries(), ["demo.pt"])

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100000, resource.RLIM_INFINITY))

        self.assertIn("its temporary: File too large; TMPDIR names another folder",
                      self.through("cat demo.pt | TMPDIR=. berth verify -", code=2, preexec_fn=limit)[1])


class Sets(Case):
    """A checkpoint in several files, and their index, as transformers writes them."""

    def setUp(self):
        super().setUp()
        self.berth("convert", self.demo, "whole.pt", "--root", "model")
        for extension in ("bin", "safetensors"):
            weights = {}
            for i in range(2):
                name = f"part-{i}.{extension}"
                self.berth("convert", "whole.pt", name, "--only", f"layers.{i}", "--only", f"layers.{i + 2}")
                rows = json.loads(self.berth("ls", "--json", name).out)
                weights.update({row["name"]: name for row in rows})
            self.index(weights, f"model.{extension}.index.json")
        self.berth("convert", "whole.pt", "layers.pt", "--only", "layers")

    def index(self, weights, name="model.bin.index.json"):
        self.write(name, json.dumps({"metadata": {"total_size": 1}, "weight_map": weights}).encode())

    def test_an_index_stands_for_its_files(self):
        for extension in ("bin", "safetensors"):
            parts = [f"part-{i}.{extension}" for i in range(2)]
            for words in (["info"], ["info", "--json"]):
                self.assertEqual(self.berth(*words, f"model.{extension}.index.json").out,
                                 self.berth(*words, *parts).out)
            told = self.berth("verify", f"model.{extension}.index.json").out.splitlines()
            self.assertEqual([line.split(": ")[:2] for line in told],
                             [[name, "ok"] for name in [*parts, f"model.{extension}.index.json"]])
            self.assertTrue(told[-1].endswith("ok: its 8 tensors are in its 2 files"))
        self.assertIn(self.folder, self.berth("verify", self.path("model.bin.index.json")).out)
        done = self.berth("ls", "model.bin.index.json", "--only", "layers.3")
        self.assertEqual(done.out.count("layers.3"), 2)

    def test_ls_ends_with_the_totals_of_an_index_and_what_it_does_not_list(self):
        parts, index = ["part-0.bin", "part-1.bin"], "model.bin.index.json"
        lines = self.berth("ls", index).out.partition(f"\n{index}:\n")
        self.assertEqual(lines[0], self.berth("ls", *parts).out)
        self.assertEqual(lines[2], "8 tensors, 1.0 MiB in 2 files\n")
        found = json.loads(self.berth("ls", "--json", index).out)
        self.assertEqual(found[:2], json.loads(self.berth("ls", "--json", *parts).out))
        self.assertEqual(found[2], {"file": index, "tensors": 8, "nbytes": 4 * (4 * 65536 + 4 * 256), "files": 2,
                                    "unlisted": []})
        weights = json.loads(self.read(index))["weight_map"]
        del weights["layers.3.weight"]
        self.index({**weights, "layers.0.bias": "part-1.bin"})  # which is in the other
        unlisted = ['"layers.0.bias" in part-0.bin is not in the index',
                    '"layers.3.weight" in part-1.bin is not in the index']
        lines = self.berth("ls", index).out.partition(f"\n{index}:\n")[2].splitlines()
        self.assertEqual(lines[1:], unlisted)
        self.assertEqual(json.loads(self.berth("ls", "--json", index).out)[2]["unlisted"][1],
                         {"tensor": "layers.3.weight", "in": "part-1.bin"})
        lines = self.berth("ls", "-b", index, "--only", "layers.3").out.partition(f"\n{index}:\n")[2].splitlines()
        self.assertEqual(lines, ["2 tensors, 263168 bytes in 2 files", unlisted[1]])
        os.remove(self.path("part-0.bin"))
        done = self.berth("ls", index, code=1)
        self.assertIn(f"{index}:\n4 tensors, 514.0 KiB in 1 of 2 files\n", done.out)

    def test_a_folder_stands_for_the_one_checkpoint_in_it(self):
        os.makedirs(self.path("a/b.ckpt"))
        self.refused("ls", "a/b.ckpt", says="a/b.ckpt: the folder has no index, no model file (.safetensors, ")
        shutil.copy(self.path("layers.pt"), self.path("a/b.ckpt/model.pt"))
        for words in (["ls"], ["info"], ["verify"], ["show"], ["map"], ["cat", "layers.0.bias"],
                      ["diff", "layers.pt"], ["convert", "new.pt"], ["copy", "new.pt"]):
            for folder in ("a", "a/", "a/b.ckpt//"):
                with self.subTest(words, folder=folder):
                    path = folder.rstrip("/") + ("/model.pt" if "b" in folder else "/b.ckpt/model.pt")
                    self.assertEqual(self.berth(words[0], folder, *words[1:]).out,
                                     self.berth(words[0], path, *words[1:]).out)
        self.berth("diff", "new.pt", "layers.pt")
        self.write("a/b.ckpt/model.bin", b"")
        self.refused("verify", "a", says="a/b.ckpt: the folder has 2 files that may be the checkpoint (model.bin, "
                     "model.pt): name one\n")
        for name in ("part-0.bin", "part-1.bin", "model.bin.index.json"):
            os.rename(self.path(name), self.path(f"a/{name}"))  # an index goes first
        self.assertEqual(self.berth("diff", "a", "layers.pt").out, "equal\n")
        self.assertTrue(self.berth("ls", "a").out.endswith("a/model.bin.index.json:\n8 tensors, 1.0 MiB in 2 files\n"))
        os.mkdir(self.path("loop"))
        os.symlink(".", self.path("loop/x.pt"))
        self.refused("ls", "loop", says="x.pt: ")

    def test_files_in_folders_below_the_index(self):
        weights = json.loads(self.read("model.bin.index.json"))["weight_map"]
        os.makedirs(self.path("a/...b"))
        for i, folder in enumerate(("a", "a/...b")):
            os.rename(self.path(f"part-{i}.bin"), self.path(f"{folder}/part-{i}.bin"))
        self.index({name: ("a/" if file == "part-0.bin" else "a/...b/") + file for name, file in weights.items()})
        self.assertIn("ok: its 8 tensors are in its 2 files", self.berth("verify", "model.bin.index.json").out)
        self.assertEqual(self.berth("diff", "model.bin.index.json", "layers.pt").out, "equal\n")

    def test_info_shows_the_texts_of_metadata(self):
        header = json.dumps({"__metadata__": {"format": "pt", "note": "a\x1b[2J", **{f"k{i}": "v" for i in range(40)}},
                             "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
        self.write("m.safetensors", struct.pack("<Q", len(header)) + header + b"x")
        lines = self.berth("info", "m.safetensors").out.splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith("__metadata__"))
        self.assertEqual(lines[first:first + 2], ["__metadata__       format: pt", r"                   note: a\x1b[2J"])
        self.assertIn("                   and 10 more", lines)
        texts = json.loads(self.berth("info", "--json", "m.safetensors").out)["metadata"]
        self.assertEqual((len(texts), texts["note"]), (42, "a\x1b[2J"))
        self.assertNotIn("__metadata__", self.berth("info", self.demo).out)

    def test_diff(self):
        sets = ["model.bin.index.json", "model.safetensors.index.json"]
        for words in (sets, [sets[0], "layers.pt"], ["layers.pt", sets[1]]):
            self.assertEqual(self.berth("diff", *words).out, "equal\n")
        done = self.berth("diff", sets[0], "whole.pt", code=1)
        self.assertEqual(done.out, "['head.weight']: only in:  | whole.pt\n"
                         "different: only in: 1\n")
        changed = bytearray(self.read("part-1.safetensors"))
        changed[-1] ^= 1
        self.write("part-1.safetensors", changed)
        done = self.berth("diff", *sets, code=1)
        self.assertEqual(done.out, "['layers.3.weight']: bytes: first at element 65535 | of 65536\n"
                         "different: bytes: 1\n")
        report = json.loads(self.berth("diff", "--json", "--stats", *sets, code=1).out)
        self.assertEqual((report["differences"][0]["path"], report["stats"]["n_storages"]),
                         ("['layers.3.weight']", 16))

    def test_what_is_missing(self):
        bad = bytearray(self.read("part-0.bin"))
        bad[5000] ^= 1
        self.write("part-0.bin", bad)
        done = self.berth("verify", "model.bin.index.json", code=1)
        self.assertIn("part-0.bin: bad: 1 of ", done.out)
        self.assertTrue(done.out.endswith("model.bin.index.json: ok: its 8 tensors are in its 2 files\n"))
        self.index({"layers.0.weight": "part-1.bin", "layers.1.weight": "part-1.bin", "x": "part-1.bin"})
        done = self.berth("verify", "model.bin.index.json", code=1)
        self.assertEqual(done.out.splitlines()[1:],
                         ['model.bin.index.json: "layers.0.weight" is not in part-1.bin',
                          'model.bin.index.json: "x" is not in part-1.bin',
                          "model.bin.index.json: bad: 2 of 3 tensors are not in their files"])
        report = json.loads(self.berth("verify", "--json", "model.bin.index.json", code=1).out)[-1]
        self.assertEqual((report["ok"], report["n_absent"]), (False, 2))
        os.remove(self.path("part-1.bin"))
        done = self.berth("verify", "model.bin.index.json", code=1)
        self.assertEqual(done.out, "part-1.bin: missing: part-1.bin: cannot be opened: No such file or directory\n"
                         "model.bin.index.json: bad: not all of its 1 files can be opened\n")

    def test_what_is_no_index(self):
        for content, says in ((b"{", "is no index of a checkpoint: "), (b"[]", "has no weight_map"),
                              (b'{"a": 1, "a": 2}', "duplicate object key"),
                              (b'{"weight_map": {"a": "../whole.pt"}}', "the file of \"a\" is not a name"),
                              (b'{"weight_map": {"a": "/etc/passwd"}}', "the file of \"a\" is not a name"),
                              (b'{"weight_map": {"a": 1}}', "the file of \"a\" is not a name")):
            self.write("bad.index.json", content)
            for words in (["ls"], ["verify"], ["diff", self.demo], ["show"], ["convert"], ["cat"]):
                self.refused(*words, "bad.index.json", *{"convert": ["x.pt"], "cat": ["a"]}.get(words[0], []),
                             code=1, says=["bad.index.json: ", says])
        self.refused("ls", "missing.index.json", says="missing.index.json: No such file")
