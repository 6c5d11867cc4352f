# SPDX-License-Identifier: BSD-3-Clause
"""What the command does with standard output that nobody reads, and with files that are there."""

import os
import signal
import subprocess
import sys

from case import BERTH, Case, old


class Pipes(Case):
    def test_a_reader_that_leaves_ends_it_without_a_word(self):
        bad = bytearray(self.read("demo.pt"))
        bad[100000] ^= 1
        self.write("bad.pt", bad)
        commands = [["ls", self.demo], ["ls", "--json", self.demo], ["ls", "--records", self.demo],
                    ["info", self.demo], ["info", "--json", self.demo], ["verify", self.demo],
                    ["verify", "bad.pt"], ["verify", "--json", "bad.pt"],
                    ["cat", self.demo, "model.layers.0.bias"], ["cat", self.demo, "model.head.weight"],
                    ["diff", self.demo, self.demo], ["diff", self.demo, old("many-1.13-zip.pth")],
                    ["diff", "--json", self.demo, self.demo], ["config"], ["config", "--json"],
                    ["config", "io.threads"], ["--help"], ["--version"],
                    ["show", self.demo], ["show", "--json", self.demo], ["ls", "-h"], ["bench", "-h"],
                    ["verify", self.demo, "bad.pt"], ["info", self.demo, self.demo]]
        for words in commands:
            for was in (signal.SIG_DFL, signal.SIG_IGN):
                ours, theirs = os.pipe()
                os.close(ours)
                done = subprocess.run([BERTH, *words], stdout=theirs, stderr=subprocess.PIPE,
                                      cwd=self.folder, restore_signals=False,
                                      preexec_fn=lambda was=was: signal.signal(signal.SIGPIPE, was))
                os.close(theirs)
                self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, b""), (words, was))

    def test_an_option_that_would_do_nothing_is_refused(self):
        self.refused("cat", "--json", self.demo, "model.layers.0.bias",
                     says=["--json", "raw bytes", "`berth ls --json`"])
        self.refused("clean", "--stats", ".", says=["--stats", "nothing is saved or loaded"])
        self.refused("config", "--stats", says=["--stats", "nothing is saved or loaded"])


class Demo(Case):
    def test_it_replaces_what_it_made(self):
        for words in ([], ["--set", "save.storage_alignment=4096"],
                      ["--set", "save.compute_crc32=off"],
                      ["--set", "save.byteorder=" + ("big" if sys.byteorder == "little" else "little")]):
            self.berth("demo", self.demo, *words)
            self.assertEqual(self.berth("diff", self.demo, "demo.pt").out, "equal\n")
        self.berth("demo")
        self.berth("demo")
        self.assertIn("berth-demo.pt", self.entries())

    def test_it_replaces_nothing_else(self):
        def edited(at, byte):
            content = bytearray(self.read("demo.pt"))
            content[at] ^= byte
            return bytes(content)

        def renamed():
            return self.read("demo.pt").replace(b"learning_rate", b"yearning_rate")

        others = {"text.pt": b"my thesis", "empty.pt": b"", "one element.pt": edited(100000, 1),
                  "key.pt": renamed(), "cut.pt": self.read("demo.pt")[:-1]}
        with open(old("many-1.13-zip.pth"), "rb") as file:
            others["real.pt"] = file.read()
        for name, content in others.items():
            self.write(name, content)
            self.refused("demo", name, says=[f"{name} exists, and `berth demo` did not make it",
                                             "name another file"])
            self.assertEqual(self.read(name), content)
        os.symlink("text.pt", self.path("link.pt"))
        self.refused("demo", "link.pt", says="link.pt exists")
        os.mkdir(self.path("folder"))
        self.refused("demo", "folder", says="folder exists")
        self.assertEqual(self.read("text.pt"), b"my thesis")
