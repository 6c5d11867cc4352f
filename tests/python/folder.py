# SPDX-License-Identifier: BSD-3-Clause
"""A test with a folder of its own."""

import contextlib
import os
import shutil
import tempfile
import unittest


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="berth-python-")
        self.addCleanup(shutil.rmtree, self.folder)

    def open_files(self):
        """Descriptors of this process for files of the folder: others come and go with other tests' garbage."""
        n = 0
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):
                n += os.readlink(f"/proc/self/fd/{fd}").startswith(self.folder + "/")
        return n

    def path(self, name):
        os.makedirs(os.path.join(self.folder, os.path.dirname(name)), exist_ok=True)
        return os.path.join(self.folder, name)

    def read(self, path):
        with open(path, "rb") as file:
            return file.read()

    def write(self, name, data):
        with open(self.path(name), "wb") as file:
            file.write(data)
        return self.path(name)
