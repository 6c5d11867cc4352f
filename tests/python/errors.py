# SPDX-License-Identifier: BSD-3-Clause
"""What is raised, and what is left behind."""

import errno
import os
import pickle
import shutil
import subprocess
import tempfile
import unittest
import zipfile

import berth
import torch

from folder import Folder


class AllowedDict(dict):
    """PyTorch's weights_only unpickler fills no such dict, from 2.13 on at the latest."""


class Errors(Folder):
    def test_a_file_that_is_not_there(self):
        for mmap in (False, True):
            with self.assertRaises(FileNotFoundError) as caught:
                berth.load(self.path("none.pt"), mmap=mmap)
        error = caught.exception
        self.assertIsInstance(error, berth.Error)
        self.assertEqual((error.status, error.errno), ("BERTH_E_NOT_FOUND", errno.ENOENT))
        self.assertIn("none.pt", str(error))

    def test_a_folder_that_is_not_there(self):
        with self.assertRaises(berth.Error) as caught:
            berth.save(1, os.path.join(self.folder, "none", "v.pt"))
        self.assertEqual(caught.exception.errno, errno.ENOENT)

    def test_what_the_system_refuses(self):
        with self.assertRaises(OSError) as caught:
            berth.save(1, self.folder)
        self.assertIsInstance(caught.exception, berth.Error)
        self.assertIn(self.folder, str(caught.exception))

    def test_a_broken_file(self):
        torch.save({"a": torch.arange(100.)}, self.path("v.pt"))
        data = self.read(self.path("v.pt"))
        with self.assertRaises(berth.Error) as caught:
            berth.load(self.write("cut.pt", data[:-10]))
        self.assertRegex(str(caught.exception), "cut.pt: ")
        with zipfile.ZipFile(self.path("v.pt")) as archive:
            at = archive.getinfo("v/data/0").header_offset
        bad = bytearray(data)
        bad[at + 300] ^= 1
        path = self.write("bad.pt", bad)
        with berth.config.patch("load.check=data"):
            for mmap in (False, True):
                with self.assertRaises(berth.Error) as caught:
                    berth.load(path, mmap=mmap)
                self.assertEqual(caught.exception.status, "BERTH_E_CHECKSUM")
                self.assertEqual(caught.exception.record, "data/0")
        with self.assertRaises(berth.Error) as caught:
            berth.load(self.write("text.pt", b"no checkpoint"))

    def test_code_is_refused_as_by_torch(self):
        torch.save(torch.nn.Linear(1, 1), self.path("v.pt"))
        for load in (berth.load, torch.load):
            with self.assertRaises(pickle.UnpicklingError):
                load(self.path("v.pt"))
        with self.assertRaises(berth.UnsafeFileError) as caught:
            berth.load(self.path("v.pt"))
        self.assertEqual(caught.exception.status, "BERTH_E_FORBIDDEN")
        self.assertIsNotNone(caught.exception.offset)
        self.assertIn("Linear", str(caught.exception))
        with berth.config.patch("load.unknown_globals=inert"), \
                self.assertRaises(berth.UnsafeFileError):
            berth.load(self.path("v.pt"))

    def test_what_the_program_allows_and_pytorch_refuses(self):
        """The message is PyTorch's: the names are allowed. PyTorch 2.6 fills such a dict, so it is loaded."""
        path = self.path("v.pt")
        torch.save(AllowedDict(a=torch.ones(2)), path)
        with torch.serialization.safe_globals([AllowedDict]):
            try:
                theirs = torch.load(path, weights_only=True)
            except pickle.UnpicklingError:
                with self.assertRaisesRegex(berth.UnsafeFileError, "v.pt: .*Can only SETITEM") as caught:
                    berth.load(path)
                self.assertEqual(caught.exception.status, "BERTH_E_FORBIDDEN")
            else:
                mine = berth.load(path)
                self.assertEqual((type(mine), type(theirs)), (AllowedDict, AllowedDict))
                self.assertTrue(torch.equal(mine["a"], theirs["a"]))
        with self.assertRaisesRegex(berth.UnsafeFileError, "AllowedDict is not allowed"):
            berth.load(path)

    def test_errors_can_be_pickled(self):
        with self.assertRaises(berth.Error) as caught:
            berth.load(self.path("none.pt"))
        again = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(again), str(again)), (type(caught.exception), str(caught.exception)))

    def test_a_full_disk(self):
        """The old file stays, and nothing else."""
        small = tempfile.mkdtemp(prefix="berth-full-")
        self.addCleanup(shutil.rmtree, small)
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            raise unittest.SkipTest("no tmpfs can be mounted")
        self.addCleanup(subprocess.run, ["umount", small], check=True)
        path = os.path.join(small, "v.pt")
        berth.save([1], path)
        before = self.read(path)
        for value in (torch.ones(1 << 20), [torch.ones(100) for _ in range(5000)]):
            with self.assertRaises(OSError) as caught:
                berth.save(value, path)
            self.assertEqual((caught.exception.status, caught.exception.errno),
                             ("BERTH_E_NO_SPACE", errno.ENOSPC))
            self.assertEqual(self.read(path), before)
            self.assertEqual(os.listdir(small), ["v.pt"])
        with open(path, "wb") as file, self.assertRaises(OSError) as caught:
            berth.save(torch.ones(1 << 20), file)
        self.assertEqual(caught.exception.errno, errno.ENOSPC)
