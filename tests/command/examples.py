# SPDX-License-Identifier: BSD-3-Clause
"""examples/ beside PyTorch; that they compile and run alone is a check of tests/support/house.sh."""

import os
import subprocess
import unittest

from case import BERTH, HERE, Case

EXAMPLES = os.path.join(HERE, "..", "..", "examples")


@unittest.skipUnless("BERTH_PYTHON" in os.environ, "BERTH_PYTHON names no Python with PyTorch")
class Examples(Case):
    def program(self, name):
        build = os.path.dirname(BERTH)
        subprocess.run(["gcc", "-std=c11", f"-I{build}/staged", f"{EXAMPLES}/{name}.c", f"{build}/libberth.a",
                        "-ldeflate", "-lz", "-ljansson", "-ldl", "-pthread", "-o", self.path(name)], check=True)
        return self.path(name)

    def test_pytorch_resumes_what_train_saved(self):
        for steps in ("200", "100"):
            subprocess.run([self.program("train"), self.path("t.pt"), steps], check=True,
                           stdout=subprocess.DEVNULL)
        said = subprocess.run([os.environ["BERTH_PYTHON"], f"{EXAMPLES}/check_train.py", self.path("t.pt")],
                              check=True, stdout=subprocess.PIPE).stdout
        self.assertEqual(said, b"step 300\n")

    def test_pytorch_opens_what_was_edited(self):
        code = "import sys, torch; print(sorted(torch.load(sys.argv[1], weights_only=True).items())[1:])"
        subprocess.run([self.program("train"), self.path("t.pt"), "10"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([self.program("edit"), self.path("t.pt"), self.path("e.pt")], check=True)
        said = subprocess.run([os.environ["BERTH_PYTHON"], "-c", code, self.path("e.pt")], check=True,
                              stdout=subprocess.PIPE, text=True).stdout
        self.assertRegex(said, r"\A\[\('model', OrderedDict.*\('step', 10\)\]\n\Z")

    def test_many_writers_save_what_pytorch_saves(self):
        code = """if True:
            import sys, torch
            state = torch.load(sys.argv[1], weights_only=True)
            assert state["epoch"] == 7 and state["weight"].flatten().equal(torch.arange(256000.0))
            torch.save(state, sys.argv[2])"""
        os.mkdir(self.path("again"))
        ours, theirs = self.path("joint.pt"), self.path("again/joint.pt")
        subprocess.run([self.program("joint"), ours], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([os.environ["BERTH_PYTHON"], "-c", code, ours, theirs], check=True)
        with open(ours, "rb") as one, open(theirs, "rb") as other:
            self.assertEqual(one.read(), other.read())
