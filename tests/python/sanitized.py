# SPDX-License-Identifier: BSD-3-Clause
"""All tests of this folder once more, under the address and undefined behaviour sanitizers. BERTH_LONG=1."""

import os
import sys
import unittest

import suite
from wheels import HERE, run

LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")
BUILD = os.path.dirname(os.environ["BERTH_BUILD"])  # of all variants


@unittest.skipUnless(LONG, "builds the package and runs all tests once more: BERTH_LONG=1")
@unittest.skipIf("libasan" in os.environ.get("LD_PRELOAD", ""), "this is the run under the sanitizers")
class Sanitized(unittest.TestCase):
    def test_everything(self):
        """`run` fails if one test does, or if there is one report."""
        suite.build("asan", BUILD, "python")
        said = run("env", f"BERTH_BUILD={BUILD}/asan", f"BERTH_PYTHON={sys.executable}", "BERTH_LONG=0",
                   f"{HERE}/run")
        print(f"under the sanitizers: {said.splitlines()[-1]}")
        self.assertRegex(said, r"\n[1-9]\d* passed, 0 failed\n$")
