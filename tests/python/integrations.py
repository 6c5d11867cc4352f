# SPDX-License-Identifier: BSD-3-Clause
"""Lightning, transformers and accelerate with Berth, in a venv of their own: BERTH_LONG=1.

Each file of integrations/ is one test here; its own tests are printed if one of them fails. The venv
is made once, beside the build; the versions are in integrations/requirements.txt.
"""

import abc
import os
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import berth
import torch
from berth.lightning import BerthCheckpointIO

LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")
HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "integrations")
VENV = os.path.join(os.path.dirname(os.path.abspath(os.environ["BERTH_BUILD"])), "integrations")
PYTHON = os.path.join(VENV, "bin/python")


def make_venv():
    """With this Python's own packages in sight; no other PyTorch is installed."""
    requirements, made = os.path.join(FOLDER, "requirements.txt"), os.path.join(VENV, "made-of")
    wanted = f"torch=={torch.__version__.partition('+')[0]}\n"
    with open(requirements, encoding="utf-8") as file:
        key = sys.executable + "\n" + wanted + file.read()
    if os.path.exists(made):
        with open(made, encoding="utf-8") as file:
            if file.read() == key:
                return
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
    packages = subprocess.run([PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                              check=True, capture_output=True, text=True).stdout.strip()
    with open(os.path.join(packages, "pytorch.pth"), "w", encoding="utf-8") as file:
        file.write(os.path.dirname(os.path.dirname(torch.__file__)) + "\n")
    constraint = os.path.join(VENV, "constraint.txt")
    with open(constraint, "w", encoding="utf-8") as file:
        file.write(wanted)
    subprocess.run([PYTHON, "-m", "pip", "install", "-q", *os.environ.get("BERTH_PIP_ARGS", "").split(),
                    "-r", requirements, "-c", constraint], check=True, stdin=subprocess.DEVNULL)
    with open(made, "w", encoding="utf-8") as file:
        file.write(key)


class Without(unittest.TestCase):
    def test_lightning(self):
        """The module is imported without Lightning and PyTorch; a plugin says what is missing."""
        code = ("from berth.lightning import BerthCheckpointIO\n"
                "try:\n    BerthCheckpointIO()\nexcept ImportError as error:\n    print(error)")
        package = os.path.dirname(os.path.dirname(berth.__file__))
        done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True,
                              env={**os.environ, "PYTHONPATH": package})
        self.assertEqual(done.stdout, "berth.lightning needs Lightning, which is not installed: "
                         "pip install lightning\n")

    def test_torch_checkpointing(self):
        """With a stand-in for the package: a file that is gone leaves torch.load PyTorch's."""
        made = {name: types.ModuleType(name) for name in (
            "torch_checkpointing", "torch_checkpointing.storage", "torch_checkpointing.storage.base_storage",
            "torch_checkpointing.storage.filesystem")}
        base, files = list(made.values())[2:]
        base.StorageConfig = type("StorageConfig", (), {})
        files.LocalFileSystemStorage = type("LocalFileSystemStorage", (), {"__init__": lambda *_: None})
        files.LocalFileSystemStorageConfig = dict
        with mock.patch.dict(sys.modules, made), tempfile.TemporaryDirectory() as folder:
            sys.modules.pop("berth.torch_checkpointing", None)
            from berth.torch_checkpointing import BerthStorageConfig
            theirs, path = torch.load, os.path.join(folder, "v.pt")
            storage = BerthStorageConfig().create_storage()
            with storage.stream_write(path) as file:
                torch.save([1], file)
            with storage.stream_read(path) as file:
                self.assertEqual((torch.load(file), torch.load is theirs), ([1], False))
            stream = storage.stream_read(path)
            self.addCleanup(stream.close)
            os.unlink(path)
            self.assertRaises(FileNotFoundError, stream.__enter__)
            self.assertIs(torch.load, theirs)

    def test_paths_of_lightning(self):
        """By a stand-in for its package."""
        plugins = types.ModuleType("lightning_fabric.plugins")
        plugins.CheckpointIO = abc.ABCMeta("CheckpointIO", (), {})
        with mock.patch.dict(sys.modules, {"lightning_fabric": types.ModuleType("lightning_fabric"), plugins.__name__: plugins}), \
                tempfile.TemporaryDirectory() as folder:
            plugin, path = BerthCheckpointIO(), os.path.join(folder, "a/v.ckpt")
            self.assertIsInstance(plugin, plugins.CheckpointIO)
            plugin.save_checkpoint({"w": 1}, f"file://{path}")
            self.assertEqual(plugin.load_checkpoint(path), {"w": 1})
            plugin.remove_checkpoint(f"file://{path}")
            self.assertFalse(os.path.exists(path))
            self.assertRaisesRegex(ValueError, r"^s3://\.\.\.: ", plugin.save_checkpoint, {}, "s3://key:secret@bucket/v.ckpt")


@unittest.skipUnless(LONG, "installs packages: BERTH_LONG=1")
class Integrations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        make_venv()

    def run_tests(self, *words):
        path = os.pathsep.join([FOLDER, HERE, os.environ["PYTHONPATH"]])
        done = subprocess.run([PYTHON, "-m", "unittest", *words], capture_output=True, text=True, check=False,
                              cwd=FOLDER, env={**os.environ, "PYTHONPATH": path})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("skipped", done.stderr)

    def test_lightning(self):
        self.run_tests("trainer")

    def test_transformers_and_accelerate(self):
        self.run_tests("models")

    def test_the_program_on_the_page(self):
        """docs/python.md: pages.py skips it where there is no Lightning."""
        self.run_tests("pages", "-k", "with_lightning")
