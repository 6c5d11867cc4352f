# SPDX-License-Identifier: BSD-3-Clause
"""berth.open: names, tensors, slices, numpy; and berth.verify."""

import collections
import gc
import io
import mmap
import os
import subprocess
import sys
import time

import berth
import numpy
import torch
from berth._open import OF_ML_DTYPES
from pickles import ONE, PROTO, archive, get, put, tensor, text

from folder import Folder

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None


class Open(Folder):
    def setUp(self):
        super().setUp()
        self.value = {
            "model": collections.OrderedDict(a=torch.arange(24.).reshape(2, 3, 4),
                                             b=torch.arange(6).reshape(2, 3).t()),
            "half": torch.ones(3, dtype=torch.bfloat16), "scalar": torch.tensor(2.5),
            "empty": torch.ones(0, 3), "conj": torch.tensor([1 + 2j, 3 - 1j]).conj(),
            "epoch": 7, "list": [1, {"x": "y"}], "meta": torch.ones(2, device="meta"),
            "neg": torch.tensor([1 + 2j]).conj().imag,
        }
        self.file = self.path("v.pt")
        torch.save(self.value, self.file)

    def test_names(self):
        names = ["model.a", "model.b", "half", "scalar", "empty", "conj", "meta", "neg"]
        with berth.open(self.file) as file:
            self.assertEqual(file.keys(), names)
            self.assertEqual(list(file), names)
            self.assertEqual(len(file), len(names))
            for name in ("model.a", "['model']['b']"):
                self.assertIn(name, file)
            for name in ("epoch", "model", "nothing"):
                self.assertNotIn(name, file)
        berth.save({"a": {"b": torch.ones(1)}, "a.b": torch.ones(2)}, self.file)
        with berth.open(self.file) as file:
            self.assertEqual([name in file for name in (*file, "a.b")], [True, True, False])  # it has two meanings

    def test_names_without_end(self):
        """23 KB with names of 16 GB in all (P3); values are found all the same."""
        data = archive(PROTO + b"(" + text("k" * 20000) + put(0) + tensor() + put(1) + (b"}" + get(0)) * 400 + b"](" +
                       get(1) * 2000 + b"e" + b"s" * 400 + b"t.", ONE)
        began = time.process_time()
        with berth.open(io.BytesIO(data)) as file:
            for call in (file.keys, file.items, lambda: len(file)):
                with self.assertRaisesRegex(berth.Error, "^memory: names above 1024 bytes take more than 16 MiB in all"):
                    call()
            self.assertEqual(repr(file), "<berth.File an object of <class '_io.BytesIO'>, tensors whose names are too long>")
            self.assertTrue("1" in file and "2" not in file)
            self.assertEqual(file["1"].shape, (1,))
        self.assertLess(time.process_time() - began, 20)

    def test_values(self):
        with berth.open(self.file) as file:
            for name in ("half", "scalar", "empty", "conj"):
                self.assertTrue(torch.equal(file[name], self.value[name]))
            self.assertEqual(file["model.b"].stride(), (1, 3))
            self.assertEqual((file["epoch"], file["list"], file["list.1.x"]), (7, [1, {"x": "y"}], "y"))
            self.assertEqual(type(file["model"]), collections.OrderedDict)
            with self.assertRaisesRegex(KeyError, "nothing"):
                file["nothing"]
            with self.assertRaisesRegex(KeyError, "nothing"):
                file.slice("nothing")
            with self.assertRaisesRegex(KeyError, "nothing"):
                file.numpy("nothing")

    def test_verify(self):
        """Of what was opened: a path, a file object, memory."""
        good = self.read(self.file)
        at = good.index(self.value["model"]["a"].numpy().tobytes())
        bad = self.write("bad.pt", good[:at] + b"?" + good[at + 1:])
        for path, is_good in ((self.file, True), (bad, False)):
            with open(path, "rb") as descriptor:
                for f in (path, descriptor, io.BytesIO(self.read(path))):
                    with berth.open(f) as file:
                        report = file.verify()
                        self.assertEqual((bool(report), report.n_bad), (is_good, int(not is_good)))
                        self.assertEqual(len(report.records), len(berth.verify(path).records))
            with self.assertRaises(ValueError):
                file.verify()
        with open(self.file, "rb") as descriptor:
            file = berth.open(descriptor)
        with self.assertRaises(ValueError):
            file.verify()

    def test_tensors_outlive_the_file(self):
        with berth.open(self.file) as file:
            tensor, array = file["model.a"], file.numpy("model.b")
        os.unlink(self.file)
        gc.collect()
        self.assertTrue(torch.equal(tensor, self.value["model"]["a"]))
        self.assertTrue((array == self.value["model"]["b"].numpy()).all())
        with self.assertRaisesRegex(ValueError, "closed"):
            file["model.a"]
        file.close()

    def test_slices(self):
        whole = self.value["model"]["a"]
        with berth.open(self.file) as file:
            part = file.slice("model.a")
            self.assertEqual((part.dtype, part.shape, len(part)), ("float32", (2, 3, 4), 2))
            for index in (0, -1, slice(1, 2), slice(0, 0), (slice(None), 1), (..., slice(1, 3)),
                          (1, slice(0, 2), -2), ..., (), (0, ...), (slice(-1, None), slice(5, 9))):
                with self.subTest(index):
                    self.assertTrue(torch.equal(part[index], whole[index]))
                    self.assertEqual(part[index].shape, whole[index].shape)
            for index in (2, (0, 0, 0, 0), slice(None, None, 2), (0, 3)):
                with self.subTest(index), self.assertRaises(IndexError):
                    part[index]
            for index in (True, (0, False), torch.tensor(True), 1.0, "0"):
                with self.subTest(index), self.assertRaises(TypeError):
                    part[index]
            for name in ("model.b", "half", "scalar", "empty", "conj"):
                tensor = self.value["model"]["b"] if name == "model.b" else self.value[name]
                self.assertTrue(torch.equal(file.slice(name)[...], tensor), name)

    def test_numpy(self):
        with berth.open(self.file) as file:
            self.assertTrue((file.numpy("model.a") == self.value["model"]["a"].numpy()).all())
            self.assertEqual(file.numpy("model.b").strides, (8, 24))
            self.assertEqual(file.numpy("empty").shape, (0, 3))
            self.assertEqual(file.numpy("scalar")[()], 2.5)
            for name in ("conj", "meta", "neg"):
                with self.assertRaises(TypeError):
                    file.numpy(name)

    def test_numpy_by_ml_dtypes(self):
        kinds = [getattr(torch, name) for name in OF_ML_DTYPES if hasattr(torch, name)]
        value = {str(kind): torch.arange(4 * kind.itemsize, dtype=torch.uint8).view(kind).reshape(2, 2).t()
                 for kind in kinds}
        berth.save(value, self.file)
        with berth.open(self.file) as file:
            for kind in kinds:
                if ml_dtypes and hasattr(ml_dtypes, str(kind)[6:]):
                    array = file.numpy(str(kind))
                    self.assertEqual((array.shape, array.dtype.name), ((2, 2), str(kind)[6:]))
                    self.assertEqual(array.T.tobytes(), bytes(range(4 * kind.itemsize)))
                else:
                    with self.assertRaisesRegex(TypeError, "pip install ml_dtypes"):
                        file.numpy(str(kind))

    def test_numpy_without_torch(self):
        code = ("import sys, berth\n"
                "with berth.open(sys.argv[1]) as file:\n"
                "    assert file.numpy('model.a').sum() == 276, file.numpy('model.a')\n"
                "assert 'torch' not in sys.modules")
        subprocess.run([sys.executable, "-c", code, self.file], check=True)

    def test_other_sources(self):
        with berth.open(io.BytesIO(self.read(self.file))) as file:
            tensor = file["model.a"]
        gc.collect()
        self.assertTrue(torch.equal(tensor, self.value["model"]["a"]))
        with open(self.file, "rb") as source, berth.open(source) as file:
            self.assertEqual(file["epoch"], 7)

    def test_safetensors(self):
        from safetensors.torch import save_file

        save_file({"a": torch.ones(3)}, self.path("v.safetensors"), metadata={"format": "pt", "ü": "x"})
        with berth.open(self.path("v.safetensors")) as file:
            self.assertEqual(file.metadata, {"format": "pt", "ü": "x"})
            self.assertEqual(file.info["container"], "safetensors")
            self.assertEqual(file["a"].tolist(), [1, 1, 1])
        with berth.open(self.file) as file:
            self.assertIsNone(file.metadata)

    def test_info(self):
        with berth.open(self.file) as file:
            info = file.info
        self.assertEqual((info["container"], info["archive"], info["n_tensors"], info["nbytes"]),
                         ("zip", "v", 8, os.path.getsize(self.file)))
        self.assertIs(info["repacked"], False)
        aligned = b"/.storage_alignment" in self.read(self.file)  # PyTorch 2.6 does not write it
        self.assertEqual((info["byteorder_recorded"], info["calculated_offsets"]), (True, aligned))
        torch.save({}, self.path("b.pt"), _disable_byteorder_record=True)  # PyTorch writes it all the same, at the end
        with berth.open(self.path("b.pt")) as file:
            self.assertEqual((file.info["byteorder_recorded"], file.info["calculated_offsets"]), (True, False))


class Verify(Folder):
    def test_a_good_file(self):
        torch.save([torch.ones(3), torch.ones(0)], self.path("v.pt"))
        report = berth.verify(self.path("v.pt"))
        self.assertTrue(report)
        self.assertEqual((report.error, report.n_bad, report.n_storages), ("", 0, 2))
        record = report.records[0]
        self.assertEqual((record.name, record.crc32, record.error), ("data.pkl", "good", None))
        self.assertEqual(berth.verify(io.BytesIO(self.read(self.path("v.pt")))), report)

    def test_bad_files(self):
        torch.save([torch.ones(100)], self.path("v.pt"))
        data = bytearray(self.read(self.path("v.pt")))
        data[data.index(b"\0\0\x80\x3f\0\0\x80\x3f") + 40] ^= 1
        report = berth.verify(self.write("bad.pt", data))
        self.assertFalse(report)
        self.assertEqual([each.name for each in report.records if each.error], ["data/0"])
        self.assertIn("data/0", report.error)
        self.assertFalse(berth.verify(self.write("cut.pt", data[:100])))
        with self.assertRaises(FileNotFoundError):
            berth.verify(self.path("none.pt"))


class Reading:
    """A file object that lends what it has, and cannot seek."""

    def __init__(self, data):
        self.data = data

    def read(self, *_):
        return self.data


class Filling(io.RawIOBase):
    """One that fills the memory that it gets, and may keep it."""

    def __init__(self, data, keeps=False):
        self.file, self.kept, self.keeps, self.nbytes = io.BytesIO(data), None, keeps, len(data)

    def readinto(self, memory):
        if self.keeps and len(memory) == self.nbytes:
            self.kept = memory
        return self.file.readinto(memory)

    def seek(self, *arguments):
        return self.file.seek(*arguments)

    def tell(self):
        return self.file.tell()

    def read(self, *arguments):
        return self.file.read(*arguments)


class Lent(Folder):
    """Tensors are private, whatever they come from (Y10)."""

    def sources(self, data):
        """(what, the object, a function that gives the bytes it has now)"""
        path = self.write("v.pt", data)
        yield "path", path, lambda: self.read(path)
        with open(path, "rb") as file:
            yield "file", file, lambda: self.read(path)
        with open(path, "rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            yield "mmap", memory, lambda: memory[:]
        buffer = io.BytesIO(data)
        yield "BytesIO", buffer, buffer.getvalue
        for what in (data, bytearray(data), memoryview(data)):
            yield type(what).__name__, Reading(what), lambda what=what: bytes(what)
        yield "readinto", Filling(data), lambda: data
        file = Filling(data, keeps=True)
        yield "readinto that keeps it", file, lambda: data if file.kept is None else bytes(file.kept)

    def test_what_is_written_to_tensors(self):
        value = {"a": torch.arange(50.), "b": torch.arange(6).reshape(2, 3)}
        value["view"] = value["a"][3:7]
        for is_zip in (True, False):
            buffer = io.BytesIO()
            torch.save(value, buffer, _use_new_zipfile_serialization=is_zip)
            for what, source, bytes_now in self.sources(buffer.getvalue()):
                for use in (self.load, self.open, self.array, self.rows):
                    with self.subTest(what, is_zip=is_zip, use=use.__name__):
                        use(source)
                        self.assertEqual(bytes_now(), buffer.getvalue())

    def again(self, source):
        if hasattr(source, "seek"):
            source.seek(0)
        return source

    def load(self, source):
        if isinstance(source, Reading):
            return
        loaded = berth.load(self.again(source))
        loaded["a"].zero_()
        loaded["b"].zero_()
        self.assertEqual(loaded["view"].tolist(), [0, 0, 0, 0])

    def open(self, source):
        with berth.open(self.again(source)) as file:
            for name in ("a", "b"):
                file[name].zero_()
            self.assertEqual((file["view"].tolist(), file["a"].sum()), ([0, 0, 0, 0], 0))

    def array(self, source):
        with berth.open(self.again(source)) as file:
            array = file.numpy("a")
            self.assertTrue(array.flags.writeable)
            array[:] = 0
            self.assertEqual(file["view"].tolist(), [0, 0, 0, 0])

    def rows(self, source):
        with berth.open(self.again(source)) as file, berth.rows(1 << 16) as rows:
            table = rows.add(file, "b")
            rows.gather(table, [1, 0]).zero_()
            self.assertEqual(rows.gather(table, [1, 0]).tolist(), [[3, 4, 5], [0, 1, 2]])
