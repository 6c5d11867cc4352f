# SPDX-License-Identifier: BSD-3-Clause
"""W12, J1, J6: berth.dcp.save with a base, by several ranks, on file systems that share blocks: dcp_base_cases.py."""

import json
import os
import shutil
import unittest

import blocks_shared
import starter

# It prints how many cases ranks run.
PROGRAM = """
import os, sys
import dcp_base_cases, dcp_ranks
folder = sys.argv[1]
report = os.open(folder + "/report", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for n in 2, 4:
    dcp_ranks.start(n, dcp_ranks.run_rank, n, folder, list(dcp_base_cases.CASES.items()), report)
dcp_ranks.start(2, dcp_ranks.run_rank, 2, folder, [("killed", dcp_base_cases.killed)], report)
print((2 + 4) * len(dcp_base_cases.CASES) + 1)
"""


class JointBases:
    """On one kind of file system."""

    KIND = ""

    def test_ranks(self):
        volume = blocks_shared.Volume.of_class(self.KIND, type(self))
        folder = volume.path("ranks")
        os.mkdir(folder)
        self.addCleanup(shutil.rmtree, folder)
        code, n_expected, said = starter.run(PROGRAM, folder, seconds=600)
        with open(os.path.join(folder, "report"), encoding="utf-8") as file:
            reports = [json.loads(line) for line in file]
        self.assertEqual([(n, case, rank, why) for n, case, rank, _, why in reports if why], [], said)
        self.assertEqual((code, len(reports)), (0, int(n_expected)), said)


class Xfs(JointBases, unittest.TestCase):
    KIND = "xfs"


class Btrfs(JointBases, unittest.TestCase):
    KIND = "btrfs"
