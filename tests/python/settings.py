# SPDX-License-Identifier: BSD-3-Clause
"""berth.config."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest

import berth
from berth import config


class Settings(unittest.TestCase):
    def setUp(self):
        self.addCleanup(config.reset)

    def test_values_have_their_types(self):
        self.assertIs(config.save.compute_crc32, True)
        self.assertEqual(config.save.storage_alignment, 64)
        self.assertEqual(config.load.check, "directory")
        self.assertIs(config.load.mmap, True)

    def test_set_and_reset(self):
        config.save.durability = "file"
        config.save.compute_crc32 = False
        config.io.chunk_nbytes = "4MiB"
        config.save.storage_alignment = 4096
        self.assertEqual((config.save.durability, config.save.compute_crc32, config.io.chunk_nbytes,
                          config.save.storage_alignment), ("file", False, 4 << 20, 4096))
        config.reset("save.durability")
        self.assertEqual(config.save.durability, "full")
        config.reset()
        self.assertIs(config.save.compute_crc32, True)

    def test_patches(self):
        with config.patch("save.durability=file load.check=data"):
            self.assertEqual((config.save.durability, config.load.check), ("file", "data"))
            with config.patch({"load.check": "none"}, save_compute_crc32=False):
                self.assertEqual((config.load.check, config.save.compute_crc32), ("none", False))
                elsewhere = []
                thread = threading.Thread(target=lambda: elsewhere.append(config.load.check))
                thread.start()
                thread.join()
                self.assertEqual(elsewhere, ["directory"])
            self.assertEqual(config.load.check, "data")

        @config.patch(save_durability="none")
        def decorated():
            return config.save.durability

        self.assertEqual([decorated(), decorated(), config.save.durability], ["none", "none", "full"])

    def test_a_trace_has_a_name(self):
        self.assertEqual(config.trace, "")
        with tempfile.TemporaryDirectory() as folder:
            name, model = os.path.join(folder, "it's \u20ac.json"), os.path.join(folder, "model.pt")
            config.trace = name
            self.assertEqual((config.trace, config.describe("trace")["type"]), (name, "text"))
            berth.save({"a": 1}, model)
            with config.patch(trace=os.path.join(folder, "patch.json")):
                berth.load(model)
            config.reset("trace")
            berth.save({"a": 1}, model)
            for path, words in ((name, "save"), (os.path.join(folder, "patch.json"), "open")):
                with open(path, encoding="utf-8") as file:
                    events = json.load(file)["traceEvents"]
                self.assertEqual([event["name"] for event in events if event["ph"] == "B"][:1], [words])

    def test_what_is_wrong(self):
        for code in (lambda: setattr(config.save, "durability", "maybe"),
                     lambda: config.patch("load.check=data save.nothing=1").__enter__(),
                     lambda: config.patch({"load.check": "data", "save.durability": "a b"}).__enter__(),
                     lambda: config.describe("save.nothing"), lambda: config.reset("x.y"), lambda: config.patch("load.check")):
            with self.assertRaises(berth.ArgumentError):
                code()
        self.assertEqual(config.load.check, "directory")
        with self.assertRaisesRegex(TypeError, "an option's name is a str, not int"):
            config.patch({3: 4}).__enter__()
        with self.assertRaises(AttributeError):
            config.save.nothing = 1
        with self.assertRaises(AttributeError):
            config.nothing
        with self.assertRaises(TypeError):
            config.save.durability = 1.5

    def test_what_is_known_of_an_option(self):
        option = config.describe("save.durability")
        self.assertEqual((option["default"], option["value"], option["source"], option["type"]),
                         ("full", "full", "default", "enum"))
        self.assertIn("save.durability", config.names())
        self.assertIn("durability", dir(config.save))
        self.assertIn("save.durability = 'full'", repr(config))

    def test_the_environment(self):
        code = "from berth import config; print(config.save.durability)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                              env={**os.environ, "BERTH_SAVE_DURABILITY": "none"})
        self.assertEqual(done.stdout, "none\n")
