# SPDX-License-Identifier: BSD-3-Clause
"""Commands that write a file: copy and convert."""

import json
import os
import struct
import subprocess
import sys
import time
import zipfile

from case import BERTH, Case, old


class Copy(Case):
    def test_unchanged_options_give_identical_bytes(self):
        self.berth("copy", self.demo, "copy.pt")
        self.assertEqual(self.read("demo.pt"), self.read("copy.pt"))
        again = self.path("aligned.pt")
        self.berth("copy", self.demo, again, "--set", "save.storage_alignment=4096",
                   "--set", "save.compute_crc32=off")
        self.berth("copy", again, "aligned2.pt")
        self.assertEqual(self.read("aligned.pt"), self.read("aligned2.pt"))

    def test_a_new_alignment_moves_the_storages(self):
        self.berth("copy", self.demo, "a.pt", "--set", "save.storage_alignment=4096")
        info = json.loads(self.berth("info", "a.pt", "--json").out)
        self.assertEqual((info["archive"], info["storage_alignment"]), ("demo", 4096))
        for row in json.loads(self.berth("ls", "a.pt", "--json").out):
            self.assertEqual(row["offset"] % 4096, 0)
        self.assertEqual(self.berth("diff", self.demo, "a.pt").out, "equal\n")
        self.berth("verify", "a.pt", env={"BERTH_SERIALIZATION_DEBUG": "1"})
        self.berth("copy", "a.pt", "b.pt", "--set", "save.storage_alignment=64")
        self.assertEqual(self.read("demo.pt"), self.read("b.pt"))

    def test_crc_off_writes_none_and_verify_says_so(self):
        self.berth("copy", self.demo, "a.pt", "--set", "save.compute_crc32=off")
        self.assertIn("unverified", self.berth("verify", "a.pt").out)

    def test_another_byte_order_keeps_the_values(self):
        other = "big" if sys.byteorder == "little" else "little"
        self.berth("copy", self.demo, "o.pt", "--set", "save.byteorder=" + other)
        self.assertEqual(json.loads(self.berth("info", "o.pt", "--json").out)["byteorder"], other)
        self.assertEqual(self.berth("diff", self.demo, "o.pt").out, "equal\n")

    def test_another_byte_order_keeps_name_and_alignment(self):
        other = "big" if sys.byteorder == "little" else "little"
        self.berth("copy", self.demo, "a.pt", "--set", "save.storage_alignment=512")
        self.berth("copy", "a.pt", "o.pt", "--set", "save.byteorder=" + other)
        info = json.loads(self.berth("info", "o.pt", "--json").out)
        self.assertEqual((info["archive"], info["storage_alignment"]), ("demo", 512))

    def test_an_alignment_that_is_not_written_is_told_with_the_file(self):
        def with_alignment(text):
            with zipfile.ZipFile(self.demo) as archive:
                records = [(i.filename, archive.read(i)) for i in archive.infolist()]
            with zipfile.ZipFile(self.path("odd.pt"), "w") as archive:
                for name, content in records:
                    archive.writestr(name, text if name.endswith("alignment") else content)

        before = self.entries() + ["odd.pt"]
        # The second is no number: what follows the space must not become an option.
        for text in (b"3", b"64 save.durability=none"):
            with_alignment(text)
            self.refused("copy", "odd.pt", "out.pt", says="odd.pt")
            self.assertEqual(self.entries(), sorted(before))
        with_alignment(b"3")
        self.refused("copy", "odd.pt", "out.pt", says="--set save.storage_alignment=64")

    def test_a_record_that_cannot_be_read_is_told_as_what_it_is(self):
        with zipfile.ZipFile(self.demo) as archive:
            records = [(i.filename, archive.read(i)) for i in archive.infolist()]
        text = "".join(map(str, range(50000)))
        with zipfile.ZipFile(self.path("odd.pt"), "w") as archive:
            for name, content in records:
                if not name.endswith("/.format_version"):  # its layout is not this file's
                    archive.writestr(name, content)
            archive.writestr("demo/extra", text, zipfile.ZIP_DEFLATED)
            at = archive.getinfo("demo/extra").header_offset + 5000
        odd = bytearray(self.read("odd.pt"))
        odd[at] ^= 0xff
        self.write("odd.pt", odd)
        before = self.entries()
        said = self.refused("copy", "odd.pt", "out.pt", code=1, says=["odd.pt", "extra"])
        self.assertNotIn("Input/output error", said)
        self.assertEqual(self.entries(), before)

    def test_over_itself(self):
        before = self.read("demo.pt")
        self.berth("copy", self.demo, self.demo)
        self.assertEqual(before, self.read("demo.pt"))

    def test_a_base_is_told_in_the_statistics(self):
        """W12: whether this folder can share blocks or not, the file is the same."""
        for command in ("copy", "convert"):
            self.berth(command, self.demo, self.path("new.pt"))
            expected = self.read("new.pt")
            done = self.berth(command, self.demo, self.path("new.pt"), "--base", self.demo, "--stats")
            self.assertIn("shared with the base: ", done.err)
            report = json.loads(self.berth(command, self.demo, self.path("new.pt"), "--base", self.path("none.pt"),
                                           "--stats", "--json").out)["stats"]
            self.assertEqual((report["shared_nbytes"], report["compared_nbytes"]), (0, 0))
            self.assertIn(report["base_reason"], ("the base does not exist", "no storage has 64 KiB"))
            self.assertEqual(self.read("new.pt"), expected)
        self.berth("convert", self.demo, self.path("s.safetensors.index.json"), "--base", self.demo, code=2)

    def test_a_torchscript_archive_is_records_too(self):
        self.berth("copy", old("torchscript-1.13.pt"), "t.pt")
        self.assertEqual(self.berth("ls", "--records", "t.pt").out.count("\n"), 6)


class Convert(Case):
    def test_safetensors_there_and_back(self):
        self.refused("convert", self.demo, "m.safetensors", says=["epoch", "--tensors-only"])
        self.assertNotIn("m.safetensors", self.entries())
        self.berth("convert", self.demo, "m.safetensors", "--tensors-only")
        self.berth("convert", "m.safetensors", "back.pt")
        names = {r["name"] for r in json.loads(self.berth("ls", self.demo, "--json").out)}
        rows = json.loads(self.berth("ls", "back.pt", "--json").out)
        self.assertEqual(names, {r["name"] for r in rows})
        for name in ("model.head.weight", "model.layers.3.bias"):
            path = "['%s']" % name
            self.assertEqual(self.berth("cat", self.demo, name).stdout,
                             self.berth("cat", "back.pt", path).stdout)

    def test_the_parts_of_what_is_left_out_are_left_out(self):
        names = {r["name"] for r in json.loads(
            self.berth("ls", "--json", old("rare-1.13-zip.pth")).out)}
        self.assertIn("coo.indices", names)
        self.assertIn("per_channel.scales", names)
        self.refused("convert", old("rare-1.13-zip.pth"), "r.safetensors", says=["coo", "sparse"])
        self.berth("convert", old("rare-1.13-zip.pth"), "r.safetensors", "--tensors-only")
        self.assertEqual(struct.unpack("<Q", self.read("r.safetensors")[:8])[0] + 8,
                         len(self.read("r.safetensors")))

    def test_keys_with_nuls_stay_two_tensors(self):
        """Two names cut at their NUL became one name, and one tensor was lost."""
        text = lambda key: b"X" + struct.pack("<I", len(key)) + key
        tensor = (b"ctorch._utils\n_rebuild_tensor_v2\n((" + text(b"storage") +
                  b"ctorch\nFloatStorage\n" + text(b"%d") + text(b"cpu") +
                  b"K\x01tQK\x00K\x01\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR")
        with zipfile.ZipFile(self.path("nul.pt"), "w") as archive:
            archive.writestr("nul/data.pkl", b"\x80\x02}(" + b"".join(
                text(b"a\0" + key) + tensor.replace(b"\x02\0\0\0%d", b"\x01\0\0\0" + i)
                for key, i in ((b"b", b"0"), (b"c", b"1"))) + b"u.")
            for i in range(2):
                archive.writestr(f"nul/data/{i}", struct.pack("<f", i))
            archive.writestr("nul/version", b"3\n")
        names = [r["name"] for r in json.loads(self.berth("ls", "nul.pt", "--json").out)]
        self.assertEqual(names, ["['a\\x00b']", "['a\\x00c']"])
        self.berth("convert", "nul.pt", "nul.safetensors")
        self.berth("convert", "nul.safetensors", "back.pt")
        self.assertEqual(len(json.loads(self.berth("ls", "back.pt", "--json").out)), 2)
        for i, name in enumerate(names):
            self.assertEqual(self.berth("cat", "nul.pt", name).stdout, struct.pack("<f", i))

    def test_a_link_to_nowhere_is_followed(self):
        os.symlink("there.safetensors", self.path("link.safetensors"))
        before = self.entries()
        self.berth("convert", self.demo, "link.safetensors", "--tensors-only")
        self.assertTrue(os.path.islink(self.path("link.safetensors")))
        self.assertEqual(self.entries(), sorted(before + ["there.safetensors"]))
        os.symlink("round.safetensors", self.path("round.safetensors"))
        self.refused("convert", self.demo, "round.safetensors", "--tensors-only",
                     says=["round.safetensors", "levels of symbolic links"])

    def has_owned_temporary(self):
        """A save that dies before it has said whose its temporary is leaves that to `berth clean`."""
        return any("user.berth.owner" in os.listxattr(self.path(name))
                   for name in self.entries() if name.startswith(".berth-"))

    def test_a_leftover_of_a_killed_convert_goes_with_the_next_save(self):
        size = 1 << 30
        header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with open(self.path("big.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + size)
        self.berth("convert", "big.safetensors", "big.pt")
        before = self.entries()
        job = subprocess.Popen([BERTH, "convert", "big.pt", "out.safetensors"], cwd=self.folder)
        deadline = time.monotonic() + 20
        while not self.has_owned_temporary() and time.monotonic() < deadline:
            time.sleep(0.001)
        job.kill()
        job.wait(60)
        self.assertEqual(len(self.entries()), len(before) + 1)
        self.berth("convert", "--tensors-only", self.demo, "out.safetensors")
        self.assertEqual(self.entries(), sorted(before + ["out.safetensors"]))

    def test_broken_safetensors(self):
        def made(header, data=b""):
            text = header if isinstance(header, bytes) else json.dumps(header).encode()
            return self.write("x.safetensors", struct.pack("<Q", len(text)) + text + data)

        entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        for header, data, says in (
                ({"a": dict(entry, dtype="X9")}, b"\0" * 8, "dtype"),
                ({"a": dict(entry, shape=[3])}, b"\0" * 8, "number of bytes"),
                ({"a": dict(entry, shape=[2 ** 62, 2 ** 62])}, b"\0" * 8, "number of bytes"),
                ({"a": dict(entry, data_offsets=[0, 16])}, b"\0" * 8, "8 bytes behind the end"),
                ({"a": dict(entry, data_offsets=[-8, 0])}, b"\0" * 8, "no range"),
                ({"a": entry, "b": entry}, b"\0" * 8, "overlaps"),
                ({"a": dict(entry, data_offsets=[8, 16])}, b"\0" * 16, "gap"),
                ({"a": entry}, b"\0" * 9, "follow the last"),
                (b'{"a": 1, "a": 2}', b"", "the object has already"), (b"[1, 2]  ", b"", "x.safetensors"),
                (b'{"', b"\0" * 9, "safetensors header")):
            self.refused("convert", made(header, data), "out.pt", code=1, says=says)
            self.assertNotIn("out.pt", self.entries())
        self.refused("convert", self.write("y.safetensors", b"\xff" * 16), "out.pt", code=1,
                     says="y.safetensors")

    def test_an_extension_nobody_knows(self):
        self.refused("convert", self.demo, "out.onnx", says="out.onnx")

    def test_compact_is_for_checkpoints(self):
        self.refused("convert", "--compact", self.demo, "out.safetensors",
                     says=["--compact", "safetensors"])
        self.berth("convert", "--compact", self.demo, "demo.pt")
        self.berth("diff", self.demo, "demo.pt")


class Rights(Case):
    """F6: nobody can read a new file who could not read all that it is made of."""

    # An ACL of Linux (posix_acl_xattr): user, user 12345, group, mask, others.
    ACL = struct.pack("<I" + 5 * "HHI", 2, 1, 6, 2**32 - 1, 2, 4, 12345, 4, 0, 2**32 - 1, 16, 4, 2**32 - 1,
                      32, 4, 2**32 - 1)

    def setUp(self):
        super().setUp()
        self.berth("convert", self.demo, "set.safetensors.index.json", "--root", "model", "--shard-size", "300KiB")
        self.parts = [name for name in self.entries() if name.startswith("set-")]
        self.assertGreater(len(self.parts), 1)

    def modes(self, inputs, umask=0o022, before=lambda: None):
        """The modes of what each command writes of files with these rights."""
        found = set()
        for words in (("copy", "demo.pt", "out.pt"), ("copy", "demo.pt", "out.pt", "--only", "model"),
                      ("convert", "demo.pt", "out.safetensors", "--root", "model"), ("convert", "demo.pt", "out.bin"),
                      ("convert", "demo.pt", "out.safetensors.index.json", "--root", "model", "--shard-size", "300KiB"),
                      ("convert", "set.safetensors.index.json", "out.pt")):
            os.mkdir(self.path("new"))
            before()
            words = [*words[:2], "new/" + words[2], *words[3:]]
            for name, prepare in inputs.items():
                prepare(self.path(name))
            done = subprocess.run([BERTH, *words], cwd=self.folder, umask=umask, capture_output=True, check=False)
            self.assertEqual(done.returncode, 0, done)
            for name in os.listdir(self.path("new")):
                found.add(oct(os.stat(self.path("new/" + name)).st_mode & 0o777))
                os.remove(self.path("new/" + name))
            os.rmdir(self.path("new"))
        return found

    def test_a_new_file_has_no_more_readers_than_its_input(self):
        def mode(bits, gid=None):
            def prepare(path):
                os.chown(path, -1, os.getegid() if gid is None else gid)
                os.chmod(path, bits)
            return prepare

        def acl(path):
            os.setxattr(path, "system.posix_acl_access", self.ACL)

        rows = [(mode(0o600), 0, 0o600), (mode(0o400), 0o022, 0o600), (mode(0o640), 0, 0o660),
                (mode(0o640), 0o022, 0o640), (mode(0o640), 0o077, 0o600), (mode(0o644), 0, 0o666),
                (mode(0o644), 0o022, 0o644), (mode(0o444), 0o022, 0o644), (mode(0o604), 0, 0o600)]
        if os.geteuid() == 0:
            rows += [(mode(0o640, 12345), 0, 0o600), (mode(0o644, 12345), 0o022, 0o644)]
        try:
            acl(self.write("acl", b""))
            rows.append((acl, 0, 0o600))
        except OSError:
            pass
        for prepare, umask, expected in rows:
            inputs = dict.fromkeys(["demo.pt", "set.safetensors.index.json", *self.parts], prepare)
            with self.subTest(expected=oct(expected), umask=oct(umask)):
                self.assertEqual(self.modes(inputs, umask), {oct(expected)})

    def test_of_several_inputs_all_count(self):
        os.chmod(self.path(self.parts[-1]), 0o600)
        self.berth("convert", "set.safetensors.index.json", "out.pt", umask=0o022)
        self.assertEqual(os.stat(self.path("out.pt")).st_mode & 0o777, 0o600)

    def test_an_acl_of_the_folder_gives_nobody_more(self):
        def default_acl():
            os.setxattr(self.path("new"), "system.posix_acl_default", self.ACL)

        os.mkdir(self.path("new"))
        try:
            default_acl()
        except OSError as error:
            self.skipTest(str(error))
        finally:
            os.rmdir(self.path("new"))
        for bits in (0o600, 0o640):
            inputs = dict.fromkeys(["demo.pt", "set.safetensors.index.json", *self.parts],
                                   lambda path, bits=bits: os.chmod(path, bits))
            self.assertEqual(self.modes(inputs, 0, default_acl), {"0o600"})

    def test_an_old_target_keeps_its_rights(self):
        os.chmod(self.demo, 0o600)
        os.chmod(self.write("out.pt", b"old"), 0o640)
        self.berth("copy", self.demo, "out.pt")
        self.assertEqual(os.stat(self.path("out.pt")).st_mode & 0o777, 0o640)

    def test_the_file_that_is_standard_input_counts(self):
        os.chmod(self.demo, 0o600)
        for word in ("-", "/dev/stdin"):
            for skipped in (0, 1):  # behind its first byte a temporary takes its place
                self.write("in.pt", bytes(skipped) + self.read(self.demo))
                os.chmod(self.path("in.pt"), 0o600)
                with open(self.path("in.pt"), "rb", buffering=0) as file:
                    file.seek(skipped)
                    self.berth("convert", word, "out.pt", stdin=file, umask=0o022)
                self.assertEqual(os.stat(self.path("out.pt")).st_mode & 0o777, 0o600)
                os.remove(self.path("out.pt"))

    def test_the_user_and_a_pipe_decide_otherwise(self):
        os.chmod(self.demo, 0o600)
        self.berth("copy", self.demo, "out.pt", "--set", "save.readers=all", umask=0o022)
        with subprocess.Popen(["cat", self.demo], stdout=subprocess.PIPE) as cat:
            self.berth("copy", "-", "piped.pt", stdin=cat.stdout, umask=0o022)
        for name in ("out.pt", "piped.pt"):
            self.assertEqual(os.stat(self.path(name)).st_mode & 0o777, 0o644)
        self.berth("demo", "mine.pt", "--set", "save.readers=group", umask=0)
        self.assertEqual(os.stat(self.path("mine.pt")).st_mode & 0o777, 0o660)
