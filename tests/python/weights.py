# SPDX-License-Identifier: BSD-3-Clause
"""berth.safetensors beside the package: the same results for every call, and the same classes of errors."""

import contextlib
import gc
import itertools
import json
import os
import struct
import sys
import threading
import time
import types
from unittest import mock

import berth
import berth.safetensors as ours
import berth.safetensors.numpy as our_numpy
import berth.safetensors.torch as our_torch
import numpy
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from berth import _native, _records, _set
from berth.safetensors import _install, _prefetch

import sets
from folder import Folder

TENSORS = {
    "b": torch.arange(24.).reshape(2, 3, 4),
    "a": torch.arange(4, dtype=torch.uint8),
    "": torch.zeros(0, 3),
    "one": torch.tensor(3),
    "ä'\"]": torch.ones(2, dtype=torch.bfloat16),
    "['a']": torch.ones(3, dtype=torch.complex64),
    "f8": torch.ones(5).to(torch.float8_e4m3fn),
}
ARRAYS = {
    "b": numpy.arange(24.).reshape(2, 3, 4),
    "big": numpy.arange(4, dtype=">i4"),
    "": numpy.zeros((0, 3)),
    "one": numpy.array(True),
}
# An expression -> its value, or the class and the beginning of what it raises.
ANSWERS = {
    "m.safe_open(file, 'tf')": ("SafetensorError", "framework tf is invalid: Berth has pt and np; the package"),
    "m.safe_open(file, 'xx')": ("SafetensorError", "framework xx is invalid"),
    "m.safe_open(file, 5)": ("TypeError", "argument 'framework': a str, not int"),
    "m.safe_open(file, 'np', 'cuda')": ("SafetensorError", "Device cuda is not supported for framework numpy"),
    "m.safe_open(file, 'pt', None)._device": "cpu",
    "m.safe_open(file, 'pt', 0)._device": 0,
    "m.safe_open(file, 'pt', 'mps:0')._device": "mps",
    "m.safe_open(file, 'pt', torch.device('cuda', 1))._device": "cuda:1",
    "m.safe_open(file, 'pt', -1)": ("SafetensorError", "device -1 is invalid"),
    "m.safe_open(file, 'pt', True)": ("SafetensorError", "device True is invalid"),
    "m.safe_open([], 'pt')": ("TypeError", "a list of files is one of paths, and not empty"),
    "m.safe_open([5], 'pt')": ("TypeError", "a list of files is one of paths, and not empty"),
    "m.safe_open(b'file', 'pt')": ("TypeError", "argument 'filename': a str, an os.PathLike or a list of them, not bytes"),
    "m.safe_open(path('loop'), 'pt')": ("FileError", ""),
    "m.safe_open(file, 'np').get_slice('b')[..., 9]": ("SafetensorError", "Error during slicing [..., 9] with shape [2, 3, 4]"),
    "m.safe_open(file, 'np').prefetch()": ("SafetensorError", 'prefetch needs framework="pt"'),
    "m.safe_open(file, 'pt').prefetch(['b'])": ("TypeError", "argument 'plan': a dict of names and slices, not list"),
    "m.safe_open(file, 'pt').prefetch(threads=0)": ("ValueError", "threads: 1 or more, not 0"),
    "len(m.safe_open(file, 'pt').prefetch({'b': None, 'a': None}, threads=1))": 2,
    "m.safe_open(file, 'pt').prefetch({'b': None}, device='meta')": ("SafetensorError", "device meta is invalid"),
    "m.safe_open(file, 'pt').get_tensor_meta('no')": ("SafetensorError", "File does not contain tensor no"),
    "repr(m.safe_open(path('m.pt'), 'pt').get_tensor_meta('w'))": "TensorMeta(dtype='I16', shape=[2, 1], data_offsets=None)",
    "repr(m.TensorSpec(dtype='int16', shape=[3], data_ptr=8, data_len=6))":
        "TensorSpec(dtype='I16', shape=[3], data_ptr=8, data_len=6)",
    "m.serialize({'x': 5})": ("TypeError", "a tensor is a TensorSpec by its name, not <class 'int'> by <class 'str'>"),
    "m.serialize({5: m.TensorSpec(dtype='int16', shape=[0], data_ptr=8, data_len=0)})":
        ("TypeError", "a tensor is a TensorSpec by its name, not <class 'berth.safetensors._save.TensorSpec'> by <class 'int'>"),
    "np.save([])": ("TypeError", "the arrays are a dict of them by their names, not <class 'list'>"),
    "np.save({'a': [1]})": ("TypeError", "a is of <class 'list'>, not a numpy.ndarray"),
    "pt.save_model(types.SimpleNamespace(state_dict=lambda: {'a': w[:2], 'b': w[1:]}), path('no'))":
        ("RuntimeError", "these tensors share memory, and none of them has all of it: ['a', 'b']. A file would have"),
}
INDICES = [
    "...", ":", "()", "[]", "1", "-1", "0, 1", "0, 1, 2", "..., 2", "0, ..., 1", "0, ...", ":, 1:", ":, 1:2, ::2", "::2", "1:1",
    "2:", ":2", ":9", "0:1, :, -1", "numpy.int64(1)", "-3", "5", ":, 7", "0, 0, 0, 0", "..., ...", "[0]", "None", "1.5", "True",
    "'a'", "::-1", "::0", "-1:", "[0, 1], 0", "torch.tensor([0, 1])", ":, [2, 0]", ":, :, :, :", ":, 9:"
]  # not 1:0, for which the package has no answer  # yapf: disable


def outcome(function):
    """(a name of the class, or the result; what it says)"""
    try:
        return "result", function()
    except Exception as error:
        return type(error).__name__, str(error)


def made(kind, entries, data=bytes(64)):
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


def taken(loader, name):
    """The outcome of take(), or None: it waits for ever."""
    found = []
    thread = threading.Thread(target=lambda: found.append(outcome(lambda: loader.take(name))), daemon=True)
    thread.start()
    thread.join(30)
    return found[0] if found else None


class Weights(Folder):
    def setUp(self):
        super().setUp()
        self.file = self.path("w.safetensors")
        safetensors.torch.save_file(TENSORS, self.file, {"format": "pt", "x": "y"})

    def same(self, mine, theirs):
        self.assertEqual(type(mine), type(theirs))
        if isinstance(mine, torch.Tensor):
            self.assertEqual((mine.dtype, mine.shape), (theirs.dtype, theirs.shape))
            self.same_bytes(mine.shape, *(each.contiguous().flatten().view(torch.uint8).numpy() for each in (mine, theirs)))
        elif isinstance(mine, numpy.ndarray):
            self.assertEqual((mine.dtype, mine.shape), (theirs.dtype, theirs.shape))
            self.same_bytes(mine.shape, *(numpy.frombuffer(each.tobytes(), numpy.uint8) for each in (mine, theirs)))
        elif isinstance(mine, dict):
            self.assertEqual(*(list(each) if torch.is_tensor(each.get("b")) else sorted(each) for each in (mine, theirs)))
            for key in mine:
                self.same(mine[key], theirs[key])
        else:
            self.assertEqual(mine, theirs)

    def same_bytes(self, shape, mine, theirs):
        differ = numpy.flatnonzero(mine != theirs)
        if differ.size:
            at = differ[0]
            self.fail(f"{tuple(shape)}: {differ.size} of {mine.size} bytes differ, the first is byte {at}: {mine[at]}, not {theirs[at]}")

    def test_every_call_of_a_file(self):
        for framework, backend in itertools.product(("pt", "np"), ("mmap", "pread")):
            with ours.safe_open(self.file, framework, backend=backend) as mine, \
                    safetensors.safe_open(self.file, framework, backend=backend) as theirs:
                for call in ("keys()", "offset_keys()", "metadata()", "__enter__() is f", "get_tensor('no')", "get_slice('no')",
                             "get_tensor(1)", "get_tensor('\\ud800')"):
                    with self.subTest(framework=framework, backend=backend, call=call):
                        mine_is, theirs_is = (outcome(lambda: eval("f." + call, {"f": f})) for f in (mine, theirs))
                        self.assertEqual(mine_is[0], theirs_is[0])
                        if mine_is[0] == "result":
                            self.same(mine_is[1], theirs_is[1])
                for key in set(theirs.keys()) - ({"f8"} if framework == "np" else set()):  # which numpy has not
                    with self.subTest(framework=framework, backend=backend, key=key):
                        mine_is, theirs_is = (outcome(lambda: f.get_tensor(key)) for f in (mine, theirs))
                        self.assertEqual(mine_is[0], theirs_is[0])
                        if mine_is[0] == "result":
                            self.same(mine_is[1], theirs_is[1])
                        self.assertEqual(mine.get_slice(key).get_shape(), theirs.get_slice(key).get_shape())
                        self.assertEqual(mine.get_slice(key).get_dtype(), theirs.get_slice(key).get_dtype())
                if framework == "pt":  # numpy has no bfloat16 of its own
                    self.same(mine.get_tensors(), theirs.get_tensors())
            for call in ("keys()", "get_tensor('a')", "__exit__(None, None, None)", "get_slice('a')", "metadata()"):
                self.assertEqual(*(outcome(lambda: eval("f." + call, {"f": f})) for f in (mine, theirs)))

    def test_every_answer(self):
        torch.save({"w": torch.ones(2, 1, dtype=torch.int16)}, self.path("m.pt"))
        names = {"m": ours, "np": our_numpy, "pt": our_torch, "torch": torch, "types": types, "w": torch.ones(3),
                 "file": self.file, "path": self.path}
        os.symlink("loop", self.path("loop"))
        for call, expected in ANSWERS.items():
            with self.subTest(call=call):
                kind, found = outcome(lambda: eval(call, names))
                if kind != "result":
                    found = kind, found[:len(expected[1])] if isinstance(expected, tuple) else found
                self.assertEqual(found, expected)
        self.assertFalse(os.path.exists(self.path("no")))

    def test_what_the_head_says(self):
        data = self.read(self.file)
        head = json.loads(data[8:8 + struct.unpack_from("<Q", data)[0]])
        with ours.safe_open(self.file, "np") as file:
            for key in TENSORS:
                meta, of = file.get_tensor_meta(key), head[key]
                self.assertEqual((meta.dtype, meta.shape, list(meta.data_offsets)), (of["dtype"], of["shape"], of["data_offsets"]))

    def test_every_index(self):
        for framework, backend in itertools.product(("pt", "np"), ("mmap", "pread")):
            with ours.safe_open(self.file, framework, backend=backend) as mine, \
                    safetensors.safe_open(self.file, framework, backend=backend) as theirs:
                for index in INDICES:
                    with self.subTest(framework=framework, backend=backend, index=index):
                        names = {"torch": torch, "numpy": numpy}
                        mine_is, theirs_is = (outcome(lambda: eval(f"f[{index}]", {"f": f.get_slice("b"), **names}))
                                              for f in (mine, theirs))
                        if mine_is[0] == theirs_is[0] == "result":
                            self.same(mine_is[1], theirs_is[1])
                        else:
                            self.assertEqual(mine_is, theirs_is)

    def test_a_backend_opens_once(self):
        """Of what is mapped a later change of the file is seen; not of what is read."""
        self.write("set.safetensors.index.json", json.dumps({"weight_map": {"a": "w.safetensors"}}).encode())
        for file in (self.file, [self.file], self.path("set.safetensors.index.json"), self.folder):
            for backend, changes in (("mmap", True), ("pread", False)):
                safetensors.torch.save_file({"a": torch.zeros(4 << 20, dtype=torch.uint8)}, self.file)
                with self.subTest(file=file, backend=backend), mock.patch.object(_native, "open", wraps=_native.open) as opened, \
                        ours.safe_open(file, "pt", backend=backend) as weights:
                    self.assertEqual(opened.call_count, 1)
                    tensor = weights.get_tensor("a")
                    with open(self.file, "r+b") as written:
                        written.seek(-1, os.SEEK_END)
                        written.write(b"1")
                    self.assertEqual(tensor[-1] != 0, changes)

    def test_bytes_of_saves(self):
        whole = torch.arange(16, dtype=torch.uint8)
        for tensors in (TENSORS, {}, {"x": TENSORS["b"][1]}, {"x": torch.ones(4)[:2], "y": torch.ones(4)[2:]},
                        {"x": whole[:8].view(torch.float32), "y": whole[8:]}):
            for metadata in (None, {"x": "y\n"}, *[{}] * bool(tensors)):  # of neither the package writes no JSON
                theirs = safetensors.torch.save(tensors, metadata)
                self.assertEqual(our_torch.save(tensors, metadata), theirs)
                our_torch.save_file(tensors, self.path("mine"), metadata)
                self.assertEqual(self.read(self.path("mine")), theirs)
        for tensors, metadata in (({}, {}), ({"x": TENSORS["b"]}, {}), ({}, None)):
            path = self.write("read", our_torch.save(tensors, metadata))
            for module in (ours, safetensors):
                with module.safe_open(path, "pt") as file:
                    self.assertEqual((file.keys(), file.metadata()), (list(tensors), metadata))
        turned = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64).conj()  # of which the package writes what lies there
        self.assertEqual(our_torch.save({"x": turned}), safetensors.torch.save({"x": turned.resolve_conj()}))
        self.assertEqual(our_torch.save({"x": turned[:1].imag}), safetensors.torch.save({"x": turned[:1].imag.resolve_neg()}))
        columns = {"columns": numpy.arange(6).reshape(2, 3).T}  # of which the package takes the rows
        self.same(our_numpy.load(our_numpy.save(columns)), {"columns": numpy.ascontiguousarray(columns["columns"])})
        theirs = safetensors.numpy.save(ARRAYS, {"x": "y"})
        self.assertEqual(our_numpy.save(ARRAYS, {"x": "y"}), theirs)
        our_numpy.save_file(ARRAYS, self.path("np"), {"x": "y"})
        self.assertEqual(self.read(self.path("np")), theirs)
        for mine in (our_numpy.load(theirs), our_numpy.load_file(self.path("np"))):
            self.same(mine, safetensors.numpy.load_file(self.path("np")))
        self.same(our_torch.load(self.read(self.file)), safetensors.torch.load_file(self.file))

    def test_what_is_refused_is_refused_by_the_same_class(self):
        base = torch.ones(4)
        many = torch.ones(2, 3)
        for call in ("save_file({'a': many.T}, f)", "save_file({'a': base, 'b': base[:2]}, f)",
                     "save_file({'a': base[:3], 'b': base[2:]}, f)", "save_file([base], f)", "save_file({'a': 1}, f)",
                     "save_file({1: base}, f)", "save_file({'a': many.to_sparse()}, f)", "save_file({'a': base.to('meta')}, f)",
                     "save_file({'a': base}, f, {'a': 1})", "save_file({'a': base}, '/proc/none/x')", "save_file({'a': base}, folder)",
                     "load_file('/proc/none/x')", "load_file(f, 'nowhere')", "load_file(f, backend='x')", "load(b'')", "load(b'x' * 100)",
                     "load(5)", "load_file(5)"):
            with self.subTest(call=call):
                mine, theirs = (outcome(lambda: eval("m." + call, {
                    "m": module, "many": many, "base": base, "folder": self.folder, "f": self.path("no")}))
                    for module in (our_torch, safetensors.torch))
                self.assertEqual(mine[0], theirs[0], (mine, theirs))
                self.assertFalse(os.path.exists(self.path("no")))
        for nbytes in (0, 4):  # the package reads what lies behind
            cut = torch.ones(4)
            cut.untyped_storage().resize_(nbytes)
            self.assertRaisesRegex(ours.SafetensorError, f"^x: its storage, of {nbytes} bytes", our_torch.save, {"x": cut})
        for dtype in (torch.complex128, torch.bits8):  # the package: KeyError
            self.assertRaisesRegex(ours.SafetensorError, f'^"x": safetensors has no dtype for {str(dtype)[6:]}$', our_torch.save,
                                   {"x": torch.ones(16, dtype=torch.uint8).view(dtype)})

    def test_raw_tensors(self):
        array = numpy.arange(6, dtype=numpy.int16)
        for module in (ours, safetensors):
            spec = module.TensorSpec(dtype="int16", shape=[2, 3], data_ptr=array.ctypes.data, data_len=12)
            self.assertEqual((spec.dtype, spec.shape, spec.data_len), ("I16", [2, 3], 12))
            for name in ("dtype", "shape", "data_ptr", "data_len"):
                self.assertRaises(AttributeError, setattr, spec, name, 1)
            packed = module.TensorSpec(dtype="float4_e2m1fn_x2", shape=[3], data_ptr=array.ctypes.data, data_len=3)
            self.assertEqual((packed.dtype, packed.shape), ("F4", [6]))
            made = module.serialize({"x": spec, "p": packed}, {"a": "b"})
            module.serialize_file({"x": spec, "p": packed}, self.path("raw"), {"a": "b"})
            self.assertEqual(self.read(self.path("raw")), made)
            self.assertEqual(made, safetensors.serialize(*self.theirs(array)))
            self.assertEqual(sorted(ours.deserialize(made)), sorted(safetensors.deserialize(made)))
        for arguments in ({"dtype": "F32"}, {"dtype": "int16", "data_len": 5}, {"dtype": "int16", "data_ptr": -1},
                          {"dtype": "int16", "data_ptr": 1 << 64}):
            mine, theirs = (outcome(lambda: module.serialize({"x": module.TensorSpec(**{
                "shape": [3], "data_ptr": array.ctypes.data, "data_len": 6, **arguments})})) for module in (ours, safetensors))
            self.assertEqual(mine[0], theirs[0], (mine, theirs))

        self.assertEqual(ours.TensorSpec(dtype="int16", shape=[3], data_ptr=5, data_len=6).data_ptr, 5)
        nowhere = ours.TensorSpec(dtype="int16", shape=[3], data_ptr=0, data_len=6)
        self.assertRaisesRegex(ours.SafetensorError, "^x: its address is 0$", ours.serialize, {"x": nowhere})

    def theirs(self, array):
        of = {"data_ptr": array.ctypes.data}
        return {"x": safetensors.TensorSpec(dtype="int16", shape=[2, 3], data_len=12, **of),
                "p": safetensors.TensorSpec(dtype="float4_e2m1fn_x2", shape=[3], data_len=3, **of)}, {"a": "b"}

    def test_modules(self):
        class Tied(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
                self.b.weight = self.a.weight
                self.top = torch.nn.Parameter(self.a.weight[:1])

        model, other = Tied(), Tied()
        our_torch.save_model(model, self.path("m"), {"who": "me"})
        safetensors.torch.save_model(model, self.path("theirs"), {"who": "me"})
        self.same(our_torch.load_file(self.path("m")), safetensors.torch.load_file(self.path("theirs")))
        with ours.safe_open(self.path("m"), "pt") as mine, ours.safe_open(self.path("theirs"), "pt") as theirs:
            self.assertEqual(mine.metadata(), theirs.metadata())
        self.assertEqual(our_torch.load_model(other, self.path("m")), (set(), []))
        self.same(dict(other.state_dict()), dict(model.state_dict()))
        our_torch.save_file({"a.bias": torch.ones(3), "more": torch.ones(1)}, self.path("part"))
        mine, theirs = (outcome(lambda: module.load_model(other, self.path("part"))) for module in (our_torch, safetensors.torch))
        self.assertEqual(mine, theirs)
        mine, theirs = (module.load_model(other, self.path("part"), strict=False) for module in (our_torch, safetensors.torch))
        self.assertEqual((mine[0], sorted(mine[1])), (theirs[0], sorted(theirs[1])))

    def test_other_formats_and_several_files(self):
        state = {"layer": {"w": torch.ones(2, 2), "q": torch.zeros(3)}, "['x']": torch.ones(1), "epoch": 3}
        torch.save(state, self.path("m.pt"))
        with ours.safe_open(self.path("m.pt"), "pt") as file:
            self.assertEqual(file.offset_keys(), ["layer.w", "layer.q", "['x']"])
            self.assertEqual(file.metadata(), {"format": "pt"})
            self.same(file.get_tensor("layer.w"), state["layer"]["w"])
            self.same(file.get_slice("layer.w")[:, 1], state["layer"]["w"][:, 1])
        self.same(our_torch.load_file(self.path("m.pt")),
                  {"layer.w": state["layer"]["w"], "layer.q": state["layer"]["q"], "['x']": state["['x']"]})
        state["['x']"].sparse = torch.eye(2).to_sparse()
        torch.save(state, self.path("of.pt"))
        with ours.safe_open(self.path("of.pt"), "pt") as file:
            self.assertTrue(torch.equal(file.get_tensor("['x']").sparse.to_dense(), torch.eye(2)))
        safetensors.torch.save_file({"c": torch.ones(5)}, self.path("2.safetensors"), {"format": "pt", "n": "2"})
        self.write("set.safetensors.index.json", json.dumps(
            {"weight_map": {"b": "w.safetensors", "c": "2.safetensors"}}).encode())
        for files, names in ((self.path("set.safetensors.index.json"), ["b", "c"]),
                             ([self.file, self.path("2.safetensors")], sorted([*TENSORS, "c"]))):
            with ours.safe_open(files, "pt") as file:
                self.assertEqual(file.keys(), names)
                self.assertEqual(file.metadata(), {"format": "pt"})
                self.same(file.get_tensor("c"), torch.ones(5))
                self.same(file.get_slice("b")[1:, 0], TENSORS["b"][1:, 0])
        twin = self.path("twin.safetensors")
        safetensors.torch.save_file({"b": torch.ones(1)}, twin)
        self.assertRaisesRegex(ours.SafetensorError, f"^{twin}: the tensor b is in {self.file}, too$", ours.safe_open,
                               [self.file, twin], "pt")

    served = sets.Sets.served

    def test_urls(self):
        """As the files: each backend reads what is asked for."""
        self.write("set.safetensors.index.json", json.dumps({"weight_map": {"b": "w.safetensors"}}).encode())
        url = self.served(self.file)
        for files, backend in itertools.product((url, [url], self.served(self.path("set.safetensors.index.json"))), ("mmap", "pread")):
            with self.subTest(files=files, backend=backend), ours.safe_open(files, "pt", backend=backend) as file:
                self.same(file.get_tensor("b"), TENSORS["b"])
                self.same(file.get_tensors()["b"], TENSORS["b"])
                self.same(file.get_slice("b")[:, 1], TENSORS["b"][:, 1])
                self.same(file.prefetch().take("b"), TENSORS["b"])
                self.assertEqual(file.get_slice("b").get_shape(), [2, 3, 4])
            self.assertFalse(file._is_mapped)
        self.same(our_torch.load_file(url), safetensors.torch.load_file(self.file))
        self.assertRaises(FileNotFoundError, ours.safe_open, self.served(self.path("no")), "pt")

    def test_dtypes_of_less_than_a_byte(self):
        """What the package reads; of F4 more: its pread, slices and load() do not. PyTorch has no F6."""
        for dtype, shape, expected in (("F4", [2, 4], [[0, 1], [2, 3]]), ("F8_E8M0", [4], [0, 1, 2, 3]), ("F4", [8, 1], "pairs only"),
                                       ("F6_E2M3", [4], "this PyTorch has no torch.float6_e2m3fn_x4"), ("F6_E3M2", [2, 2], "fours only"),
                                       ("F6_E3M2", [1, 4], "this PyTorch has no torch.float6_e3m2fn_x4")):
            nbytes = 3 if dtype[:2] == "F6" else 4
            if isinstance(expected, list) and not hasattr(torch, {"F4": "float4_e2m1fn_x2"}.get(dtype, "float8_e8m0fnu")):
                expected = "this PyTorch has no torch.float"
            data = made(None, {"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, nbytes]}}, bytes(range(nbytes)))
            path = self.write("few", data)
            for call in ("m.safe_open(path, 'pt').get_tensor('x')", "m.safe_open(path, 'pt', backend='pread').get_tensor('x')",
                         "m.safe_open(path, 'pt').get_slice('x')[...]", "m.safe_open(path, 'pt').prefetch().take('x')",
                         "of_torch.load(data)['x']"):
                with self.subTest(dtype=dtype, shape=shape, call=call):
                    names = {"m": ours, "of_torch": our_torch, "path": path, "data": data}
                    kind, found = outcome(lambda: eval(call, names))
                    if kind == "result":
                        self.assertEqual(found.view(torch.uint8).tolist(), expected)
                    else:
                        self.assertEqual((kind, str(expected) in found), ("SafetensorError", True), found)

    def test_f6_beside_others(self):
        """As the package: the file is opened, its tensor of F6 is refused, and written again from its bytes."""
        data = made(None, {"x": {"dtype": "F6_E2M3", "shape": [2, 4], "data_offsets": [0, 6]},
                           "y": {"dtype": "I16", "shape": [1], "data_offsets": [6, 8]}}, bytes(range(8)))
        path = self.write("f6", data)
        for call in ("keys()", "offset_keys()", "get_tensor('y').item()", "get_slice('x').get_shape()", "get_slice('x').get_dtype()",
                     "get_slice('y')[0].item()"):
            for backend in ("mmap", "pread"):
                with self.subTest(call=call, backend=backend):
                    self.assertEqual(*(outcome(lambda: eval("f." + call, {"f": m.safe_open(path, "pt", backend=backend)}))
                                       for m in (ours, safetensors)))
        self.assertEqual(*(sorted(m.deserialize(data)) for m in (ours, safetensors)))
        with ours.safe_open(path, "pt") as file:
            self.assertRaisesRegex(ours.SafetensorError, "^x: F6_E2M3: this PyTorch has no torch", file.prefetch)
            self.assertEqual(file.prefetch({"y": None}).take("y").item(), 0x0706)
        with berth.open(path) as file:
            self.assertRaisesRegex(berth.Error, '"x": this PyTorch has no torch.float6_e2m3fn_x4', lambda: file["x"])
            self.assertEqual((file["y"].item(), bytes(file._file.memory("x"))), (0x0706, bytes(range(6))))
            memory = numpy.frombuffer(file._file.memory("x"), numpy.uint8)
            spec = ours.TensorSpec(dtype="float6_e2m3fn_x4", shape=[2, 1], data_ptr=memory.ctypes.data, data_len=6)
            self.assertEqual((spec.dtype, spec.shape), ("F6_E2M3", [2, 4]))
            written = ours.serialize({"x": spec})
        self.assertEqual(ours.deserialize(written), [("x", {"dtype": "F6_E2M3", "shape": [2, 4], "data": bytearray(range(6))})])

    def test_a_plan(self):
        large = torch.arange(4 << 20, dtype=torch.int32).reshape(4, 1024, 1024)
        tensors = {**TENSORS, "large": large, **{f"n{i}": torch.full((1000, ), i) for i in range(50)}}
        safetensors.torch.save_file(tensors, self.file)
        plan = {"large": (slice(1, 3), slice(5, 1000), slice(7, 9)), "b": slice(1, 2), "one": None, "": None,
                **{f"n{i}": None for i in range(50)}}
        with ours.safe_open(self.file, "pt") as file:
            for threads, window in ((1, 1), (4, 1 << 20), (8, 1 << 30)):
                with file.prefetch(plan, threads=threads, window_nbytes=window) as loader:
                    self.assertEqual(set(loader.names()), set(plan))
                    self.same(loader.take("n49"), tensors["n49"])
                    self.same(loader.take("large"), large[1:3, 5:1000, 7:9].contiguous())
                    rest = dict(loader)
                    self.assertEqual(set(rest), set(plan) - {"n49", "large"})
                    self.same(rest["b"], tensors["b"][1:2])
                    self.assertRaisesRegex(ours.SafetensorError, "was taken before", loader.take, "b")
                    self.assertRaisesRegex(ours.SafetensorError, "the plan has no", loader.take, "a")
            with file.prefetch({"large": slice(1, 4)}) as loader:  # read in several pieces
                self.assertTrue(torch.equal(loader.take("large"), large[1:]))
            with file.prefetch() as loader:
                self.same(loader.take("b"), tensors["b"])
            for call in (lambda: loader.take("large"), lambda: next(iter(loader))):
                self.assertRaisesRegex(ours.SafetensorError, "the loader is closed", call)
            for bad, why in (({"no": None}, "does not contain"), ({"b": slice(0, 2, 2)}, "step 1"), ({"one": slice(0, 1)}, "0-d"),
                             ({"b": 3}, "None or a slice"), ({"b": (slice(0, 1), 3)}, "None or a slice")):
                self.assertRaisesRegex(ours.SafetensorError, why, file.prefetch, bad)
            loader = file.prefetch(window_nbytes=1)
            child = os.fork()
            if child == 0:
                os._exit(outcome(lambda: loader.take("b"))[1].startswith("the loader is of the parent") - 1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            part = file.get_slice("b")
        self.same(loader.take("large"), large)  # what reads the file holds it
        self.same(part[1, 0], TENSORS["b"][1, 0])
        del loader
        gc.collect()
        self.wait_for_threads()

    def test_what_a_plan_costs(self):
        """Each byte is read once, whoever asks for it when; and no tensor is looked for among the others."""
        tensors = {f"n{i:03}": torch.full((4096, ), i, dtype=torch.int16) for i in range(300)}
        tensors["wide"] = torch.arange(6 << 20, dtype=torch.int16).reshape(3, 1 << 21)  # several pieces
        safetensors.torch.save_file(tensors, self.file)
        plan = {name: slice(1024, 3072) if name[0] == "n" else (slice(1, 3), slice(0, 1 << 21)) for name in tensors}
        for backwards in (False, True):
            with ours.safe_open(self.file, "pt", backend="pread") as file, self.counted_comparisons() as n_compared:
                nbytes, calls = self.was_read()
                with file.prefetch(plan, threads=2, window_nbytes=1 << 16) as loader:
                    taken = {name: loader.take(name) for name in sorted(plan, reverse=backwards)}
                after, calls_after = self.was_read()
            wanted = sum(tensor.nbytes for tensor in taken.values())
            self.assertTrue(torch.equal(taken["wide"], tensors["wide"][1:]))
            self.assertTrue(wanted <= after - nbytes <= 1.01 * wanted, (wanted, after - nbytes))
            self.assertLess(calls_after - calls, 2 * len(plan))
            self.assertLess(n_compared[0], len(plan))

    def was_read(self):
        """(bytes, calls) of this process' reads until now."""
        with open("/proc/self/io", encoding="ascii") as file:
            numbers = dict(line.split(": ") for line in file.read().splitlines())
        return int(numbers["rchar"]), int(numbers["syscr"])

    @contextlib.contextmanager
    def counted_comparisons(self):
        n = [0]

        def equal(one, other):
            n[0] += 1
            return one is other

        with mock.patch.multiple(_prefetch._Wanted, __eq__=equal, __hash__=object.__hash__, create=True):
            yield n

    def test_a_plan_that_fails(self):
        safetensors.torch.save_file({"x": torch.ones(1 << 20), "y": torch.ones(0)}, self.path("x"))
        with ours.safe_open([self.path("x")], "pt") as file:
            with file.prefetch(threads=1, window_nbytes=1) as loader:  # x fills the window, and nothing else wakes take()
                while not loader._wanted["x"].is_done:
                    time.sleep(0.001)
                self.assertEqual([taken(loader, name)[0] for name in ("y", "x")], ["result"] * 2)
            for owner, name, error, expected in (
                    (torch, "empty", RuntimeError("no room"), ("SafetensorError", "x: no room")),
                    (torch, "empty", MemoryError(), ("MemoryError", "")),
                    (_set.Files, "read_slice", LookupError("odd"), ("SafetensorError", "x: odd"))):
                with self.subTest(name=name, expected=expected), mock.patch.object(owner, name, side_effect=error), \
                        file.prefetch({"x": None}) as loader:
                    self.assertEqual(taken(loader, "x"), expected)
        torch.save({"q": torch.quantize_per_tensor(torch.ones(2), 1., 0, torch.qint8)}, self.path("q.pt"))
        with ours.safe_open(self.path("q.pt"), "pt") as file:
            self.assertRaisesRegex(ours.SafetensorError, r"^q: a quantized tensor has no parts: get_tensor\(\) gives all of it$",
                                   file.prefetch)

    def test_what_is_read_is_handed_out(self):
        """Not what is read still, if it is iterated over."""
        safetensors.torch.save_file({"x": torch.ones(3), "y": torch.ones(3)}, self.path("x"))
        read = _set.Files.read_slice

        def read_slice(files, name, *arguments):
            (is_out if name == "x" else waits).wait(60)
            return read(files, name, *arguments)

        for is_closed in (False, True):
            waits, is_out = threading.Event(), threading.Event()
            with mock.patch.object(_set.Files, "read_slice", read_slice), ours.safe_open([self.path("x")], "pt") as file, \
                    file.prefetch(threads=2) as loader:
                changed = loader._reader.changed
                wait = changed.wait
                changed.wait = lambda: waits.set() or wait()
                found = iter(loader)
                self.assertEqual(next(found)[0], "y")
                if is_closed:
                    loader.close()
                    self.assertRaisesRegex(ours.SafetensorError, "the loader is closed", next, found)
                is_out.set()
                self.assertEqual([(name, tensor.tolist()) for name, tensor in found], [("x", [1] * 3)] * (not is_closed))

    def test_attributes_named_like_methods(self):
        """A file can give its tensors such: nothing calls them (Y5)."""
        tagged = torch.arange(6.).reshape(2, 3)
        vars(tagged).update({name: 1 for name in dir(torch.Tensor) if name[:2] != "__" and callable(getattr(torch.Tensor, name))})
        berth.save({"w": tagged}, self.path("tagged.pt"))
        berth.save({"w": torch.arange(6.).reshape(2, 3)}, self.path("plain.pt"))
        with ours.safe_open(self.path("tagged.pt"), "pt") as file:
            self.assertEqual(vars(file.get_tensor("w")), vars(tagged))
        for call in ("f().get_tensor('w')", "f().get_tensors()['w']", "f().get_slice('w')[:, 1]", "f('pread').get_slice('w')[1]",
                     "f().prefetch().take('w')", "f(device='cuda').get_tensor('w')", "f(device='cuda').get_slice('w')[1]",
                     "f(device='cuda').prefetch().take('w')", "m.save({'w': w})", "m.save({'w': w, 'v': w})",
                     "m.save_file({'w': w}, path)", "m.save_model(model, path)"):
            with self.subTest(call=call):
                found = []
                for name in ("tagged.pt", "plain.pt"):
                    def opened(backend="mmap", device="cpu", name=name):
                        return ours.safe_open(self.path(name), "pt", device, backend=backend)
                    tensor = opened().get_tensor("w")
                    model = types.SimpleNamespace(state_dict=lambda tensor=tensor: {"w": tensor, "v": tensor})
                    found.append(outcome(lambda: eval(call, {"f": opened, "m": our_torch, "w": tensor, "model": model, "path": self.path("m")})))
                self.assertEqual(found[0][0], found[1][0], found)
                if found[0][0] == "result" and torch.is_tensor(found[0][1]):
                    self.assertTrue(torch.equal(found[0][1], found[1][1]))
                else:
                    self.assertEqual(*found)

    def wait_for_threads(self):
        """The readers of a loader that was dropped end."""
        for thread in threading.enumerate():
            if "work" in thread.name:
                thread.join(60)
                self.assertFalse(thread.is_alive())

    def test_install_replaces_every_name(self):
        module = types.ModuleType("imported_before")
        module.opened, module.load, module.also = safetensors.safe_open, safetensors.torch.load_file, "stays"
        sys.modules["imported_before"] = module
        self.addCleanup(sys.modules.pop, "imported_before")
        theirs = safetensors.safe_open, safetensors.torch.load_file, safetensors.numpy.save_file
        with berth.installed(safetensors=True):
            before = berth.counters()["safetensors"]
            self.assertIsNot(module.opened, theirs[0])
            with module.opened(self.file, framework="pt") as file:
                self.same(file.get_tensor("b"), TENSORS["b"])
            module.load(self.file)
            self.assertEqual(*(outcome(lambda: each(self.file, "mlx").__exit__()) for each in (safetensors.safe_open, theirs[0])))
            safetensors.torch.save_model(torch.nn.Linear(2, 2), self.path("m"))
            after = berth.counters()["safetensors"]
            self.assertEqual({key: after[key] - before[key] for key in after}, {"open": 2, "load": 1, "save": 1, "package": 1})
            self.assertEqual(outcome(lambda: safetensors.torch.save_file([], "f")), outcome(lambda: theirs[1] and safetensors.torch.save([])))
            self.assertRaisesRegex(TypeError, "^a key is a str", safetensors.torch.save, {1: torch.ones(1)})
            with berth.installed():
                self.assertIsNot(safetensors.safe_open, theirs[0])
        self.assertEqual((safetensors.safe_open, safetensors.torch.load_file, safetensors.numpy.save_file), theirs)
        self.assertEqual((module.opened, module.load, module.also), (*theirs[:2], "stays"))
        with mock.patch.object(_install, "_exchange") as exchange, berth.installed():  # it looks at every module
            exchange.assert_not_called()
        before = torch.save, torch.load, *theirs
        for owner, name in ((_records, "check_known"), (_install, "_made_pairs"), (_install, "_exchange")):
            with self.subTest(failing=name), mock.patch.object(owner, name, side_effect=[ImportError("no"), mock.DEFAULT]):
                self.assertRaisesRegex(ImportError, "^no$", berth.install, safetensors=True)
                self.assertEqual((torch.save, torch.load, safetensors.safe_open, safetensors.torch.load_file,
                                  safetensors.numpy.save_file), before)

        begins, ends = threading.Event(), threading.Event()

        def block():
            with berth.installed(safetensors=True):
                begins.set()
                ends.wait()

        thread = threading.Thread(target=block)
        thread.start()
        begins.wait()
        child = os.fork()  # which has no such thread
        if child == 0:
            os._exit(safetensors.safe_open is not theirs[0])
        ends.set()
        thread.join()
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_hostile_heads(self):
        of = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        for entries in ({"a": {**of, "shape": [2**62, 8]}}, {"a": {**of, "data_offsets": [8, 0]}}, {"a": {**of, "data_offsets": [0, 2**63]}},
                        {"a": of, "b": of}, {"a": {**of, "dtype": "F99"}}, {"a": {**of, "shape": [-1]}}, {"a": 5}, [], b"{", b"{" * 10**5,
                        b'{"a":' * 200, {"__metadata__": {"a": 1}}, {"__metadata__": 5}, {"a": {**of, "shape": [3]}}):
            path = self.write("bad.safetensors", made(None, entries, bytes(8)))
            with self.subTest(entries=str(entries)[:80]):
                for call in (lambda m: m.safe_open(path, "pt"), lambda m: m.safe_open(path, "np", backend="pread"),
                             lambda m: m.deserialize(self.read(path))):
                    self.assertEqual(outcome(lambda: call(safetensors))[0], "SafetensorError")
                    self.assertEqual(outcome(lambda: call(ours))[0], "SafetensorError")
