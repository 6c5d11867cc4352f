# SPDX-License-Identifier: BSD-3-Clause
"""--stats of every command."""

import json
import os
import re
import shutil
import struct
import subprocess

from case import BERTH, Case


class Stats(Case):
    def test_on_standard_error_or_as_json(self):
        self.berth("convert", self.demo, "m.safetensors", "--tensors-only", "-q")
        size = os.path.getsize(self.demo)
        for words, moved in ((["copy", self.demo, "a.pt"], size),
                             (["convert", self.demo, "demo2.pt"], None),
                             (["convert", "m.safetensors", "b.pt"], None),
                             (["convert", self.demo, "c.safetensors", "--tensors-only", "-q"],
                              os.path.getsize(self.path("m.safetensors")))):
            done = self.berth(*words, "--stats")
            self.assertEqual(done.out, "")
            self.assertIn("seconds: ", done.err)
            done = self.berth(*words, "--stats", "--json")
            self.assertEqual(done.err, "")
            stats = json.loads(done.out)
            self.assertEqual(list(stats), ["stats"])
            stats = stats["stats"]
            target = os.path.getsize(self.path(words[2]))
            self.assertEqual(stats["moved_nbytes"], target if moved is None else moved)
            self.assertGreater(stats["total_seconds"], 0)
            self.assertLess(stats["requested_nbytes"], stats["moved_nbytes"])
            self.assertGreater(stats["n_requests"], 0)
            self.assertEqual(self.berth(*words, "--json").out, "")
        report = json.loads(self.berth("verify", self.demo, "--json", "--stats").out)
        self.assertTrue(report["ok"] and report["stats"]["n_records"] == report["records"])

    def test_of_commands_that_only_read(self):
        storages = 4 * (256 * 256 + 256) * 4
        report = json.loads(self.berth("diff", self.demo, self.demo, "--json", "--stats").out)
        self.assertTrue(report["equal"])
        # A storage of two names is compared once.
        self.assertEqual((report["stats"]["requested_nbytes"], report["stats"]["n_storages"]),
                         (2 * storages, 16))
        done = self.berth("diff", self.demo, self.demo, "--stats")
        self.assertEqual(done.out, "equal\n")
        self.assertRegex(done.err, r"^seconds: .*\nbytes: 2.0 MiB requested, [0-9.]+ GiB/s\n"
                                   r"records: 28, storages: 16\n$")
        for words in (["diff", self.demo, self.demo], ["verify", self.demo]):
            stats = json.loads(self.berth(*words, "--json", "--stats").out)["stats"]
            self.assertNotIn("limited_by", stats)
            self.assertAlmostEqual(stats["total_seconds"],
                                   stats["plan_seconds"] + stats["transfer_seconds"], 6)
            self.assertEqual("moved_nbytes" in stats, words[0] == "verify")
        done = self.berth("cat", self.demo, "model.layers.0.bias", "--stats")
        self.assertEqual(len(done.stdout), 1024)
        self.assertRegex(done.err, r"\nbytes: 1.0 KiB requested, [0-9.]+ GiB/s\nrecords: 14, ")
        for words in (["info"], ["ls"], ["ls", "--records"]):
            done = self.berth(*words, self.demo, "--stats", "--set", "debug=off")
            self.assertRegex(done.err, r"(?s)^seconds: .* moved in [12] requests, .*records: 14, ")
        report = json.loads(self.berth("info", self.demo, "--stats", "--json").out)
        self.assertEqual((report["stats"]["n_records"], report["stats"]["n_storages"]), (14, 8))

    def test_of_verify_are_those_of_its_system_calls(self):
        """Opening reads the head and the directory, and then every record's bytes are read once."""
        size = 40 << 20
        header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with open(self.path("big.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + size)
        self.berth("convert", "big.safetensors", "big.pt")
        for options in (["load.method=read"], ["load.method=read", "load.head_nbytes=4096"],
                        ["load.method=direct"], ["load.method=map"]):
            words = ["verify", "big.pt", "--json", "--stats", *(w for o in options for w in ("--set", o))]
            stats = json.loads(self.berth(*words).out)["stats"]
            self.assertEqual(stats["requested_nbytes"], os.path.getsize(self.path("big.pt")))
            self.assertGreater(stats["moved_nbytes"], size)
            self.assertLess(stats["moved_nbytes"], size + (2 << 20))
            if shutil.which("strace") is None or options == ["load.method=map"]:
                continue
            log = self.path("log")
            done = subprocess.run(["strace", "-f", "-P", "big.pt", "-P", self.path("big.pt"), "-e",
                                   "trace=pread64,preadv", "-o", log, BERTH, *words], cwd=self.folder,
                                  stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, check=True)
            stats = json.loads(done.stdout)["stats"]
            with open(log, encoding="latin-1") as file:
                reads = [int(n) for n in re.findall(r"(?:pread64|preadv)\b.* = (\d+)$", file.read(), re.MULTILINE)]
            n = stats["n_requests"]
            self.assertEqual(stats["moved_nbytes"], sum(reads[:n]))
            # Then what its pickle names is listed: the head, the directory.
            self.assertEqual((len(reads[n:]), sum(reads[n:]) < 256 << 10), (2, True))

    def test_of_storages_by_how_they_got_to_the_file(self):
        words = ["bench", "save", "--size", "256KiB", "--tensors", "100", "--stats", "--set",
                 "save.method=buffered"]
        report = json.loads(self.berth(*words, "--json").out)
        why = "small: copied to a buffer with its neighbours"
        self.assertEqual([(way["method"], way["reason"], way["n_storages"], way["nbytes"])
                          for way in report["storages"]],
                         [("buffered, copied", why, 100, report["nbytes"])])
        self.assertIn(f"KiB, buffered, copied ({why})", self.berth(*words).err)

    def test_on_failure_too(self):
        done = self.berth("copy", self.demo, "/nowhere/a.pt", "--stats", "--json", code=2)
        self.assertEqual(json.loads(done.out)["stats"]["moved_nbytes"], 0)
        self.assertEqual(done.err.count("\n"), 1)
