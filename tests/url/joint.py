# SPDX-License-Identifier: BSD-3-Clause
"""One object of S3 by many ranks of torch.distributed: bytes, faults, kills, deadlines, memory; and what each rank reads."""

import io
import json
import os
import subprocess
import tempfile
import unittest

import case
import files
from bucket import Bucket
from packaged import BUILT, PACKAGE
from uploads import PART, Writing

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ranks.py")
URL = "s3://bucket/model.pt"
OLD = b"the old object"


@unittest.skipUnless(os.path.exists(PACKAGE), "the package is not built")
class Joint(Writing):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = cls.torch("torch.save(whole(), f'{folder}/model.pt')\nprint(f'{folder}/model.pt')")

    @classmethod
    def torch(cls, text):
        """The file that PyTorch writes of the whole state."""
        folder = tempfile.mkdtemp()
        cls.addClassCleanup(__import__("shutil").rmtree, folder)
        code = f"import sys\nsys.path.insert(0, {os.path.dirname(PROGRAM)!r})\nfrom ranks import *\nfolder = {folder!r}\n{text}"
        name = subprocess.run([files.PYTHON, "-c", code], env=cls.env_of({}), check=True, capture_output=True, text=True).stdout
        with open(name.strip(), "rb") as file:
            return file.read()

    @staticmethod
    def env_of(more):
        return dict(os.environ, PYTHONPATH=os.path.join(BUILT, "python"), OMP_NUM_THREADS="1", **more)

    def ranks(self, bucket, text, n=4, seconds=60):
        """{rank: what it raised}; a rank that was killed has said nothing."""
        folder = tempfile.mkdtemp(dir=self.folder)
        done = subprocess.run([files.PYTHON, PROGRAM, str(n), str(seconds), folder, text], env=self.env_of(bucket.env),
                              capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))

    def filled(self, *arguments):
        bucket = self.bucket(*arguments)
        bucket.objects["model.pt"] = (OLD, '"old"', "")
        return bucket

    SAVE = f"berth.dcp.save(shards(whole(), mesh), {URL!r})"

    def test_bytes(self):
        for n in (4, 3, 1):
            with self.subTest(n=n):
                bucket = self.filled()
                self.assertEqual(self.ranks(bucket, self.SAVE, n), dict.fromkeys(range(n)))
                self.assertEqual((bucket.problems, bucket.uploads), ([], {}))
                self.assertTrue(bucket.objects["model.pt"][0] == self.model)
                parts = -(-len(self.model) // PART)
                self.assertEqual(sorted(bucket.steps), ["begin", "complete"] + parts * ["part"])
