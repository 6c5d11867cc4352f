# SPDX-License-Identifier: BSD-3-Clause
"""Commands that show something: help, ls, info, cat, config."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile

from case import BERTH, Case, old


class Help(Case):
    def test_every_command_has_help_and_exits_0(self):
        for name in ("ls info show verify cat copy convert diff clean config demo bench "
                     "bench,save bench,load bench,rows").split():
            words = name.split(",")
            told = self.berth(*words, "--help").out
            self.assertIn("Usage:", told)
            self.assertEqual(self.berth(*words, "-h").out, told)
            if words != ["bench"]:
                self.assertEqual(self.berth("help", *words).out, told)
        self.assertEqual(self.berth("-h").out, self.berth("--help").out)
        self.assertEqual(self.berth("help").out, self.berth("--help").out)
        self.assertIn("verify", self.berth("--help").out)
        self.assertRegex(self.berth("--version").out, r"^berth \d+\.\d+\.\d+\n$")

    def zipped_again(self, name, method, change=lambda pickle: pickle):
        with zipfile.ZipFile(self.demo) as archive, zipfile.ZipFile(self.path(name), "w", method) as made:
            for record in archive.namelist():
                content = archive.read(record)
                made.writestr(record, change(content) if record.endswith("/data.pkl") else content)
        return name

    def test_what_it_says_of_files_is_so(self):
        """Of those that PyTorch no longer writes, that others zipped again, that are none."""
        self.leave_debug_mode()

        def says(command, *sentences):
            text = " ".join(self.berth(command, "--help").out.split())
            for sentence in sentences:
                self.assertIn(sentence, text)

        legacy = old("training-1.13-stream.pth")
        stored = self.zipped_again("stored.pt", zipfile.ZIP_STORED)
        deflated = self.zipped_again("deflated.pt", zipfile.ZIP_DEFLATED)
        words = self.write("words.pt", b"Entry not found")

        says("ls", "(-: it is compressed, or has no elements)")
        rows = self.berth("ls", deflated).out.splitlines()[1:-1]
        self.assertTrue(rows)
        for row in rows:
            self.assertRegex(row, " - +cpu ")

        says("verify", "The exit code is 0 for `ok`, else 1. It is 2 without such a line if the file cannot be read.")
        for path in (self.demo, legacy, stored, deflated):
            self.assertTrue(self.berth("verify", path).out.splitlines()[-1].startswith("ok: "))
        self.assertTrue(self.berth("verify", words, code=1).out.startswith("bad: "))
        self.assertEqual(self.berth("verify", "missing.pt", code=2).out, "")

        says("copy", "stays the same, byte for byte", "If storages are compressed, the copy is written anew",
             "Any other repacked file, and the legacy format, are refused: `berth convert` reads them.")
        self.berth("copy", self.demo, "copy.pt")
        self.assertEqual(self.read("copy.pt"), self.read(self.demo))
        self.berth("copy", deflated, "anew.pt")
        self.assertEqual({record.compress_type for record in zipfile.ZipFile(self.path("anew.pt")).infolist()},
                         {zipfile.ZIP_STORED})
        for path in (stored, legacy):
            self.refused("copy", path, "refused.pt", code=1)

        says("convert", "write an older, repacked or compressed file in today's format")
        for path in (stored, legacy, deflated):
            self.berth("convert", path, "today.pt")
            self.assertEqual(self.berth("diff", path, "today.pt").out, "equal\n")
            self.assertIn("calculated", self.berth("info", "today.pt").out)

        says("diff", "Not compared: layout, strides, sharing, the order of keys, list or tuple, tensor or "
             "Parameter, requires_grad, devices (but meta), and the attributes of dicts if a side is safetensors")
        for before, after in ((b"\x03\0\0\0cpu", b"\x03\0\0\0xpu"), (b"\x89h", b"\x88h")):
            other = self.zipped_again("other.pt", zipfile.ZIP_STORED, lambda p: p.replace(before, after))
            self.assertNotEqual(self.berth("ls", "--json", stored).out, self.berth("ls", "--json", other).out)
            self.assertEqual(self.berth("diff", stored, other).out, "equal\n")

    def test_wrong_usage_exits_2(self):
        self.assertIn("Commands:", self.berth(code=2).err)
        self.refused("frobnicate", says="frobnicate")
        self.refused("frob\033[2J", says=r"'frob\x1b[2J'")
        self.refused("help", "frob", says="'frob'")
        self.refused("bench", "frob", says="'bench frob'")
        for words in (["ls"], ["diff", "a", "b", "c"], ["cat", "a"], ["ls", "--nonsense", "a"],
                      ["ls", "--set", "load.check", self.demo],
                      ["ls", "--set", "load.check=everything", self.demo],
                      ["ls", "--set", "load.chekc=data", self.demo]):
            self.assertIn("berth ls" if words[0] == "ls" else "berth", self.berth(*words, code=2).err)

    def test_words_that_are_strangers_file_names_print_no_control_characters(self):
        for control in ("\033", "\n", "\x7f", "\xc2\x9b".encode("latin-1").decode()):
            for words in (["ls", f"--no{control}[2J"], ["ls", f"-{control}[2J"],
                          ["ls", self.demo, f"--set{control}=1"],
                          ["bench", "save", f"--nonsense={control}"]):
                self.refused(*words, says=["\\", "write ./ before its name"])
            for words in (["ls", "--set", f"load.check=a{control}b", self.demo],
                          ["ls", "--set", f"nothing{control}=b", self.demo],
                          ["bench", "save", "--tensors", f"a{control}b"],
                          ["bench", "rows", "--size", f"a{control}b"]):
                said = self.berth(*words, code=2).err
                self.assertNotIn(control + "b", said)
                self.assertNotIn(control + "=", said)
                self.assertRegex(said, r"(a|nothing)\\")
        shutil.copy(self.demo, self.path("-\033[2J"))
        for words in (["./-\033[2J"], ["--", "-\033[2J"]):
            self.assertIn("ok: ", self.berth("verify", *words).out)


class Ls(Case):
    def test_lists_the_offset_of_every_tensor(self):
        rows = json.loads(self.berth("ls", self.demo, "--json").out)
        self.assertEqual(len(rows), 9)
        content = self.read("demo.pt")
        row = next(r for r in rows if r["name"] == "model.layers.0.bias")
        self.assertEqual((row["dtype"], row["shape"], row["stride"], row["nbytes"], row["device"]),
                         ("float32", [256], [1], 1024, "cpu"))
        raw = self.berth("cat", self.demo, "model.layers.0.bias").stdout
        self.assertEqual(content[row["offset"]:row["offset"] + 1024], raw)

    def test_ties_share_storage_and_offset(self):
        rows = {r["name"]: r for r in json.loads(self.berth("ls", self.demo, "--json").out)}
        tied, first = rows["model.head.weight"], rows["model.layers.0.weight"]
        self.assertEqual((tied["storage"], tied["offset"]), (first["storage"], first["offset"]))

    def test_keys_of_the_documented_object(self):
        row = json.loads(self.berth("ls", self.demo, "--json").out)[0]
        self.assertEqual(list(row), ["name", "dtype", "shape", "stride", "storage",
                                     "storage_offset", "offset", "nbytes", "device",
                                     "requires_grad", "parameter"])

    def test_records_of_anything(self):
        for name in ("torchscript-1.13.pt", "package-1.13.pt"):
            rows = json.loads(self.berth("ls", "--records", "--json", old(name)).out)
            with zipfile.ZipFile(old(name)) as archive:
                names = [i.filename.split("/", 1)[1] for i in archive.infolist()]
            self.assertEqual(sorted(r["record"] for r in rows), sorted(names))


class Info(Case):
    def test_tells_what_the_file_is(self):
        info = json.loads(self.berth("info", self.demo, "--json").out)
        self.assertEqual((info["archive"], info["container"], info["format_version"],
                          info["storage_alignment"], info["byteorder"]),
                         ("demo", "zip", 1, 64, sys.byteorder))
        self.assertEqual((info["tensors"], info["storages"], info["nbytes"]),
                         (9, 8, os.path.getsize(self.demo)))
        self.assertTrue(info["calculated_offsets"])

    def test_old_files(self):
        info = json.loads(self.berth("info", old("many-1.13-zip.pth"), "--json").out)
        self.assertIsNone(info["format_version"])
        self.assertFalse(info["calculated_offsets"])
        info = json.loads(self.berth("info", old("many-1.13-stream.pth"), "--json").out)
        self.assertEqual((info["container"], info["storages"]), ("legacy", 13))


class OldFiles(Case):
    def test_every_fixture_holds_what_its_maker_saw(self):
        with open(old("expected.json")) as file:
            expected = json.load(file)
        checked = 0
        for name, tensors in expected.items():
            rows = {r["name"]: r for r in json.loads(self.berth("ls", "--json", old(name)).out)}
            for tensor, facts in tensors.items():
                self.assertEqual((rows[tensor]["dtype"], rows[tensor]["shape"]),
                                 (facts["dtype"], facts["shape"]), (name, tensor))
                raw = self.berth("cat", old(name), tensor).stdout
                self.assertEqual(hashlib.sha256(raw).hexdigest(), facts["sha256"], (name, tensor))
                checked += 1
        self.assertGreater(checked, 120)

    def test_convert_leaves_the_old_formats_behind(self):
        for name in ("training-1.13-stream.pth", "views-1.13-stream.pth", "rare-1.13-stream.pth",
                     "training-1.13-zip.pth", "addresses-1.6-zip.pth"):
            self.berth("convert", old(name), "new.pt")
            self.assertEqual(self.berth("diff", old(name), "new.pt").out, "equal\n")
            info = json.loads(self.berth("info", "new.pt", "--json").out)
            self.assertEqual((info["container"], info["format_version"]), ("zip", 1))
            self.assertTrue(self.berth("verify", "new.pt").out.startswith("ok: "))

    def test_what_is_no_checkpoint_gets_one_clear_sentence(self):
        for name, says in (("tar-0.1.pth", "tar"), ("torchscript-1.13.pt", "TorchScript"),
                           ("package-1.13.pt", "torch.package"),
                           ("module-1.13-stream.pth", "module"),
                           ("unknown-1.13-zip.pth", "__main__ Unknown")):
            self.refused("ls", old(name), code=1, says=[name, says])

    def test_inert_lists_what_unknown_globals_would_build(self):
        rows = json.loads(self.berth("ls", "--json", "--set", "load.unknown_globals=inert",
                                     old("unknown-1.13-zip.pth")).out)
        self.assertIn("weight", [r["name"] for r in rows])


class Cat(Case):
    def test_a_transposed_view_comes_in_row_major_order(self):
        base = self.berth("cat", old("views-1.13-zip.pth"), "base").stdout
        numbers = struct.unpack("<24f", base)
        transposed = self.berth("cat", old("views-1.13-zip.pth"), "transposed").stdout
        self.assertEqual(struct.unpack("<24f", transposed),
                         tuple(numbers[r * 6 + c] for c in range(6) for r in range(4)))

    def test_a_path_names_a_tensor_too(self):
        self.assertEqual(self.berth("cat", self.demo, "['model']['layers.1.bias']").stdout,
                         self.berth("cat", self.demo, "model.layers.1.bias").stdout)

    def test_a_name_not_found_says_what_is_near(self):
        self.refused("cat", self.demo, "model.layers.0.wieght", code=1,
                     says=["demo.pt", "model.layers.0.wieght", "model.layers.0.weight"])

    def test_what_is_no_tensor(self):
        self.refused("cat", self.demo, "epoch", says=["demo.pt", '"epoch" is not', "int"])
        self.refused("cat", self.demo, "model", says=["demo.pt", '"model" is not', "`berth ls`"])

    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([BERTH, "cat", self.demo, "model.head.weight"], stdout=full,
                                  stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"No space left", done.stderr)


class Config(Case):
    def test_every_option_with_its_source(self):
        rows = {r["name"]: r for r in json.loads(self.berth("config", "--json").out)}
        self.assertEqual((rows["save.storage_alignment"]["value"],
                          rows["save.storage_alignment"]["source"]), ("64", "default"))
        rows = {r["name"]: r for r in json.loads(
            self.berth("config", "--json", "--set", "save.storage_alignment=512",
                       env={"BERTH_LOAD_CHECK": "data"}).out)}
        self.assertEqual(rows["save.storage_alignment"]["value"], "512")
        self.assertIn("BERTH_LOAD_CHECK", rows["load.check"]["source"])

    def test_options_of_a_file(self):
        with open(os.path.join(self.folder, "options"), "w") as file:
            file.write("# ours\nio.threads = 3\nfuture.option = 1\n")
        done = self.berth("config", "--config", "options", "io.threads")
        self.assertIn("io.threads = 3   (file options)", done.out)
        done = self.berth("config", "--config", "options", "--set", "io.threads=4", "io.threads")
        self.assertIn("io.threads = 4   (--set)", done.out)
        self.assertIn("future.option: no such option; it is skipped (in line 3)", done.err)
        done = self.berth("config", "io.threads", env={"BERTH_CONFIG": "options"})
        self.assertIn("io.threads = 3   (file options:2)", done.out)
        self.assertIn("absent: No such file", self.berth("config", "--config", "absent", code=2).err)
        with open(os.path.join(self.folder, "options"), "w") as file:
            file.write("io.threads = many\n")
        done = self.berth("config", "--config", "options", code=2)
        self.assertIn("options: io.threads = many: must be 0 to 1024, 0: measured, in digits (in "
                      "line 1)", done.err)

    def test_lines_for_a_shell(self):
        self.leave_debug_mode()
        done = self.berth("config", "--export", "--set", "load.mmap_flags=shared,populate",
                          "--set", "io.chunk_nbytes=4MiB")
        self.assertEqual(done.out, "export BERTH_LOAD_MMAP_FLAGS=shared,populate\n"
                                   "export BERTH_IO_CHUNK_NBYTES=4MiB\n")

    def test_options_are_shown_whatever_the_environment_holds(self):
        done = self.berth("config", code=2, env={"BERTH_IO_THREADS": "x", "BERTH_LOAD_MMAP": "0"})
        self.assertIn("environment BERTH_LOAD_MMAP", done.out)
        self.assertIn("BERTH_IO_THREADS in the environment", done.err)

    def test_a_bad_variable_is_never_ignored(self):
        self.refused("ls", self.demo, env={"BERTH_SAVE_STORAGE_ALIGNMENT": "3"},
                     says=["BERTH_SAVE_STORAGE_ALIGNMENT", "3"])
        self.refused("ls", self.demo, env={"BERTH_LOAD_CHEKC": "data"}, says="BERTH_LOAD_CHEKC")
