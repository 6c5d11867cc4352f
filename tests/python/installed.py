# SPDX-License-Identifier: BSD-3-Clause
"""torch.save and torch.load while Berth is installed."""

import contextlib
import gzip
import inspect
import io
import os
import pickle
import struct
import tempfile
import threading
import unittest
import warnings
import zipfile

import berth
import torch
from berth import _install
from records import Mine, Runs, delta, model
from saves import comparable

import starter
from folder import Folder

VALUE = {"a": torch.arange(1000.), "b": [1, "two"]}


def by(operation, way, reason=None):
    counted = {(operation, way): 1}
    if reason:
        counted["reasons", reason] = 1
    return counted


class Installed(Folder):
    def setUp(self):
        super().setUp()
        self.theirs = torch.save, torch.load
        berth.install()
        self.addCleanup(berth.uninstall)

    def counted(self, expected, function, *arguments, **named):
        counted, result = delta(function, *arguments, **named)
        self.assertEqual(counted, expected)
        return result

    def test_both_names_and_the_dress(self):
        self.assertIs(torch.save, torch.serialization.save)
        self.assertIsNot(torch.save, self.theirs[0])
        for mine, theirs in zip((torch.save, torch.load), self.theirs):
            self.assertEqual(inspect.signature(mine), inspect.signature(theirs))
            self.assertEqual((mine.__name__, mine.__doc__), (theirs.__name__, theirs.__doc__))
        berth.install()
        berth.uninstall()
        berth.uninstall()
        self.assertEqual((torch.save, torch.load), self.theirs)
        self.assertEqual((torch.serialization.save, torch.serialization.load), self.theirs)

    def test_blocks_and_decorators(self):
        berth.uninstall()

        @berth.installed()
        def inside():
            with berth.installed():
                pass
            return torch.save is not self.theirs[0]

        self.assertTrue(inside() and inside())
        self.assertIs(torch.save, self.theirs[0])
        berth.install()
        with berth.installed():
            pass
        self.assertIsNot(torch.save, self.theirs[0])

    def test_a_wrapper_of_others_stays(self):
        ours = torch.save
        torch.save = lambda *arguments: ours(*arguments)
        self.addCleanup(setattr, torch, "save", self.theirs[0])
        berth.uninstall()
        self.counted({}, torch.save, VALUE, self.path("v.pt"))  # by PyTorch, and not counted
        self.assertEqual(self.theirs[1](self.path("v.pt"))["b"], VALUE["b"])

    def test_plain_values_and_others(self):
        for value, way in ((VALUE, "values"), (model(), "records")):
            path = self.path("v.pt")
            self.counted(by("save", way), torch.save, value, path)
            self.theirs[0](value, self.path("theirs/v.pt"))
            self.assertEqual(comparable(self.read(path)), comparable(self.read(self.path("theirs/v.pt"))))
        self.counted(by("load", "records"), torch.load, path, weights_only=False)
        torch.save(VALUE, path)
        self.counted(by("load", "values"), torch.load, path)
        self.counted(by("load", "values"), torch.load, path, "cpu", mmap=True, weights_only=True)
        with open(path, "rb") as file:
            self.counted(by("load", "values"), torch.load, file)
        self.counted(by("load", "records"), torch.load, path, weights_only=False)

    def test_what_is_left_to_torch(self):
        path = self.path("v.pt")
        self.counted(by("save", "torch", "legacy format"), torch.save, VALUE, path,
                     _use_new_zipfile_serialization=False)
        self.counted(by("load", "values"), torch.load, path)
        with open(path, "rb") as file:
            self.counted(by("load", "values"), torch.load, file)
        with gzip.open(self.path("v.gz"), "wb") as file:
            self.theirs[0](VALUE, file, _use_new_zipfile_serialization=False)
        with gzip.open(self.path("v.gz")) as file:
            self.counted(by("load", "values"), torch.load, file)
            self.assertEqual(file.read(), b"")
        self.theirs[0]([Mine(VALUE)], self.path("old.pt"), _use_new_zipfile_serialization=False)
        self.counted(by("load", "torch", "not a zip archive"), torch.load, self.path("old.pt"), weights_only=False)
        scripted = torch.jit.script(torch.nn.Linear(2, 2))
        scripted.save(self.path("s.pt"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.counted(by("load", "torch", "TorchScript archive"), torch.load, self.path("s.pt"),
                         weights_only=False)

    def test_several_streams_in_one_file(self):
        """What PyTorch reads of a file object leaves it at the same place."""
        with tempfile.TemporaryFile(dir=self.folder) as file:
            for i in range(3):
                pickle.dump(i, file)
                torch.save([i, torch.ones(i)], file, _use_new_zipfile_serialization=False)
            file.seek(0)
            for i in range(3):
                self.assertEqual(pickle.load(file), i)
                number, ones = torch.load(file)
                self.assertEqual((number, ones.sum()), (i, i))

    def test_file_objects(self):
        class Reads(io.RawIOBase):
            """Neither size nor descriptor."""

            def __init__(self, data):
                self.inner = io.BytesIO(data)

            def seekable(self):
                return True

            def seek(self, at, whence=0):
                if whence == 2:
                    raise OSError("it has no end")
                return self.inner.seek(at, whence)

            def tell(self):
                return self.inner.tell()

            def readinto(self, buffer):
                return self.inner.readinto(buffer)

        buffer = io.BytesIO(b"before")
        buffer.seek(6)
        torch.save(VALUE, buffer)
        data = buffer.getvalue()[6:]
        buffer.seek(6)
        for source in (buffer, io.BytesIO(data), Reads(data)):
            self.assertEqual(self.counted(by("load", "values"), torch.load, source)["b"], VALUE["b"])
        with tempfile.NamedTemporaryFile(dir=self.folder) as file:
            torch.save(VALUE, file)
            file.seek(0)
            self.assertEqual(torch.load(file)["b"], VALUE["b"])
        ends = os.pipe()
        with os.fdopen(ends[0], "rb") as read, os.fdopen(ends[1], "wb") as write:
            torch.save([1], write)
            write.close()
            with self.assertRaises(OSError):
                torch.load(read)

    def test_the_messages_of_torch(self):
        self.theirs[0]([Mine()], self.path("v.pt"))
        mark = self.path("mark")
        self.theirs[0](Runs(mark), self.path("evil.pt"))
        for path in (self.path("v.pt"), self.path("evil.pt")):
            messages = []
            for load in (torch.load, self.theirs[1]):
                with self.assertRaises(pickle.UnpicklingError) as caught:
                    load(path)
                messages.append(str(caught.exception))
            self.assertEqual(messages[0], messages[1])
            self.assertIn("Weights only load failed", messages[0])
        self.assertFalse(os.path.exists(mark))
        for arguments, named in ((([1], 5), {}), ):
            with self.assertRaisesRegex(AttributeError, "'write' attribute"):
                torch.save(*arguments, **named)
        with self.assertRaisesRegex(RuntimeError, "explicit pickle_module"):
            torch.load(self.path("v.pt"), pickle_module=pickle, weights_only=True)
        with self.assertRaisesRegex(ValueError, "f must be a file path"):
            torch.load(io.BytesIO(self.read(self.path("v.pt"))), mmap=True)
        with self.assertRaises(FileNotFoundError):
            torch.load(self.path("none.pt"))
        berth.save({"w": torch.ones(1)}, self.path("w.safetensors"))
        with self.assertRaisesRegex(RuntimeError, "the map_location of a .safetensors file must be a device, or the name of one"):
            torch.load(self.path("w.safetensors"), map_location=lambda storage, location: storage)
        for place in (None, "cpu", torch.device("cpu")):
            self.assertEqual(torch.load(self.path("w.safetensors"), place)["w"].item(), 1)

    def test_bytes_are_no_file(self):
        """berth.load takes them for a path; what someone read from a file is refused as by PyTorch."""
        buffer = io.BytesIO()
        torch.save({"a": 1}, buffer)
        for data in (buffer.getvalue(), b"", os.fsencode(self.path("v.pt"))):
            for call in (lambda: torch.load(data), lambda: torch.load(f=data),
                         lambda: torch.save({"a": 1}, data)):
                berth.uninstall()
                with self.assertRaises(AttributeError) as theirs:
                    call()
                berth.install()
                with self.assertRaises(AttributeError) as mine:
                    call()
                self.assertEqual(str(mine.exception), str(theirs.exception))
        self.assertEqual(os.listdir(self.folder), [])

    def test_broken_files_are_refused_once(self):
        torch.save(VALUE, self.path("v.pt"))
        data = self.read(self.path("v.pt"))
        for broken in (data[:-30], data[:2000]):
            path = self.write("broken.pt", broken)
            for weights_only in (True, False):
                with self.assertRaisesRegex(berth.Error, "broken.pt: .*(cut off|not fit)"):
                    torch.load(path, weights_only=weights_only)

    def test_the_variables_of_torch(self):
        torch.save([Mine()], self.path("v.pt"))
        code = ("import os, sys, warnings; warnings.simplefilter('ignore')\n"
                "os.environ.update(dict.fromkeys(sys.argv[2:], '1'))\n"
                "import torch, berth, records; berth.install()\n"
                f"try: torch.load({self.path('v.pt')!r}, **eval(sys.argv[1])); print('loaded')\n"
                "except Exception as error: print(type(error).__name__)\n")
        no, only = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
        for variables, options, expected in (
                ((), "{}", "UnsafeFileError"), ((no,), "{}", "UnsafeFileError"),
                ((no,), "{'weights_only': True}", "UnsafeFileError"),
                ((only,), "{'weights_only': False}", "UnsafeFileError"),
                ((no, only), "{}", "UnsafeFileError"), ((no,), "{'weights_only': False}", "loaded")):
            _, out, err = starter.run(code, options, *variables)
            self.assertEqual(out, expected + "\n", err[-500:])

    @unittest.skipUnless(hasattr(torch.utils, "serialization"), "since PyTorch 2.7")
    def test_the_options_of_torch(self):
        from torch.utils.serialization import config

        mine, theirs = self.path("mine/v.pt"), self.path("theirs/v.pt")
        for option, value in (("save.compute_crc32", False), ("save.storage_alignment", 4096)):
            for saved in (VALUE, Mine(VALUE)):
                with self.subTest(option), config.patch({option: value}):
                    torch.save(saved, mine)
                    self.theirs[0](saved, theirs)
                    self.assertEqual(self.read(mine), self.read(theirs))
        torch.save(VALUE, mine, _disable_byteorder_record=True)
        self.theirs[0](VALUE, theirs, _disable_byteorder_record=True)
        self.assertEqual(self.read(mine), self.read(theirs))
        with zipfile.ZipFile(theirs) as file, zipfile.ZipFile(mine, "w") as made:
            for name in file.namelist():
                if name != "v/byteorder":
                    made.writestr(name, file.read(name))
        big = torch.serialization.LoadEndianness.BIG
        # Debug mode refuses files that were packed again.
        with config.patch({"load.endianness": big}), berth.config.patch(debug=False):
            loaded = [load(mine)["a"] for load in (torch.load, self.theirs[1])]
        self.assertEqual(loaded[0][1].item(), struct.unpack(">f", struct.pack("<f", 1))[0])
        self.assertTrue(torch.equal(*loaded))
        torch.save(VALUE, mine)
        with config.patch({"load.mmap": True}):
            torch.load(mine)["a"].fill_(7)
            with torch.serialization.set_default_mmap_options(1):  # MAP_SHARED
                torch.load(mine)["a"].fill_(8)
                self.counted(by("load", "values"), torch.load, mine, mmap=False)
        self.assertEqual(torch.load(mine)["a"][0], 8)

    def test_a_pytorch_that_is_not_known(self):
        """Y4"""
        berth.uninstall()
        code = ("import torch, berth\n{}\n"
                "try: berth.install()\nexcept RuntimeError as error: print(error)\n"
                "berth.save([torch.ones(2)], {!r}); print(berth.load({!r}))\n"
                "print(torch.load.__module__)\n")
        path = self.path("v.pt")
        for change, message in (
                ("torch.serialization.load = lambda f: f", "has a torch.load that this version"),
                ("def _save(zip_file): zip_file.set_min_version(1)\n"
                 "torch.serialization._save = _save", "uses PyTorchFileWriter.set_min_version, which"),
                ("def _load(zip_file):\n    def inner(): zip_file.get_record_size('a')\n    def other(): inner()\n"
                 "torch.serialization._load = _load", "uses PyTorchFileReader.get_record_size, which")):
            if "get_record_size" in change and not hasattr(torch._C.PyTorchFileReader, "get_record_size"):
                continue  # PyTorch 2.6 has no method that Berth's reader lacks
            status, out, err = starter.run(code.format(change, path, path))
            self.assertEqual(status, 0, err)
            self.assertIn(message, out)
            self.assertIn("[tensor([1., 1.])]\ntorch.serialization", out)


class Overlapping(Folder):
    """Blocks of installed() in several threads, and in a forked child: they are counted (Y9)."""

    def setUp(self):
        self.theirs = torch.save, torch.load
        self.addCleanup(berth.uninstall)

    def is_installed(self):
        both = torch.save is not self.theirs[0], torch.load is not self.theirs[1]
        self.assertEqual(both[0], both[1])
        self.assertEqual((torch.save, torch.load), (torch.serialization.save, torch.serialization.load))
        return both[0]

    def test_each_order_of_two_blocks(self):
        for first_to_end in (0, 1):
            blocks = [berth.installed(), berth.installed()]
            for block in blocks:
                in_thread(block.__enter__)
            in_thread(blocks.pop(first_to_end).__exit__)
            self.assertTrue(self.is_installed())
            blocks.pop().__exit__()  # in another thread than it began
            self.assertFalse(self.is_installed())

    def test_uninstall_beside_a_block(self):
        with berth.installed():
            berth.install()
            berth.uninstall()
            self.assertTrue(self.is_installed())
        self.assertFalse(self.is_installed())

    def test_many_threads(self):
        failures = []

        def use(block=berth.installed()):
            @block
            def inside():
                return self.is_installed()

            for _ in range(200):
                try:
                    self.assertTrue(inside())
                except AssertionError as error:
                    failures.append(error)

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((failures, self.is_installed()), ([], False))

    def test_a_fork_beside_blocks(self):
        """The blocks of threads that the child does not have are none of its own."""
        in_thread(berth.installed().__enter__)
        self.addCleanup(_install._users.clear)
        for inside in (contextlib.nullcontext(), berth.installed()):
            with inside:
                pid = os.fork()
                if pid == 0:
                    os._exit(self.is_installed())
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            self.assertEqual(code, not isinstance(inside, contextlib.nullcontext))

    def test_a_fork_while_another_thread_changes_it(self):
        """Its lock is not left taken (X11)."""
        with _install._lock.held:
            pid = os.fork()
            if pid == 0:
                with berth.installed():
                    os._exit(self.is_installed())
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 1)


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
