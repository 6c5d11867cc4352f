# SPDX-License-Identifier: BSD-3-Clause
"""What pip makes of the repository: an sdist, a wheel of it, and the package that is installed by it.

BERTH_LONG=1: also the wheel for other machines (tools/wheel), and an editable installation.
"""

import glob
import os
import shutil
import subprocess
import sys
import unittest
from importlib import metadata

from folder import Folder

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", ".."))
# What a checkout has beside the sources.
IGNORED = shutil.ignore_patterns(".git", "build", "*.egg-info", "*.so", "__pycache__", ".sconsign.dblite")


def run(*command, **how):
    """The output of a command that must succeed."""
    environment = {name: text for name, text in os.environ.items()
                   if name not in ("PYTHONPATH", "LD_PRELOAD")}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          env=environment, **how)
    if done.returncode != 0:
        raise AssertionError(f"{command} ends with {done.returncode}:\n{done.stdout}")
    return done.stdout


def has_setuptools():
    try:
        return int(metadata.version("setuptools").partition(".")[0]) >= 77
    except metadata.PackageNotFoundError:
        return False


class Wheels(Folder):
    def setUp(self):
        super().setUp()
        self.source = self.path("source")
        shutil.copytree(ROOT, self.source, ignore=IGNORED)

    def pip(self, *arguments):
        return run(sys.executable, "-m", "pip", *arguments, cwd=self.source)

    def unpacked_sdist(self):
        """Its folder; the sdist is made by the hook that a build calls."""
        run(sys.executable, "-c", "import sys; sys.path.insert(0, 'adapters/python'); import backend; "
            "backend.build_sdist(sys.argv[1])", self.folder, cwd=self.source)
        found, = glob.glob(f"{self.folder}/*.tar.gz")
        run("tar", "-xzf", found, cwd=self.folder)
        return found.removesuffix(".tar.gz")

    @unittest.skipUnless(has_setuptools(), "needs setuptools 77 or later, as newer PyTorches do")
    def test_a_wheel_of_the_sdist(self):
        """Quickly: without optimization."""
        self.pip("wheel", "-q", "--no-deps", "-w", self.folder, self.unpacked_sdist(),
                 "--config-settings", "scons=VARIANT=debug CUDA_HOME=none")
        wheel, = glob.glob(f"{self.folder}/berth_checkpoint-*-cp311-abi3-linux_*.whl")
        run(f"{HERE}/wheel", wheel, sys.executable)

    @unittest.skipUnless(has_setuptools(), "needs setuptools 77 or later, as newer PyTorches do")
    def test_without_jansson_there_is_no_package(self):
        """It always reads safetensors."""
        self.write("include/jansson.h", b"#error")
        for arguments, words in ((f"CPPFLAGS=-I{self.folder}/include", "apt-get install libjansson-dev\n"),
                                 ("JANSSON=none", "the package for Python are left out")):
            with self.assertRaises(AssertionError) as failed:
                self.pip("wheel", "--no-deps", "-w", self.folder, ".", "--config-settings", f"scons={arguments}")
            self.assertIn(words, str(failed.exception))
            self.assertIn("The package was not built", str(failed.exception))

    @unittest.skipUnless(os.environ.get("BERTH_LONG") == "1", "BERTH_LONG=1")
    def test_the_wheel_for_other_machines(self):
        wheel = run("tools/wheel", self.folder, cwd=ROOT).splitlines()[-1]
        run(f"{HERE}/wheel", wheel, sys.executable)

    @unittest.skipUnless(os.environ.get("BERTH_LONG") == "1", "BERTH_LONG=1")
    def test_an_editable_installation(self):
        run(sys.executable, "-m", "venv", self.path("venv"))
        python = self.path("venv/bin/python")
        run(python, "-m", "pip", "install", "-q", "-e", ".", cwd=self.source)
        said = run(python, "-c", "import berth; print(berth.__file__, berth.__version__)", cwd=self.folder)
        self.assertTrue(said.startswith(self.source), said)


if __name__ == "__main__":
    unittest.main()
