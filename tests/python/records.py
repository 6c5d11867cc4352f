# SPDX-License-Identifier: BSD-3-Clause
"""Values that PyTorch pickles and unpickles, over Berth's archives."""

import collections
import functools
import io
import os
import pickle
import subprocess
import unittest
import zipfile

import berth
import cases
import torch
from saves import WRITES_ALL, Mine, MyTensor, comparable
from torch import nn

from folder import Folder
from same import same


class Raises:
    """Pickling it fails, after its tensors have been met."""

    def __init__(self):
        self.tensor = torch.ones(1000)

    def __reduce__(self):
        raise ZeroDivisionError("of __reduce__")


class Runs:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


class Box:
    def __init__(self, content):
        self.content = content


Point = collections.namedtuple("Point", "x y")


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LSTM(4, 2))


def optimizer():
    net = model()
    made = torch.optim.Adam(net.parameters())
    net[0](torch.ones(2, 3)).sum().backward()
    made.step()
    return made


def shared():
    base = torch.arange(10.)
    return Point(base, [Mine(a=base[2:4], b=base.view(2, 5).t()), Point(base, None)])


OTHERS = {
    "a module": model,
    "an optimizer": optimizer,
    "views in a namedtuple": shared,
    "a subclass of dict": lambda: Mine(a=torch.ones(2)),
    "a subclass of Tensor": lambda: torch.ones(3).as_subclass(MyTensor),
    "a function": lambda: [functools.partial, torch.ones(1)],
    "a large int": lambda: [2**5000],
    "no tensors": lambda: {frozenset({1}): Point(1, 2)},
    "an empty storage": lambda: Mine(a=torch.ones(0), b=torch.ones(2)),
}


def delta(function, *arguments, **named):
    """What a call adds to the counters, and its result."""
    def flat():
        return {(operation, way): n for operation, ways in berth.counters().items()
                for way, n in ways.items()}

    before = flat()
    result = function(*arguments, **named)
    return {key: n - before.get(key, 0) for key, n in flat().items() if n != before.get(key, 0)}, result


class Saves(Folder):
    def identical(self, value, **options):
        mine, theirs = self.path("berth/v.pt"), self.path("torch/v.pt")
        counted, _ = delta(berth.save, value, mine, **options)
        torch.save(value, theirs, **options)
        self.assertEqual(counted, {("save", "records"): 1})
        self.assertEqual(comparable(self.read(mine)), comparable(self.read(theirs)))
        return mine

    def test_the_bytes_of_torch_save(self):
        for name, make in OTHERS.items():
            with self.subTest(name):
                value = make()
                path = self.identical(value)
                buffers = io.BytesIO(b"before"), io.BytesIO(b"before")
                for buffer, save in zip(buffers, (berth.save, torch.save)):
                    buffer.seek(6)
                    save(value, buffer)
                data, theirs = (buffer.getvalue()[6:] for buffer in buffers)
                self.assertEqual(comparable(data), comparable(theirs))
                with open(path, "r+b") as file:
                    berth.save(value, file)
                    file.truncate()
                self.assertEqual(self.read(path), data)

    def test_other_picklers(self):
        for options in ({"pickle_protocol": 3}, {"pickle_protocol": 5}, {"pickle_module": cloned()}):
            with self.subTest(options):
                self.identical({"a": torch.ones(3), "b": [1]}, **options)

    @unittest.skipUnless(WRITES_ALL, "zipfile cannot compare records without a CRC")
    def test_where_torch_is_not_itself(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        value = {"a": torch.ones(10), "b": torch.ones(0)}
        with torch.serialization.skip_data():
            self.identical(value)
        with torch.device("meta"):
            self.identical(value)
        with FakeTensorMode(), torch.serialization.skip_data(materialize_fake_tensors=True):
            self.identical(torch.ones(1000, device="cuda"))

    def test_an_exception_of_the_pickler_leaves_the_old_file(self):
        """Y2"""
        path = self.write("v.pt", b"old")
        for value in (Raises(), [torch.ones(5), lambda: 1]):
            with self.assertRaises((ZeroDivisionError, pickle.PicklingError, AttributeError)):
                berth.save(value, path)
        buffer = io.BytesIO()
        with self.assertRaises(ZeroDivisionError):
            berth.save(Raises(), buffer)
        self.assertEqual((self.read(path), buffer.getvalue()), (b"old", b""))
        self.assertEqual(os.listdir(self.folder), ["v.pt"])

    def test_two_dtypes_of_one_storage_are_refused_as_by_torch(self):
        base = torch.arange(4.)
        for save in (berth.save, torch.save):
            with self.assertRaisesRegex(RuntimeError, "view the same data as different types"):
                save(Mine(a=base, b=base.view(torch.int32)), self.path("v.pt"))


def cloned():
    """A pickle module of another name."""
    import types

    module = types.ModuleType("other_pickle")
    module.__dict__.update({name: getattr(pickle, name) for name in ("Pickler", "Unpickler", "load")})
    return module


class Loads(Folder):
    def saved(self, value, name="v.pt"):
        torch.save(value, self.path(name))
        return self.path(name)

    def test_the_objects_of_torch_load(self):
        """Of every case of the peers, for memory and for maps."""
        for name, make in cases.CASES.items():
            if name == "storage_of_seven_bytes" and not WRITES_ALL:
                continue  # PyTorch 2.6 does not see that the record is longer
            path = self.saved(make())
            for mmap in (False, True):
                with self.subTest(name, mmap=mmap):
                    try:
                        theirs = torch.load(path, weights_only=False, mmap=mmap)
                    except RuntimeError:
                        with self.assertRaises(RuntimeError):
                            berth.load(path, weights_only=False, mmap=mmap)
                    else:
                        same(berth.load(path, weights_only=False, mmap=mmap), theirs)

    def test_classes_that_the_caller_trusts(self):
        for name, make in OTHERS.items():
            with self.subTest(name):
                path = self.saved(make())
                memory = io.BytesIO(self.read(path))
                for source in (path, os.fsencode(path), memory):
                    counted, mine = delta(berth.load, source, weights_only=False)
                    self.assertEqual(counted, {("load", "records"): 1})
                    again = io.BytesIO()
                    berth.save(mine, again)
                    expected = io.BytesIO()
                    torch.save(torch.load(path, weights_only=False), expected)
                    self.assertEqual(comparable(again.getvalue()), comparable(expected.getvalue()))
                memory.close()  # nobody has its bytes any more

    def test_classes_that_the_program_allows(self):
        path = self.saved([Box(torch.ones(2)), Point(1, 2)])
        with self.assertRaisesRegex(berth.UnsafeFileError, "Box"):
            berth.load(path)
        with torch.serialization.safe_globals([Point]), \
                self.assertRaisesRegex(berth.UnsafeFileError, "Box"):
            berth.load(path)
        with torch.serialization.safe_globals([Box, Point]):
            for source in (path, io.BytesIO(self.read(path))):
                counted, (box, point) = delta(berth.load, source)
                self.assertEqual(counted, {("load", "records"): 1})
                self.assertEqual((type(box), type(point), box.content.sum()), (Box, Point, 2))

    def test_code_runs_only_if_the_caller_asks_for_it(self):
        """Y1"""
        mark = self.path("mark")
        path = self.saved({"t": torch.ones(2), "evil": Runs(mark)})
        for source in (path, io.BytesIO(self.read(path))):
            with self.assertRaisesRegex(berth.UnsafeFileError, "open"):
                berth.load(source)
        with torch.serialization.safe_globals([Mine]), self.assertRaises(berth.UnsafeFileError):
            berth.load(path)
        os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
        try:
            with self.assertRaises(berth.UnsafeFileError):
                berth.load(path)
        finally:
            del os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"]
        self.assertFalse(os.path.exists(mark))
        counted, value = delta(berth.load, path, weights_only=False)
        value["evil"].close()
        self.assertTrue(os.path.exists(mark))
        self.assertEqual(counted, {("load", "records"): 1})

    def test_places(self):
        path = self.saved(model())
        self.assertTrue(all(each.is_meta for each in berth.load(
            path, "meta", weights_only=False).parameters()))
        moved = []
        berth.load(path, lambda storage, place: moved.append(place) or storage, weights_only=False)
        self.assertEqual(set(moved), {"cpu"})

    def test_the_containers_are_checked(self):
        """Y3"""
        path = self.saved(Mine(a=torch.arange(1000.), b=torch.ones(1)))
        data = self.read(path)
        cut = self.write("cut.pt", data[:-100])
        folder = self.path("unzipped")
        with zipfile.ZipFile(path) as file:
            file.extractall(folder)
        for options, name in (("-0", "stored"), ("-9", "deflated")):
            subprocess.run(["zip", "-qr", options, self.path(name + ".pt"), "v"], cwd=folder, check=True)
        short = self.path("short.pt")
        with zipfile.ZipFile(path) as file, zipfile.ZipFile(short, "w") as made:
            for entry in file.infolist():
                made.writestr(entry.filename, file.read(entry)[:40 if "data/0" in entry.filename else None])

        for mmap in (False, True):
            for name in ("stored.pt", "deflated.pt"):
                loaded = berth.load(self.path(name), weights_only=False, mmap=mmap)
                self.assertEqual(loaded["a"].sum(), 499500)
            for file, message in ((cut, "cut|end|directory"), (short, "data/0 has 40 bytes, its "
                                                               "storage has 4000")):
                with self.assertRaisesRegex(berth.Error, message):
                    berth.load(file, weights_only=False, mmap=mmap)

    def test_what_is_missing(self):
        with self.assertRaises(FileNotFoundError):
            berth.load(self.path("none.pt"), weights_only=False)
        path = self.path("v.pt")
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("v/other", b"")
        with self.assertRaisesRegex(RuntimeError, "data.pkl"):
            berth.load(path, weights_only=False)
