# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints in several files: an index, a DCP directory, a folder; and a File in other processes."""

import argparse
import functools
import gzip
import gc
import http.server
import io
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import unittest.mock
import urllib.parse
import warnings

import berth
import torch
import torch.distributed.checkpoint as dcp
from berth import _native, _set

import index_names
from folder import Folder
from same import same

FIRST = {"a.x": torch.arange(24.).reshape(4, 6), "a.y": torch.ones(3), "unlisted": torch.ones(1)}
SECOND = {"b": torch.zeros(2, dtype=torch.bfloat16)}


class Rows(torch.utils.data.Dataset):
    """A data set over an open file: each worker gets the file by pickle, or by fork."""

    def __init__(self, file):
        self.file = file

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.file.slice("a.x")[i]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Sets(Folder):
    def index(self, weights=None):
        weights = weights or {"b": "m-2.safetensors", "a.x": "deep/m-1.safetensors",
                              "a.y": "deep/m-1.safetensors"}
        berth.save(FIRST, self.path("set/deep/m-1.safetensors"))
        berth.save(SECOND, self.path("set/m-2.safetensors"))
        index = {"metadata": {"total_size": 7}, "weight_map": weights}
        return self.write("set/model.safetensors.index.json", json.dumps(index).encode())

    def test_an_index(self):
        expected = {"b": SECOND["b"], "a.x": FIRST["a.x"], "a.y": FIRST["a.y"]}
        path = self.index()
        for f in (path, os.fsencode(path), os.path.dirname(path), self.served(path)):
            same(berth.load(f), expected, resizable=False)
            if f == self.served(path):
                self.assertRaisesRegex(ValueError, "cannot be mapped", berth.load, f, mmap=True)
            else:
                same(berth.load(f, "cpu", mmap=True), expected, resizable=False)
            self.assertTrue(berth.verify(f))
            with berth.open(f) as file:
                self.assertEqual((file.keys(), file.metadata), (list(expected), {"total_size": 7}))
                same(dict(file.items()), expected, resizable=False)
                same(list(file.values()), list(expected.values()), resizable=False)
                self.assertEqual((file.get("unlisted"), file.get("b", 1).shape), (None, (2,)))
                self.assertTrue(torch.equal(file.slice("a.x")[1:3, 2], FIRST["a.x"][1:3, 2]))
                self.assertEqual(file.numpy("['a.y']").tolist(), [1, 1, 1])
                self.assertEqual((file.info["n_files"], file.info["n_tensors"]), (2, 3))
                self.assertTrue(file.verify())
                self.assertIn(", index of 2 files, 3 tensors>", repr(file))
                rows = berth.rows(1 << 20)
                self.assertTrue(torch.equal(rows.gather(rows.add(file, "a.x"), [2]), FIRST["a.x"][2:3]))
            self.assertIn("closed", repr(file))
            for call in (file.verify, lambda: file["b"], lambda: file.info):
                self.assertRaises(ValueError, call)
        os.truncate(self.path("set/m-2.safetensors"), 90)
        for f in (path, self.served(path)):
            for call in (berth.load, berth.open):
                with self.assertRaisesRegex(berth.Error, "m-2.safetensors"):
                    call(f)
            report = berth.verify(f)  # of which one file is whole
            self.assertIn("m-2.safetensors", report.error)
            self.assertIs(report.intact, False)

    def served(self, path):
        """The URL of a file."""
        if not hasattr(self, "server"):
            handler = functools.partial(Quiet, directory=self.folder)
            self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
            threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
            self.addCleanup(self.server.server_close)
            self.addCleanup(self.server.shutdown)
        name = urllib.parse.quote(os.path.relpath(path, self.folder))
        return f"http://127.0.0.1:{self.server.server_port}/{name}"

    def test_bad_indices(self):
        good = "m-2.safetensors"
        odd = {json.dumps(each)[:4]: each for each in (1, -1.5, None, True, [], {}, "", "../x", "/x")}
        odd |= {"an array": [1], "an object": {"b": 1}, r'"x\\u0000"': "x\0", "a number of many digits": 10**1000,
                '"%s...' % ("x/" * 99 + "x"): "x/" * 500}
        for shown, value in odd.items():
            path = self.index({"a": good, "b\x1b": value})
            shown = json.dumps(value) if isinstance(value, str) and len(value) < 9 else shown
            with self.assertRaises(berth.DamagedFileError) as caught:
                berth.load(path)
            says = (f'{path}: is no index of a checkpoint: the file of "b\\u001b" is {shown}, which is not a name of a '
                    "file in the index's folder")
            self.assertEqual((str(caught.exception), berth.verify(path).error), (says, says))
        for weights, words in (({"a": 1}, "is 1, which is not a name"),
                               ({"a": "x.pt"}, "x.pt: (cannot be opened|there is no such object)"),
                               ({"a": "model.safetensors.index.json"}, "the index of a checkpoint in several files"),
                               ({"b": good, "c": good}, '"c" is not in')):
            path = self.index(weights)
            for call in (berth.load, berth.open):
                for f in (path, self.served(path)):
                    with self.assertRaisesRegex(berth.Error, words):
                        call(f)
        for data, words in ((b"", "it is no JSON"), (b"{}", "it has no weight_map"), (b"[" * 100000, "it is no JSON"),
                            (b"[]", r"it is \[\], not an object with"), (b"1e999", "it is Infinity, not an object with"),
                            (b'{"weight_map": 1}', "its weight_map is 1, not an object"),
                            (b'{"weight_map": {}, "metadata": NaN}', "it is no JSON: NaN is no JSON"),
                            (b'{"weight_map": {}, "weight_map": {}}', "it is no JSON: a name stands twice")):
            path = self.write("set/model.safetensors.index.json", data)
            for f in (path, self.served(path)):
                with self.assertRaisesRegex(berth.Error, f"{f}: is no index of a checkpoint: {words}") as caught:
                    berth.load(f)
                self.assertEqual(caught.exception.errno, 0)
        path = self.index()
        for limit, f in (("MAX_INDEX_NBYTES", path), ("MAX_URL_INDEX_NBYTES", self.served(path))):
            with unittest.mock.patch.object(_set, limit, os.path.getsize(path)):
                berth.load(f)
            with unittest.mock.patch.object(_set, limit, os.path.getsize(path) - 1):
                self.assertRaisesRegex(berth.Error, "it has more than [0-9]+ bytes", berth.load, f)
        os.remove(path)
        os.mkfifo(path)  # which nobody writes to: it is not waited for (F1)
        for call in (berth.load, berth.open):
            self.assertRaisesRegex(berth.Error, "it is no file: a pipe", call, path)

    def test_several_old_values_at_a_url(self):
        """The first one, as of a path."""
        with open(self.path("v.pt"), "wb") as file:
            for value in (FIRST, SECOND):
                torch.save(value, file, _use_new_zipfile_serialization=False)
        index = self.write("v.index.json", json.dumps({"weight_map": dict.fromkeys(FIRST, "v.pt")}).encode())
        for f in (self.path("v.pt"), self.served(self.path("v.pt")), index, self.served(index)):
            for options in ({}, {"encoding": "latin1"}, {"weights_only": False}):
                same(berth.load(f, **options), FIRST, resizable=False)

    def test_what_an_open_file_is(self):
        """As repr() and info say it."""
        path = self.index()
        warnings.simplefilter("ignore")
        dcp.save(SECOND, checkpoint_id=self.path("saved"))
        berth.save(SECOND, self.path("one/v.pt"))
        torch.save(SECOND, self.path("old.pt"), _use_new_zipfile_serialization=False)
        one, data = self.path("one/v.pt"), io.BytesIO(self.read(self.path("one/v.pt")))
        for f, name, kind in (
                (self.path("saved"), repr(self.path("saved")), "DCP directory"), (one, repr(one), "zip"),
                (self.path("one"), repr(one), "zip"), (self.served(one), repr(self.served(one)), "zip"),
                (data, f"an object of {io.BytesIO}", "zip"), (self.path("old.pt"), repr(self.path("old.pt")), "legacy"),
                (self.path("set/m-2.safetensors"), repr(self.path("set/m-2.safetensors")), "safetensors"),
                (self.index({"b": "m-2.safetensors"}), repr(path), "index of 1 file"),
                (self.path("set"), repr(path), "index of 1 file"),
                (self.served(path), repr(self.served(path)), "index of 1 file")):
            with berth.open(f) as file:
                self.assertEqual(repr(file), f"<berth.File {name}, {kind}, 1 tensor>")
                self.assertEqual(file.info["container"], kind.split(" of")[0])
            self.assertEqual(repr(file), f"<berth.File {name}, closed>")

    def test_names_of_files(self):
        """D2: the cases that tests/command/shards.py has, too."""
        for name, may_be in index_names.NAMES.items():
            with self.subTest(name):
                path = self.write("in/" + index_names.LISTED, index_names.index(name))
                if may_be:
                    berth.save({index_names.TENSOR: torch.ones(2)}, self.path("in/" + index_names.file_of(name)))
                for f in (path, self.served(path)):
                    if may_be:
                        self.assertEqual(berth.load(f)[index_names.TENSOR].tolist(), [1, 1])
                    else:
                        with self.assertRaisesRegex(berth.DamagedFileError, "is no index of a checkpoint"):
                            berth.load(f)

    def test_urls_of_the_files_of_an_index(self):
        """U1, U2, D2: beside the index, with its user and password, without its query."""
        for index, name, expected in (
                ("https://me:secret@host/a/m.index.json?q=/x#y", "m.pt", "https://me:secret@host/a/m.pt"),
                ("HTTP://host/m.index.json", "deep/\u00e9 %2e?#.pt", "HTTP://host/deep/%C3%A9%20%252e%3F%23.pt"),
                ("s3://bucket/a?/m.index.json", "deep/\u00e9 %?.pt", "s3://bucket/a?/deep/\u00e9 %?.pt")):
            self.assertEqual(_native.url_beside(index, name), expected)
        url = self.served(self.index()).replace("//", "//me:secret@", 1) + "?key=secret"
        with berth.open(url) as file:
            self.assertNotIn("secret", repr(file))
            same(pickle.loads(pickle.dumps(file))["b"], SECOND["b"], resizable=False)
        os.unlink(self.path("set/m-2.safetensors"))
        with self.assertRaisesRegex(berth.MissingFileError, "/set/m-2.safetensors: there is no such object") as caught:
            berth.load(url)
        self.assertNotIn("secret", str(caught.exception))
        with self.assertRaisesRegex(berth.ArgumentError, "NUL"):
            berth.load(url.replace("?", "\0?"))
        packed = self.write("v.gz", gzip.compress(b"a"))
        for f, end in ((packed, ""), (self.served(packed), ", where f is a copy of the object")):
            self.assertRaisesRegex(berth.Error, rf": berth.load\(gzip.open\(f\)\) reads it{end}$", berth.load, f)

    def test_time_grows_as_the_index_does(self):
        """Ten times the bytes take no hundred times as long."""
        shapes = {"names": lambda n: {f"{i}": "f" for i in range(n)},
                  "files": lambda n: {f"{i}": f"f{i}" for i in range(n - 1)} | {"z": ".."},
                  "one file": lambda n: {"a": "x/" * n}, "one name": lambda n: {"x" * n: ".."},
                  "surrogates": lambda n: {"a": "\ud800" * n}, "one tensor": lambda n: {"a" * n: "f"}}
        for shape, made in shapes.items():
            took = []
            for n in (3_000, 30_000):
                path = self.write("m.index.json", json.dumps({"weight_map": made(n)}).encode())
                tries = []
                for _ in range(3):
                    began = time.process_time()
                    with self.assertRaises(berth.Error):
                        berth.load(path)
                    tries.append(time.process_time() - began)
                took.append(min(tries))
            self.assertLess(took[1], 40 * took[0] + 0.01, (shape, took))

    def test_folders(self):
        path = self.index()
        os.unlink(path)
        same(set(berth.load(self.path("set/deep"))), set(FIRST))  # its one model file
        berth.save(SECOND, self.path("set/other.pt"))
        for folder, words in ((self.path("set"), r"2 files .*\(m-2.safetensors, other.pt\): name one"),
                              (self.folder, "no index, no model file and no .metadata")):
            for call in (berth.load, berth.open):
                with self.assertRaisesRegex(berth.ArgumentError, words):
                    call(folder)

    def test_a_dcp_directory(self):
        value = {"model": {"w": torch.arange(10.), "h": torch.ones(2, 2)}, "step": 7}
        warnings.simplefilter("ignore")
        dcp.save(value, checkpoint_id=self.path("saved"))
        path = self.path("saved")
        same(berth.load(path), value, resizable=False)
        with berth.open(path) as file, berth.config.patch("load.check", "data"):
            self.assertEqual((file["step"], file["model.h"].tolist()), (7, [[1, 1], [1, 1]]))
            self.assertTrue(file.verify())
        before = self.open_files()
        for call in (berth.load, berth.open):
            call(path)
        os.truncate(self.path("saved/__0_0.distcp"), 100)
        for call in (berth.load, berth.open):
            with self.assertRaisesRegex(berth.Error, "__0_0.distcp"):
                call(path)
        self.assertEqual(self.open_files(), before)

        class Evil:
            def __reduce__(self):
                return os.mkdir, (trap,)

        trap = self.path("trap")
        self.write("saved/.metadata", pickle.dumps(Evil()))
        for call in (berth.load, berth.open):
            with self.assertRaisesRegex(berth.UnsafeFileError, r"names posix mkdir, .*; nothing was run\Z"):
                call(path)
        report = berth.verify(path)
        self.assertRegex(report.error, r"names posix mkdir, .*; nothing was run\Z")
        self.assertEqual((report.intact, report.refused), (False, ["posix.mkdir"]))  # it is no Metadata
        dcp.save({"a": torch.ones(2), "h": argparse.Namespace()}, checkpoint_id=self.path("named"))
        with self.assertRaisesRegex(berth.UnsafeFileError, "argparse Namespace is not allowed"):
            berth.load(self.path("named"))
        report = berth.verify(self.path("named"))
        self.assertEqual((report.intact, report.refused), (True, ["argparse.Namespace"]))
        self.assertFalse(os.path.exists(trap))


class Interrupted(Folder):
    """^C at each bytecode of what opens a file in memory: its descriptor is closed."""

    def test_a_dcp_directory(self):
        ended = subprocess.CompletedProcess([], 1, stderr=b"no such file")
        self.addCleanup(setattr, subprocess, "run", subprocess.run)
        subprocess.run = lambda *_, **named: ended  # Popen has descriptors of its own
        os.mkdir(self.path("saved"))
        self.write("saved/.metadata", b"")
        for thread in threading.enumerate():  # what tests before this one have left: they open files, or read ahead
            if "(work)" in thread.name:
                thread.join(60)
        gc.collect()
        before, at = len(os.listdir("/proc/self/fd")), 0
        while self.ended(at):
            if len(os.listdir("/proc/self/fd")) != before:
                gc.collect()  # frames of an exception may be a cycle
            self.assertEqual(len(os.listdir("/proc/self/fd")), before, at)
            at += 1
        self.assertGreater(at, 50)

    def ended(self, at):
        """Whether ^C came at this bytecode of _set.py, counted from the first one of a load."""
        def trace(frame, event, _):
            nonlocal at
            if event == "call":
                frame.f_trace_opcodes = frame.f_code.co_filename == _set.__file__
            if event == "opcode" and frame.f_lineno is not None:  # else CPython 3.11 loses what it unwinds
                at -= 1
                if at == -1:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        tracer = sys.gettrace()
        try:
            sys.settrace(trace)
            berth.load(self.path("saved"))
        except (KeyboardInterrupt, berth.Error):
            pass
        finally:
            sys.settrace(tracer)
        return at < 0


class InOtherProcesses(Folder):
    def test_workers_of_a_data_loader(self):
        path = self.path("v.pt")
        berth.save(FIRST, path)
        for method, n in ("fork", 2), ("spawn", 1):  # each of these imports PyTorch
            with berth.open(path) as file:
                loader = torch.utils.data.DataLoader(Rows(file), batch_size=None, num_workers=n,
                                                     multiprocessing_context=method)
                self.assertTrue(torch.equal(torch.stack(list(loader)), FIRST["a.x"]), method)

    def test_pickles(self):
        path = self.path("v.pt")
        berth.save(FIRST, path)
        os.chdir(self.folder)
        self.addCleanup(os.chdir, "/")
        file = berth.open("v.pt")
        os.chdir("/")
        data = pickle.dumps(file)
        again = pickle.loads(data)
        self.assertEqual(repr(again), repr(file))
        same(again["a.x"], FIRST["a.x"], resizable=False)
        for changed in ({name: tensor + 1 for name, tensor in FIRST.items()}, {"a.x": torch.ones(1)}):  # of the same size
            berth.save(changed, path)
            with self.assertRaisesRegex(berth.FileError, "v.pt: has changed"):
                pickle.loads(data)
        with open(path, "rb") as real:
            for other in (real, io.BytesIO(self.read(path))):
                with berth.open(other) as file, self.assertRaisesRegex(TypeError, "pickled.*Open a path"):
                    pickle.dumps(file)
        again.close()
        with self.assertRaises(ValueError):
            pickle.dumps(again)
