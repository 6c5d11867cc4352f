# SPDX-License-Identifier: BSD-3-Clause
"""What is raised, and what is left behind."""

import errno
import os
import pathlib
import pickle
import shutil
import subprocess
import tempfile
import types
import unittest
import zipfile

import berth
import torch

from folder import Folder


class AllowedDict(dict):
    """PyTorch's weights_only unpickler fills no such dict, from 2.13 on at the latest."""


# What takes a path.
OF_PATHS = {
    "load": berth.load, "load, mapped": lambda path: berth.load(path, mmap=True),
    "load, trusted": lambda path: berth.load(path, weights_only=False), "open": berth.open, "verify": berth.verify,
    "save": lambda path: berth.save(1, path), "save_async": lambda path: berth.save_async(1, path),
    "save, by PyTorch": lambda path: berth.save(AllowedDict(), path),
    "dcp.save": lambda path: berth.dcp.save({}, path), "dcp.load": lambda path: berth.dcp.load({}, path),
    "Rows.add": lambda path: berth.rows(1 << 16).add(path, "w"),
}


class Arguments(Folder):
    """What cannot be right is refused by a sentence of ours, of the right class (Y11)."""

    def setUp(self):
        super().setUp()
        self.source = self.path("v.pt")
        torch.save({"w": torch.ones(4, 3), "a": torch.zeros(3), "a\0b": torch.ones(2), "n": 7, "deep": [[1]],
                    "q": torch.quantize_per_tensor(torch.ones(2, 3), 0.5, 1, torch.qint8)}, self.source)
        self.file = berth.open(self.source)
        self.rows = berth.rows(1 << 16)
        self.table = self.rows.add(self.file, "w")
        self.addCleanup(self.file.close)
        self.addCleanup(self.rows.close)

    def test_paths(self):
        """A NUL would end the path: another file would be read, or written."""
        berth.save({"w": 1}, self.path("x"))
        before = sorted(os.listdir(self.folder))
        for name, call in OF_PATHS.items():
            for path in (self.path("x") + "\0y", os.fsencode(self.path("x")) + b"\0.safetensors",
                         pathlib.Path(self.path("x\0y")), self.path("x\ud800")):
                with self.subTest(name, path=path), self.assertRaisesRegex(
                        berth.ArgumentError, "NUL character|cannot be encoded"):
                    call(path)
        self.assertEqual((sorted(os.listdir(self.folder)), berth.load(self.path("x"))), (before, {"w": 1}))
        for open_url in (berth.load, berth.open, berth.verify):
            with self.assertRaisesRegex(berth.ArgumentError, "NUL character"):
                open_url("https://localhost\0.example/v.pt")

    def test_names(self):
        """A NUL would end the name: of two tensors it would be the other."""
        calls = (self.file.__getitem__, self.file.slice, self.file.numpy, lambda n: self.rows.add(self.file, n))
        for name, kind, words in (("a\0b", KeyError, "NUL character"), ("a\ud800", KeyError, "such characters"),
                                  ("none", KeyError, "none"), (3, TypeError, "is a str, not"),
                                  (None, TypeError, "is a str, not"), (b"a", TypeError, "is a str, not")):
            for call in calls:
                with self.subTest(name, call=call), self.assertRaisesRegex(kind, words):
                    call(name)
            self.assertNotIn(name, self.file)
        for name in (each for each in self.file if "x00" in each):
            self.assertEqual(self.file[name].tolist(), [1, 1])

    def test_options(self):
        config = berth.config
        for call in (lambda: config.patch("load.check=data\0x").__enter__(), lambda: config.reset("debug\0x"),
                     lambda: setattr(config.load, "check", "data\0x"), lambda: config.describe("debug\0x")):
            with self.assertRaisesRegex(berth.ArgumentError, "NUL character"):
                call()

    def test_indices(self):
        part = self.file.slice("w")
        for index, kind, words in ((True, TypeError, "not bool"), ((0, False), TypeError, "not bool"),
                                   (slice(True), TypeError, "not bool"), (1.5, TypeError, "not float"),
                                   (torch.tensor(True), TypeError, "not Tensor"), (None, TypeError, "not NoneType"),
                                   ("x", TypeError, "not str"), ([1], TypeError, "not list"),
                                   ((..., ...), IndexError, "once at most"), (4, IndexError, "is not inside"),
                                   ((0, 0, 0), IndexError, "3 indices"), (slice(0, 4, 2), IndexError, "of step 1")):
            with self.subTest(index=index), self.assertRaisesRegex(kind, words):
                part[index]
        for index in (0, slice(None), ..., (0, 1)):
            with self.assertRaisesRegex(TypeError, "q: a quantized tensor has no slices"):
                self.file.slice("q")[index]

    def test_ids_and_outputs(self):
        for ids, kind, words in ((None, TypeError, "ids are ints.*NoneType"), ("ab", TypeError, "ids are ints.*str"),
                                 (3, TypeError, "ids are ints.*not int"), ([1.5], TypeError, "not float"),
                                 ([True], TypeError, "not bool"), ([2**70], IndexError, "64 bits"),
                                 ([[1]], TypeError, "not list"), ([4], IndexError, "4")):
            with self.subTest(ids=ids), self.assertRaisesRegex(kind, words):
                self.rows.gather(self.table, ids)
        for out in (3, "x", object()):
            with self.assertRaisesRegex(TypeError, "out is a tensor, an array or a writable buffer"):
                self.rows.gather(self.table, [1], out=out)
        for parts in (3, [3], [(self.table,)], [(self.table, [1], None, 4)]):
            with self.assertRaisesRegex(TypeError, "parts are a list of"):
                self.rows.gather_many(parts)

    def test_jobs(self):
        job = berth.save_async(1, self.path("j.pt"))
        for wait in (job.result, job.staged):
            with self.assertRaisesRegex(TypeError, "a timeout is a number of seconds, or None, not str"):
                wait("1")
        with self.assertRaisesRegex(TypeError, "a callback is a function"):
            job.add_done_callback(3)
        job.result()

    def test_file_objects(self):
        """What their methods return."""
        for taken in (0, -1, 2**70, "all", 1.5, b""):
            with self.subTest(taken=taken), self.assertRaisesRegex(OSError, r"write\(\) returned"):
                berth.save(1, types.SimpleNamespace(write=lambda data, taken=taken: taken))
        for got in (-1, 2**70, "all", 1.5):
            file = types.SimpleNamespace(read=None, tell=lambda: 0, seek=lambda *_: 100,
                                         readinto=lambda memory, got=got: got)
            with self.subTest(got=got), self.assertRaisesRegex(OSError, r"readinto\(\) of .* returned"):
                berth.open(file)

    def test_a_file_without_a_dict(self):
        berth.save([1], self.path("list.pt"))
        with self.assertRaisesRegex(ValueError, "list.pt holds no dict, but list"):
            berth.dcp.load({"a": 1}, self.path("list.pt"))


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
