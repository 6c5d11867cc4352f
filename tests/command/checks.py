# SPDX-License-Identifier: BSD-3-Clause
"""Commands that check something: verify and diff; and what every command refuses."""

import filecmp
import json
import os
import re
import signal
import stat
import struct
import subprocess
import sys
import zipfile

from case import BERTH, Case, old


class Verify(Case):
    def test_ok_and_bad_lines(self):
        self.assertRegex(self.berth("verify", self.demo).out.splitlines()[-1], r"^ok: 14 records")
        rows = json.loads(self.berth("ls", self.demo, "--json").out)
        content = bytearray(self.read("demo.pt"))
        content[rows[2]["offset"] + 5] ^= 0x10
        self.write("bad.pt", content)
        record = "data/" + rows[2]["storage"]
        told, last = self.berth("verify", "bad.pt", code=1).out.splitlines()
        self.assertRegex(told, r"^%s at byte \d+: its bytes have CRC .*; in it: %s$"
                         % (record, re.escape(rows[2]["name"])))
        self.assertEqual(last, "bad: 1 of 14 records")
        report = json.loads(self.berth("verify", "bad.pt", "--json", code=1).out)
        self.assertFalse(report["ok"] or "reason" in report)
        self.assertEqual([(bad["record"], bad["tensors"], bad["n_tensors"]) for bad in report["bad"]],
                         [(record, [rows[2]["name"]], 1)])

    def test_what_no_record_is_to_blame_for(self):
        self.write("cut.pt", self.read("demo.pt")[:-5])
        end = os.path.getsize(self.demo) - 22
        says = f"cut.pt: at byte {end}: the end record is cut off: 17 of its 22 bytes are there: " \
            "a download or a save in place that did not end?"
        self.assertEqual(self.berth("verify", "cut.pt", code=1).out, f"bad: {says}\n")
        report = json.loads(self.berth("verify", "cut.pt", "--json", code=1).out)
        self.assertEqual((report["bad"], report["reason"]), ([], says))

    def test_every_bad_record_is_told(self):
        rows = json.loads(self.berth("ls", self.demo, "--json").out)
        content = bytearray(self.read("demo.pt"))
        bad = sorted((rows[1], rows[3]), key=lambda row: row["offset"])
        for row in bad:
            content[row["offset"]] ^= 1
        self.write("bad.pt", content)
        names = ["data/" + row["storage"] for row in bad]
        lines = self.berth("verify", "bad.pt", code=1).out.splitlines()
        self.assertEqual([line.split(" at byte")[0] for line in lines[:-1]], names)
        self.assertEqual([line.split("; in it: ")[1] for line in lines[:-1]],
                         [row["name"] for row in bad])
        self.assertEqual(lines[-1], "bad: 2 of 14 records")
        report = json.loads(self.berth("verify", "bad.pt", "--json", "--stats", code=1).out)
        self.assertEqual([bad["record"] for bad in report["bad"]], names)
        self.assertEqual({bad["crc32"] for bad in report["bad"]}, {"bad"})
        self.assertIn(report["stats"]["method"], ("map", "read", "direct"))

    def test_the_first_tensors_of_a_bad_record_are_named(self):
        """Views of one storage, with names of strangers."""
        text = lambda key: b"X" + struct.pack("<I", len(key)) + key
        tensor = (b"ctorch._utils\n_rebuild_tensor_v2\n((" + text(b"storage") +
                  b"ctorch\nFloatStorage\n" + text(b"0") + text(b"cpu") +
                  b"K\x01tQK\x00K\x01\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR")
        names = [b"a\033[2J", b"b", b"c" * 9000, b"d", b"e"]
        with zipfile.ZipFile(self.path("views.pt"), "w") as archive:
            archive.writestr("v/data.pkl", b"\x80\x02}(" + b"".join(
                text(name) + tensor for name in names) + b"u.")
            archive.writestr("v/data/0", b"good")
            archive.writestr("v/version", b"3\n")
        self.write("views.pt", self.read("views.pt").replace(b"good", b"evil"))
        line, last = self.berth("verify", "views.pt", code=1).out.splitlines()
        self.assertIn("; in it: a\\x1b[2J, b, " + "c" * 400 + "... and 2 more", line)
        report = json.loads(self.berth("verify", "views.pt", "--json", code=1).out)
        self.assertEqual([(len(bad["tensors"]), bad["n_tensors"]) for bad in report["bad"]], [(3, 5)])

    def test_old_files_are_verified_too(self):
        for name in ("many-1.13-zip.pth", "many-1.13-stream.pth", "addresses-1.6-zip.pth"):
            self.assertIn("ok: ", self.berth("verify", old(name)).out)


class Diff(Case):
    def test_what_differs_is_named(self):
        self.assertEqual(self.berth("diff", self.demo, self.demo).out, "equal\n")
        rows = json.loads(self.berth("ls", self.demo, "--json").out)
        content = bytearray(self.read("demo.pt"))
        content[rows[2]["offset"] + 8] ^= 1
        self.write("other.pt", content)
        out = self.berth("diff", self.demo, "other.pt", code=1).out
        self.assertIn(rows[2]["name"].split("model.")[1], out)
        self.assertIn("element 2", out)
        report = json.loads(self.berth("diff", self.demo, "other.pt", "--json", code=1).out)
        self.assertFalse(report["equal"])

    def test_shapes_dtypes_and_absence(self):
        out = self.berth("diff", old("many-1.13-zip.pth"), old("views-1.13-zip.pth"), code=1).out
        self.assertIn("only in", out)


class BadInput(Case):
    def test_files_that_are_none(self):
        os.mkdir(self.path("folder"))
        for name, content, code, says in (
                ("missing.pt", None, 2, "No such file"), ("folder", None, 2, "folder"),
                ("empty.pt", b"", 1, "empty.pt"), ("text.pt", b"hello, world\n" * 9, 1, "text.pt"),
                ("half.pt", self.read("demo.pt")[:5000], 1, "half.pt")):
            if content is not None:
                self.write(name, content)
            for command in ("ls", "info"):
                self.refused(command, name, code=code, says=[name, says])

    def test_a_copy_keeps_no_order_that_would_be_read_wrongly(self):
        self.leave_debug_mode()
        with zipfile.ZipFile(self.demo) as archive:
            records = sorted((i.filename, archive.read(i)) for i in archive.infolist())
        with zipfile.ZipFile(self.path("sorted.pt"), "w") as archive:
            for record, content in records:
                archive.writestr(record, content)
        off = ("--set", "load.calculate_storage_offsets=off")
        for more in (off, ()):
            self.refused("copy", "sorted.pt", "copy.pt", *more, code=1, says=["sorted.pt", "`berth convert`"])
            self.assertNotIn("copy.pt", self.entries())
        self.berth("convert", "sorted.pt", "new.pt")
        self.assertTrue(self.berth("verify", "new.pt").out.startswith("ok: "))

    def test_bytes_that_broke_get_no_new_checksum(self):
        broken = bytearray(self.read("demo.pt"))
        with zipfile.ZipFile(self.demo) as archive:
            where = archive.getinfo("demo/data/0").header_offset
        name_nbytes, extra_nbytes = struct.unpack_from("<HH", broken, where + 26)
        broken[where + 30 + name_nbytes + extra_nbytes] ^= 1
        self.write("broken.pt", bytes(broken))
        other = "save.byteorder=" + ("big" if sys.byteorder == "little" else "little")
        for command in (("copy", "broken.pt", "new.pt"), ("copy", "broken.pt", "new.pt", "--set", other),
                        ("convert", "broken.pt", "new.pt"),
                        ("convert", "broken.pt", "new.safetensors", "--tensors-only")):
            self.refused(*command, code=1, says=["data/0", "CRC 0x"])
            self.assertFalse([name for name in self.entries() if name.startswith("new.")])
        self.berth("copy", "broken.pt", "new.pt", "--set", "save.compute_crc32=off")
        self.berth("convert", "broken.pt", "new.safetensors", "--tensors-only", "--set", "load.check=directory")

    def test_what_a_copy_through_the_values_leaves_out_is_told(self):
        with zipfile.ZipFile(self.demo, "a") as archive:
            archive.writestr("demo/extra.txt", b"more")
        other = "big" if sys.byteorder == "little" else "little"
        copy = ("copy", self.demo, "o.pt", "--set", "save.byteorder=" + other)
        self.assertIn("1 records", self.berth(*copy).err)
        self.assertEqual(self.berth(*copy, "--quiet").err, "")

    def test_a_rezipped_and_a_deflated_file(self):
        self.leave_debug_mode()
        with zipfile.ZipFile(self.demo) as archive:
            records = [(i.filename, archive.read(i)) for i in archive.infolist()]
        for method, name in ((zipfile.ZIP_STORED, "stored.pt"), (zipfile.ZIP_DEFLATED, "deflated.pt")):
            with zipfile.ZipFile(self.path(name), "w", method) as archive:
                for record, content in records:
                    archive.writestr(record, content)
        self.refused("ls", "stored.pt", "--set", "load.repacked=refuse", code=1,
                     says=["stored.pt", "load.calculate_storage_offsets=off"])
        self.refused("ls", "stored.pt", "--set", "debug=on", code=1, says=["stored.pt"])
        advice = "readers that calculate offsets misread this file; `berth convert` mends it"
        self.assertIn("repacked           " + advice, self.berth("info", "stored.pt").out)
        self.assertTrue(json.loads(self.berth("info", "stored.pt", "--json").out)["repacked"])
        verified = self.berth("verify", "stored.pt", "--stats")
        self.assertTrue(verified.out.startswith(f"repacked: {advice}\nok: "))
        self.assertIn("repacked: " + advice, verified.err)
        verdict = json.loads(self.berth("verify", "stored.pt", "--stats", "--json").out)
        self.assertTrue(verdict["repacked"] and verdict["stats"]["repacked"])
        self.berth("convert", "stored.pt", "mended.pt")
        self.assertTrue(self.berth("verify", "mended.pt", "--set", "debug=on").out.startswith("ok: "))
        self.assertNotIn("repacked", self.berth("info", "mended.pt").out)
        self.berth("ls", "stored.pt", "--set", "load.calculate_storage_offsets=off")
        self.assertEqual(self.berth("diff", self.demo, "stored.pt", "--set",
                                    "load.calculate_storage_offsets=off").out, "equal\n")

    def test_a_compressed_file(self):
        """Z12: opened, listed and verified; inflated when it is read; convert and copy mend it."""
        self.leave_debug_mode()
        with zipfile.ZipFile(self.demo) as old, zipfile.ZipFile(self.path("deflated.pt"), "w",
                                                                zipfile.ZIP_DEFLATED) as new:
            for info in old.infolist():
                new.writestr(info.filename, old.read(info))
        count = sum(info.filename.startswith("demo/data/") for info in old.infolist())
        told = f"compressed         {count} storages, inflated when they are asked for; `berth convert` mends it"
        self.assertIn(told, self.berth("info", "deflated.pt").out)
        self.assertEqual(json.loads(self.berth("info", "deflated.pt", "--json").out)["deflated_storages"], count)
        self.assertIn("deflated", self.berth("ls", "-r", "deflated.pt").out)
        self.assertIn("\nok: ", self.berth("verify", "deflated.pt").out)
        self.assertEqual(self.berth("diff", self.demo, "deflated.pt").out, "equal\n")
        for mends in ("convert", "copy"):
            out = self.path(f"{mends}/demo.pt")
            os.mkdir(self.path(mends))
            self.berth(mends, "deflated.pt", out)
            self.assertTrue(self.berth("verify", out, "--set", "debug=on").out.startswith("ok: "))
            self.assertNotIn("compressed", self.berth("info", out).out)
            self.assertTrue(filecmp.cmp(out, self.demo, shallow=False), mends)
        self.berth("ls", "deflated.pt", "--set", "load.inflate=off")
        self.refused("diff", self.demo, "deflated.pt", "--set", "load.inflate=off", code=1,
                     says="load.inflate=on inflates it")
        self.refused("ls", "deflated.pt", "--set", "debug=on", code=1, says="load.calculate_storage_offsets=off")

    def test_targets_that_cannot_be_written(self):
        os.mkdir(self.path("folder"))
        before = self.entries()
        for target, says in (("folder", "folder"), ("/nowhere/at/all.pt", "No such file"),
                             ("x" * 300 + ".pt", "too long"), ("/proc/x.pt", "/proc/x.pt")):
            self.refused("copy", self.demo, target, says=says)
        self.assertEqual(self.entries(), before)

    def test_a_size_limit_leaves_nothing_behind(self):
        import resource
        before = self.entries()
        done = subprocess.run([BERTH, "copy", self.demo, "big.pt"], cwd=self.folder,
                              stderr=subprocess.PIPE, preexec_fn=lambda: (
                                  signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
                                  resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))))
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr.count(b"\n"), 1)
        self.assertIn(b"File too large", done.stderr)
        self.assertEqual(self.entries(), before)

    def test_a_full_disk_keeps_the_old_file(self):
        disk = self.path("disk")
        os.mkdir(disk)
        if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1536k", "none", disk],
                                          stderr=subprocess.DEVNULL).returncode:
            self.skipTest("no right to mount a tmpfs")
        try:
            target = os.path.join(disk, "model.pt")
            self.berth("copy", self.demo, target)
            self.refused("copy", self.demo, target, says=["model.pt", "No space left"])
            self.assertEqual(os.listdir(disk), ["model.pt"])
            self.assertEqual(self.berth("diff", self.demo, target).out, "equal\n")
        finally:
            subprocess.run(["umount", "-l", disk], check=False)

    def test_links_and_modes_are_kept(self):
        target = self.write("real.pt", b"old")
        os.chmod(target, 0o640)
        os.symlink("real.pt", self.path("link.pt"))
        self.berth("copy", self.demo, "link.pt")
        self.assertTrue(os.path.islink(self.path("link.pt")))
        self.assertEqual(stat.S_IMODE(os.stat(target).st_mode), 0o640)
        self.assertEqual(self.read("real.pt"), self.read("demo.pt"))
