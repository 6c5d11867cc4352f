# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of the command share: running it, in a folder with a checkpoint."""

import os
import shutil
import subprocess
import tempfile
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "data", "old")
BERTH = os.path.join(os.path.abspath(os.environ["BERTH_BUILD"]), "berth")


def old(name):
    return os.path.join(DATA, name)


class Case(unittest.TestCase):
    """A folder of its own, with a small checkpoint demo.pt in it."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="berth-command-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.demo = os.path.join(self.folder, "demo.pt")
        self.berth("demo", self.demo)

    def berth(self, *words, code=0, env=None, **options):
        """Runs the command; checks its exit code, and that errors are one line on stderr."""
        environment = dict(os.environ, **(env or {}))
        done = subprocess.run([BERTH, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              cwd=self.folder, env=environment, timeout=600, **options)
        self.assertEqual(done.returncode, code, (words, done.stdout, done.stderr))
        done.err = done.stderr.decode()
        done.out = done.stdout.decode(errors="replace")
        return done

    def refused(self, *words, code=2, says=(), env=None):
        done = self.berth(*words, code=code, env=env)
        self.assertEqual(done.err.count("\n"), 1, done.err)
        self.assertTrue(done.err.startswith("berth: "), done.err)
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, done.err)
        return done.err

    def leave_debug_mode(self):
        """For a test of what debug mode refuses."""
        environment = unittest.mock.patch.dict(os.environ)
        environment.start()
        self.addCleanup(environment.stop)
        os.environ.pop("BERTH_SERIALIZATION_DEBUG", None)

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content)
        return self.path(name)

    def entries(self):
        return sorted(os.listdir(self.folder))
