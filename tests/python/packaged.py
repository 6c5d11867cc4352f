# SPDX-License-Identifier: BSD-3-Clause
"""The package as it was installed: each part of it once, and nothing else of this repository's.

usage: PYTHON packaged.py      with a PYTHON in whose own folder berth is installed; see wheel
"""

import io
import json
import os
import shlex
import struct
import subprocess
import sys
import tempfile
import unittest
import warnings

import berth
import torch

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import suite


class Packaged(unittest.TestCase):
    VALUE = {"weight": torch.arange(60.).reshape(20, 3), "epoch": 7, "names": ["a", ("b", 2.5)]}

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="berth-packaged-")
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "model.pt")

    def check(self, loaded):
        self.assertTrue(torch.equal(loaded.pop("weight"), self.VALUE["weight"]))
        self.assertEqual(loaded, {"epoch": 7, "names": ["a", ("b", 2.5)]})

    def test_it_is_the_installed_one(self):
        self.assertEqual(os.path.commonpath([sys.prefix, berth.__file__]), sys.prefix)
        self.assertTrue(berth._native.__file__.endswith("/berth/_native.abi3.so"))
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(berth.__file__), "py.typed")))

    def test_what_it_says_of_itself(self):
        from importlib.metadata import metadata

        said = metadata("berth-checkpoint")
        self.assertEqual(said["Version"], berth.__version__)
        self.assertIn("# Berth from Python", said.get_payload())
        self.assertIn("LICENSE", said.get_all("License-File"))

    def test_save_and_load(self):
        berth.save(self.VALUE, self.path)
        for mmap in (False, True):
            self.check(berth.load(self.path, mmap=mmap))
        self.check(torch.load(self.path, weights_only=True))
        torch.save(self.VALUE, self.path)
        self.check(berth.load(self.path))

    def test_objects(self):
        buffer = io.BytesIO()
        berth.save(self.VALUE, buffer)
        buffer.seek(0)
        self.check(berth.load(buffer))

    def test_open(self):
        berth.save(self.VALUE, self.path)
        with berth.open(self.path) as file:
            self.assertEqual(list(file.keys()), ["weight"])
            self.assertEqual(file["epoch"], 7)
            self.assertTrue(torch.equal(file["weight"], self.VALUE["weight"]))
            self.assertTrue(torch.equal(file.slice("weight")[5:7], self.VALUE["weight"][5:7]))
            self.assertEqual(file.numpy("weight").tolist(), self.VALUE["weight"].tolist())

    def test_verify(self):
        berth.save(self.VALUE, self.path)
        self.assertTrue(berth.verify(self.path))
        with open(self.path, "rb+") as file:
            data = file.read()
            file.seek(data.index(self.VALUE["weight"].numpy().tobytes()))
            file.write(b"\xff")
        self.assertFalse(berth.verify(self.path))

    def test_safetensors(self):
        header = json.dumps({"__metadata__": {"made": "here"},
                             "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
        with open(self.path, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1.5, -2))
        self.assertEqual(berth.load(self.path)["w"].tolist(), [1.5, -2])
        with berth.open(self.path) as file:
            self.assertEqual(file.metadata, {"made": "here"})

    def test_the_command(self):
        berth.save(self.VALUE, self.path)
        command = [sys.executable, "-m", "berth"]
        if emulator := os.environ.get("BERTH_EMULATOR"):  # it cannot start another program of its machine
            command = [*shlex.split(emulator), os.path.join(os.path.dirname(berth.__file__), "_command")]
        done = subprocess.run([*command, "ls", "--json", self.path],
                              capture_output=True, text=True, check=True)
        self.assertIn('"weight"', done.stdout)

    def test_config_counters_and_errors(self):
        before = berth.counters()["load"]["values"]
        with berth.config.patch("save.durability=none"):
            berth.save(self.VALUE, self.path)
        berth.load(self.path)
        self.assertEqual(berth.counters()["load"]["values"], before + 1)
        torch.save(torch.nn.Linear(1, 1), self.path)
        self.assertRaises(berth.UnsafeFileError, berth.load, self.path)
        self.assertRaises(FileNotFoundError, berth.load, self.path + "x")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    suite.run(suite.load([sys.modules["__main__"]]))
