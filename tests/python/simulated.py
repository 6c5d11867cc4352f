# SPDX-License-Identifier: BSD-3-Clause
"""Tensors on a device that stands for CUDA's: stand_in/checks.py, memory.py. BERTH_LONG=1."""

import os
import subprocess
import sys
import unittest

import torch

from folder import Folder

LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")
HERE = os.path.dirname(os.path.abspath(__file__))
NATIVE = os.path.join(os.environ["BERTH_BUILD"], "tests/python/_native.abi3.so")


@unittest.skipUnless(LONG, "compiles against PyTorch's headers: BERTH_LONG=1")
class Simulated(Folder):
    @unittest.skipUnless(hasattr(torch._C, "_acc"), "this PyTorch takes no device from Python")
    @unittest.skipUnless(os.path.exists(NATIVE), f"{NATIVE} is part of the debug variant")
    def test_saves_and_loads(self):
        self.assertNotIn("Ran 0 tests", self.run_script("checks.py").stderr)

    @unittest.skipUnless(hasattr(torch._C, "_acc"), "this PyTorch takes no device from Python")
    @unittest.skipUnless(os.path.exists(NATIVE), f"{NATIVE} is part of the debug variant")
    def test_references_and_failing_allocations(self):
        self.assertTrue(self.run_script("memory.py").stdout.endswith("ok\n"))

    def run_script(self, name):
        found = subprocess.run([sys.executable, f"{HERE}/stand_in/{name}"], capture_output=True, text=True,
                               env={**os.environ, "STAND_IN_FOLDER": self.folder}, timeout=600)
        self.assertEqual(found.returncode, 0, found.stdout + found.stderr)
        return found
