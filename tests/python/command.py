# SPDX-License-Identifier: BSD-3-Clause
"""python -m berth: the command, the same to every eye."""

import os
import shutil
import signal
import subprocess
import sys

import berth
import torch

from folder import Folder

COMMAND = os.path.join(os.path.abspath(os.environ["BERTH_BUILD"]), "berth")
MODULE = [sys.executable, "-m", "berth"]


def result(*command, **options):
    done = subprocess.run(command, capture_output=True, check=False, **options)
    return done.returncode, done.stdout, done.stderr


class Command(Folder):
    def setUp(self):
        super().setUp()
        self.file = self.path("v.pt")
        torch.save({"a": torch.ones(3), "epoch": 7}, self.file)

    def test_the_same_as_the_binary(self):
        bad = self.write("bad.pt", self.read(self.file)[:-30])
        for arguments in (["ls", self.file], ["verify", bad], ["diff", self.file, bad],
                          ["cat", self.file, "a"],
                          ["ls", "--help"], ["--version"], [], ["ls", "--no-such"], ["cat", self.file, "ü"],
                          ["config", "--set", "save.durability=file"], [b"ls", b"\xff\xfe"]):
            with self.subTest(arguments):
                self.assertEqual(result(*MODULE, *arguments), result(COMMAND, *arguments))

    def ended_by(self, program, end):
        """How `ls` ends that waits for its reader."""
        with subprocess.Popen([*program, "ls", self.file], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            process.stdout.readline()
            end(process)
            process.stdout.close()
            return process.wait(), process.stderr.read()

    def test_pipes_and_signals(self):
        torch.save({f"t{i}": torch.ones(1) for i in range(5000)}, self.file)
        for end, code in ((lambda _: None, -signal.SIGPIPE),
                          (lambda process: process.send_signal(signal.SIGTERM), None),
                          (lambda process: process.send_signal(signal.SIGINT), None)):
            mine = self.ended_by(MODULE, end)
            self.assertEqual(mine, self.ended_by([COMMAND], end))
            self.assertEqual(mine[1], b"")
            self.assertIn(mine[0], (code, -signal.SIGTERM, -signal.SIGINT, 143, 130))

    def test_a_package_without_the_command(self):
        package = os.path.dirname(berth.__file__)
        shutil.copytree(package, self.path("berth"), ignore=shutil.ignore_patterns("_command"))
        environment = {**os.environ, "PYTHONPATH": self.folder}
        code, output, errors = result(*MODULE, "ls", self.file, env=environment)
        self.assertEqual((code, output, errors.count(b"\n")), (2, b"", 1))
        self.assertIn(b"install the package anew", errors)
        self.write("berth/_command", b"")
        self.assertIn(b"Permission denied", result(*MODULE, "ls", self.file, env=environment)[2])
