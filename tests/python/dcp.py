# SPDX-License-Identifier: BSD-3-Clause
"""berth.dcp: many processes save one file, and load it into other meshes: dcp_cases.py, dcp_columns.py."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")
WORLDS = (4, 3, 2, 1) if LONG else (4, 3, 1)  # the others read what 4 have written
SECONDS = 600 if LONG or "libasan" in os.environ.get("LD_PRELOAD", "") else 120
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "dcp_ranks.py")


def names(source, pattern):
    """Names in a source, which is not imported: it needs torch.distributed."""
    with open(os.path.join(HERE, source), encoding="utf-8") as file:
        return re.findall(pattern, file.read(), re.MULTILINE)


class Ranks(unittest.TestCase):
    """One start of the program for all tests."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="berth-python-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        worlds = ",".join(map(str, WORLDS))
        done = subprocess.run([sys.executable, PROGRAM, cls.folder, worlds], capture_output=True, text=True,
                              timeout=SECONDS)
        cls.output = done.stdout + done.stderr
        with open(os.path.join(cls.folder, "report"), encoding="utf-8") as file:
            cls.report = [json.loads(line) for line in file]

    def check(self, name, reports):
        """That many processes have run the case to its end."""
        found = [(n, rank, why) for n, case, rank, _, why in self.report if case == name]
        for n, rank, why in found:
            self.assertEqual(why, "", f"rank {rank} of {n}")
        self.assertEqual(len(found), reports, self.output)


def add(name, case, reports):
    setattr(Ranks, name, lambda self: self.check(case, reports))


CASE = r"^def (test_\w+)\(rank\)"
for each in names("dcp_cases.py", CASE) + names("dcp_columns.py", CASE):
    add(each, each, sum(WORLDS))
add("test_alone", "alone", 1)
for each in names("dcp_ranks.py", r'^    "([\w-]+)": \([01], lambda') + ["writer-stops"] * LONG:
    add("test_death_" + each.replace("-", "_"), each, 1)


class Lazily(unittest.TestCase):
    def test_berth_does_not_import_it(self):
        code = ("import sys, berth\n"
                "print('torch' in sys.modules, 'berth.dcp' in sys.modules)\n"
                "print(berth.dcp.save.__module__, hasattr(berth, 'dpc'))\n"
                "print('torch.distributed' in sys.modules)")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "False False\nberth._dcp_save False\nTrue\n")
