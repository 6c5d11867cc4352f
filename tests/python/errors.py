# SPDX-License-Identifier: BSD-3-Clause
"""What is raised, and what is left behind."""

import contextlib
import errno
import io
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
from berth._source import Url
from pickles import archive

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
                    "q": torch.quantize_per_tensor(torch.ones(2, 3), 0.5, 1, torch.qint8), "one": torch.tensor(1.)}, self.source)
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
            for scheme in ("https", "s3", "HTTP", "S3"):
                with self.assertRaisesRegex(berth.ArgumentError, "^a URL has a NUL character"):
                    open_url(f"{scheme}://localhost\0.example/v.pt")

    def test_bytes_where_a_path_or_a_file_must_be(self):
        """One sentence with the step, however many bytes there are."""
        data = self.read(self.source) + bytes(1 << 20)
        for call in (berth.load, berth.open, berth.verify):
            for f, kind in ((data, berth.ArgumentError), (bytearray(data), AttributeError),
                            (memoryview(data), AttributeError)):
                with self.subTest(call, kind=type(f)), self.assertRaisesRegex(kind, r"give io\.BytesIO\(f\)$") as caught:
                    call(f)
                self.assertLess(len(str(caught.exception)), 600)

    def test_arguments_of_the_unpickler(self):
        """As torch.load: an argument that it does not have, and an encoding that is used for no text."""
        for load in (torch.load, berth.load, berth.installed()(lambda *a, **k: torch.load(*a, **k))):
            for options in ({"foo": 1}, {"encoding": "latin1", "errors": "strict"}):
                with self.subTest(load, options=options), self.assertRaises(TypeError) as caught:
                    load(self.source, **options)
                self.assertNotIsInstance(caught.exception, berth.Error)
            self.assertEqual(load(self.source, encoding="a\0")["n"], 7)

    def test_texts_of_files_are_shown_as_everywhere(self):
        """Names of files, records, tensors and classes move, hide and turn nothing in a message (F7)."""
        odd = "n\x1b[31m\u202e\ufeff\u2028\U000e0041"
        berth.save({odd: self.file["q"], "w": torch.ones(2)}, self.path(odd))
        good = self.read(self.path(odd))
        at = good.index(torch.ones(2).numpy().tobytes())
        bad = self.write("bad" + odd, good[:at] + b"?" + good[at + 1:])
        named = self.write("named" + odd, archive(b"\x80\4\x8c\4o\x1b[s\x8c\6sy\nst\xc2\x9b\x93."))
        file = berth.open(self.path(odd))

        def loaded(path, **options):
            with berth.config.patch("load.check=data"):
                berth.load(path, **options)

        calls = {"damaged": lambda: loaded(bad), "damaged, trusted": lambda: loaded(bad, weights_only=False),
                 "refused": lambda: berth.load(named), "slice": lambda: file.slice(odd)[0],
                 "row": lambda: self.rows.add(file, odd),
                 "save": lambda: berth.save(1, self.path(odd + ".safetensors")),
                 "dcp.save": lambda: berth.dcp.save({}, self.path(odd + ".safetensors")),
                 "dcp.load": lambda: berth.dcp.load({"none": 1}, self.path(odd)),
                 "folder": lambda: berth.load(os.path.dirname(self.path("in" + odd + "/a")))}
        for name, call in calls.items():
            with self.subTest(name), self.assertRaises((berth.Error, TypeError, ValueError)) as caught:
                call()
            self.assertTrue(str(caught.exception).isprintable(), ascii(str(caught.exception)))
        self.assertTrue(berth.verify(named).error.isprintable())

    def test_a_url_where_a_path_must_be(self):
        """No part of it is shown but its scheme (U1); a folder can have such a name."""
        class Text(str):
            pass

        saves = ("save", "save_async", "save, by PyTorch", "dcp.save")
        of_urls = ("load", "load, mapped", "load, trusted", "open", "verify", "dcp.load", *saves)
        calls = {name: call for name, call in OF_PATHS.items() if name not in of_urls}
        for url in ("https://us:hunter2@host/a.pt", "ftp://us:hunter2@host/a.pt", "https:/us:hunter2@host/a.pt",
                    "s3://us:hunter2@b/k", Text("https://us:hunter2@host/a.pt"), b"https://us:hunter2@host/a.pt"):
            is_read = type(url) is str and url.startswith(("https://", "s3://"))
            for name, call in (calls if is_read else OF_PATHS).items():
                with self.subTest(name, url=url), self.assertRaisesRegex(
                        berth.MissingFileError, "^[a-z0-9]+://...: there is no such file.") as caught:
                    call(url)
                self.assertNotIn("hunter2", repr(caught.exception))
            for name in saves if is_read else ():
                with self.subTest(name, url=url), self.assertRaises(berth.Error) as caught:
                    OF_PATHS[name](url)
                self.assertRegex(str(caught.exception), "only those with s3://|an address of S3 is s3://")
                self.assertNotIn("hunter2", repr(caught.exception))
        with contextlib.chdir(self.folder):
            os.makedirs("ftp:/x")
            berth.save({"w": 1}, "ftp://x/a.pt")
            self.assertEqual(berth.load("ftp://x/a.pt"), {"w": 1})

    def test_a_url_of_any_characters_is_shown_without_its_password(self):
        for text in ("https://us:hunter2@host/\udc80", "https://us:hunter2@host/\ud800", "https://us:hunter2@host/a\0"):
            self.assertNotIn("hunter2", repr(Url(text)))
            with self.assertRaises(berth.Error) as caught:
                berth.load(text + ".index.json")
            self.assertNotIn("hunter2", repr(caught.exception))

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
        self.assertRaisesRegex(TypeError, "numpy has no dtype qint8; use the tensor itself", self.file.numpy, "q")
        self.file.close()
        self.assertRaisesRegex(ValueError, "closed", self.file.__contains__, "w")

    def test_options(self):
        config = berth.config
        for call in (lambda: config.patch("load.check=data\0x").__enter__(), lambda: config.reset("debug\0x"),
                     lambda: setattr(config.load, "check", "data\0x"), lambda: config.describe("debug\0x")):
            with self.assertRaisesRegex(berth.ArgumentError, "NUL"):
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
        self.assertEqual(len(part), 4)
        self.assertRaisesRegex(TypeError, "a tensor without dimensions has no length", len, self.file.slice("one"))
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
        for taken in (0, -1, 10**6, 2**70, "all", 1.5, b""):
            with self.subTest(taken=taken), self.assertRaisesRegex(OSError, r"write\(\) returned"):
                berth.save(1, types.SimpleNamespace(write=lambda data, taken=taken: taken))
        for got in (-1, 2**70, "all", 1.5):
            file = types.SimpleNamespace(read=None, tell=lambda: 0, seek=lambda *_: 100,
                                         readinto=lambda memory, got=got: got)
            with self.subTest(got=got), self.assertRaisesRegex(OSError, r"readinto\(\) of .* returned"):
                berth.open(file)
        file = types.SimpleNamespace(read=lambda n: bytes(n + 1), tell=lambda: 0, seek=lambda *_: 100)
        self.assertRaisesRegex(OSError, r"read\(\) of .* returned \d+ bytes for \d+$", berth.open, file)

    def test_dcp(self):
        dcp, odd = berth.dcp, io.BytesIO()
        for call, words in ((lambda: dcp.save({}, odd), "berth.dcp.save saves to a path"),
                            (lambda: dcp.load({}, odd), "berth.dcp.load loads from a path"),
                            (lambda: dcp.load([], self.source), "berth.dcp.load loads into a dict")):
            with self.subTest(words), self.assertRaisesRegex(TypeError, words):
                call()
        with torch.overrides.BaseTorchFunctionMode(), \
                self.assertRaisesRegex(TypeError, "saves plain values only: a torch function mode is active"):
            dcp.save({}, self.path("d.pt"))
        for call in (dcp.save, dcp.load):
            with self.assertRaisesRegex(ValueError, "a process group without torch.distributed"):
                call({}, self.source, process_group=object())

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
        self.assertEqual((caught.exception.offset, caught.exception.record), (None, ""))

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
                self.assertLessEqual(at, caught.exception.offset)
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


class Shown(Folder):
    """F7: a name of a file, or in one, hides nothing in an exception's text."""

    NAMES = ("a\x1b[2Jb", "a\nb", "a\u202eb", "a\u2066b", "a\u2028b", "a\ufeffb", "a\U000e0041b", "a\x9bb", "a\u200bb",
             "a\ufe0fb")

    def test_names_are_escaped(self):
        import json
        import struct

        path = self.path("m.safetensors")
        for name in self.NAMES:
            header = json.dumps({name: {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}).encode()
            with open(path, "wb") as file:
                file.write(struct.pack("<Q", len(header)) + header + bytes(4))
            index = self.path("m.safetensors.index.json")
            with open(index, "w", encoding="utf-8") as file:
                json.dump({"weight_map": {name: "x.safetensors"}}, file)
            berth.save({"x": torch.ones(1)}, self.path("x.pt"))
            with berth.open(self.path("x.pt")) as opened:
                calls = [lambda: berth.load(path), lambda: berth.open(path), lambda: berth.load(self.path(name + ".pt")),
                         lambda: berth.load(self.path(name + ".safetensors.index.json")), lambda: opened.slice(name),
                         lambda: berth.verify(self.path(name))]
                for number, call in enumerate(calls):
                    with self.assertRaises((berth.Error, OSError, KeyError)) as caught:
                        call()
                    self.assertNotIn(name, str(caught.exception), number)
            self.assertNotIn(name, str(self.raised(berth.load, index)))
            for wrong in (name + "\ud800", "../" + name, "/" + name):
                with open(index, "w", encoding="utf-8") as file:
                    json.dump({"weight_map": {"a": wrong}}, file)
                told = self.raised(berth.load, index)
                self.assertIn("is not a name of a file in the index's folder", str(told))
                self.assertNotIn(name, str(told))

    @staticmethod
    def raised(call, *arguments):
        try:
            call(*arguments)
        except berth.Error as error:
            return error
        raise AssertionError("nothing was raised")
