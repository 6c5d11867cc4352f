# SPDX-License-Identifier: BSD-3-Clause
"""What a refusal tells, and berth.verify: is the file whole, what does it name, what to do next."""

import _compat_pickle
import argparse
import bz2
import collections
import contextlib
import errno
import functools
import gzip
import io
import json
import lzma
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import unittest
import unittest.mock
import warnings
import zipfile

import berth
import numpy
import torch
import torch.distributed.checkpoint as dcp
from torch.testing._internal.two_tensor import TwoTensor

import starter
from pickles import PROTO, archive

from folder import Folder

CUT = "a download or a save in place that did not end?"
TRUSTED = ". If you trust the file: berth.load(f, weights_only=False), which runs what the file asks for"
STATE = {"layer.weight": torch.arange(600.).reshape(20, 30), "layer.bias": torch.ones(3)}
HYPER = argparse.Namespace(lr=1e-3, path=pathlib.PurePosixPath("a"))


class Scale(torch.nn.Module):
    def forward(self, x):
        return x * 2


class Dict(dict):
    pass


class List(list):
    pass


class Ordered(collections.OrderedDict):
    pass


def moved(data):
    """A file's records in another order."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as given, zipfile.ZipFile(made, "w") as written:
        for info in reversed(given.infolist()):
            written.writestr(info.filename, given.read(info))
    return made.getvalue()


class Runs:
    def __reduce__(self):
        import os
        return os.system, ("false",)


RECONSTRUCT = f"{numpy.ndarray.__reduce__(numpy.ones(1))[0].__module__}._reconstruct"
DTYPES = 'numpy.dtype, *map(type, map(numpy.dtype, numpy.typecodes["All"]))'


def listed(names):
    """The names in the step that allows them."""
    return ", ".join({"numpy.dtype": DTYPES}.get(name, f'({name}, "{name}")' if name.startswith("numpy.core.") else name)
                     for name in names)


# A name, the value, options of torch.save, and what it names that is not allowed.
REFUSED = [
    ("lightning", {"state_dict": STATE, "hyper_parameters": HYPER}, {}, ["argparse.Namespace", "pathlib.PurePosixPath"]),
    ("module", {"model": Scale()}, {}, [f"{__name__}.Scale"]),
    ("numpy", {"rng": numpy.random.get_state()}, {},
     [RECONSTRUCT, "numpy.ndarray", "numpy.dtype"]),
    ("subclass", {"w": TwoTensor(STATE["layer.weight"], STATE["layer.weight"])}, {},
     ["torch._utils._rebuild_wrapper_subclass", "torch.testing._internal.two_tensor.TwoTensor"]),
    ("old", {"state": STATE, "args": HYPER}, {"_use_new_zipfile_serialization": False},
     ["argparse.Namespace", "pathlib.PurePosixPath"]),
]
# What one call says of a file: its exception, its report, or nothing.
UNREADABLE = """
import ctypes, errno, json, os, sys, berth
berth.config.load.method, berth.config.io.threads = "read", 1  # strace counts in each thread
ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1))  # PR_SET_PTRACER: strace may come
while True:  # until it is there
    try:
        os.getxattr(sys.argv[2], "user.none")
    except OSError as error:
        if error.errno == errno.EXDEV:
            break
try:
    found = getattr(berth, sys.argv[1])(sys.argv[2])
    said = ("good", None, "")
    if sys.argv[1] == "verify" and found.globals_unknown:
        assert found and found.intact and not found.error and not found.globals, found
        said = ("unlisted", errno.EIO, found.globals_unknown)
except berth.Error as error:
    said = (type(error).__name__, error.errno, str(error))
print(json.dumps(said))
"""


class Refusals(Folder):
    def test_each_names_all_and_the_next_step(self):
        for name, value, options, names in REFUSED:
            with self.subTest(name):
                path = self.path(f"{name}.pt")
                torch.save(value, path, **options)
                words = ", ".join(" ".join(each.rsplit(".", 1)) for each in names)
                what = ("1 class or function that is" if len(names) == 1
                        else f"{len(names)} classes or functions that are")
                for source in (path, io.BytesIO(self.read(path))):
                    with self.assertRaises(berth.UnsafeFileError) as caught:
                        berth.load(source)
                    says = str(caught.exception)
                    self.assertTrue(says.endswith(
                        f" is not allowed in a checkpoint; it names {what} not allowed: {words}. If you trust "
                        f"them: torch.serialization.add_safe_globals([{listed(names)}])" + TRUSTED), says)
                    self.assertNotIn("`", says)
                    report = berth.verify(source)
                    self.assertEqual((bool(report), report.intact, report.refused), (False, True, names))
                    self.assertTrue(report.error.endswith(TRUSTED), report.error)
                    self.assertLessEqual(set(names), set(report.globals))
                data = self.read(path)
                with self.assertRaises(berth.Error) as caught:
                    berth.load(self.write("cut.pt", data[:-40]))
                if name != "old":  # its storages end there: what it names is met first
                    self.assertIn(CUT, str(caught.exception))
                report = berth.verify(self.path("cut.pt"))
                self.assertIn(CUT, report.error)
                self.assertEqual((bool(report), report.intact, report.refused), (False, False, names))

    def test_what_it_says_to_allow_loads_the_file(self):
        torch.save({"args": HYPER}, self.path("a.pt"))
        with self.assertRaises(berth.UnsafeFileError) as caught:
            berth.load(self.path("a.pt"))
        step = str(caught.exception).split("If you trust them: ")[1].split(". If you trust the file")[0]
        with torch.serialization.safe_globals([]):
            exec(step)  # pylint: disable=exec-used
            self.assertEqual(berth.load(self.path("a.pt"))["args"].lr, 1e-3)
            torch.serialization.clear_safe_globals()

    def test_a_great_many_names(self):
        """The message has a limit; what is listed has one of 4,096."""
        for n, words in ((50, "names 50 classes"), (60, "names 60 classes"), (5000, "names at least 4096 classes")):
            data = archive(PROTO + b"(" + b"".join(b"cmodel\nName%d\n" % i for i in range(n)) + b"t.")
            with self.assertRaises(berth.UnsafeFileError) as caught:
                berth.load(io.BytesIO(data))
            says = str(caught.exception)
            self.assertIn(words, says)
            self.assertEqual("add_safe_globals" in says, n == 50)
            self.assertEqual("model Name49, ...; berth.verify(f).refused has all that are listed. If you trust" in says, n > 50)
            self.assertLess(len(says), 3000)
            self.assertEqual(len(berth.verify(io.BytesIO(data)).refused), min(n, 4096))

    def test_open_and_verify_obey_no_list(self):
        torch.save({"args": HYPER, "w": STATE["layer.bias"]}, self.path("a.pt"))
        with torch.serialization.safe_globals([argparse.Namespace, pathlib.PurePosixPath]):
            self.assertEqual(berth.load(self.path("a.pt"))["args"], HYPER)
            with self.assertRaises(berth.UnsafeFileError) as caught:
                berth.open(self.path("a.pt"))
            for who, says in (("open", str(caught.exception)), ("verify", berth.verify(self.path("a.pt")).error)):
                self.assertTrue(says.endswith(
                    ". If you trust them: torch.serialization.add_safe_globals([argparse.Namespace, pathlib.PurePosixPath]"
                    f"), then berth.load(f): berth.{who} obeys no list of allowed classes{TRUSTED}"), says)

    def test_plain_classes_of_python(self):
        """By the names of Python 3, which a program can paste; what PyTorch fills is loaded then."""
        for value, names in ((collections.defaultdict(list), "collections.defaultdict, list"),
                             (collections.defaultdict(dict), "collections.defaultdict, dict"),
                             (collections.defaultdict(int), "collections.defaultdict, int"), (frozenset([1]), "frozenset"),
                             (range(3), "range"), (slice(1, 2), "slice"), (int, "int"), (str, "str"),
                             (collections.deque(), "collections.deque"), (..., '(Ellipsis, "builtins.Ellipsis")'),
                             (KeyError, '(KeyError, "exceptions.KeyError")'), (torch.optim.SGD, "torch.optim.SGD")):
            torch.save({"v": value}, self.path("a.pt"))
            with self.subTest(value=value), torch.serialization.safe_globals([]):
                with self.assertRaises(berth.UnsafeFileError) as caught:
                    berth.load(self.path("a.pt"))
                step = f"torch.serialization.add_safe_globals([{names}])"
                self.assertIn(f". If you trust them: {step}. If you trust the file", str(caught.exception))
                self.assertNotIn("__builtin__ ", str(caught.exception).split("; it names")[1])
                exec(step)  # pylint: disable=exec-used
                self.assertEqual(berth.load(self.path("a.pt")), {"v": value})
                torch.serialization.clear_safe_globals()

    def test_what_it_says_of_numpy(self):
        """Its step loads the file, also one that NumPy 1 or 2 wrote under the other name of its modules."""
        for value in (numpy.random.get_state(), numpy.arange(3), numpy.float64(3), numpy.array(["a"]),
                      numpy.zeros(2, [("a", "f4"), ("b", "U3")]), numpy.zeros(2, bool), numpy.array(["2026"], "M8[D]"),
                      numpy.random.default_rng().bit_generator.state):
            torch.save({"v": value}, self.path("a.pt"), _use_new_zipfile_serialization=False)
            data = self.read(self.path("a.pt"))
            for each in {data, data.replace(b"cnumpy._core.", b"cnumpy.core."), data.replace(b"cnumpy.core.", b"cnumpy._core.")}:
                with self.subTest(value=value), torch.serialization.safe_globals([]), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the other name is deprecated
                    try:
                        loaded = berth.load(io.BytesIO(each))
                    except berth.UnsafeFileError as error:
                        exec(str(error).split("If you trust them: ")[1].split(". If you trust")[0])  # pylint: disable=exec-used
                        loaded = berth.load(io.BytesIO(each))
                    self.assertEqual(repr(loaded["v"]), repr(value))
                    torch.serialization.clear_safe_globals()

    def test_what_pytorch_says_is_one_line(self):
        torch.save(numpy.arange(3), self.path("a.pt"))
        function = numpy.ndarray.__reduce__(numpy.ones(1))[0]
        with torch.serialization.safe_globals([function, numpy.ndarray, numpy.dtype]):
            with self.assertRaises(berth.UnsafeFileError) as caught:
                berth.load(self.path("a.pt"))
        kind = type(numpy.dtype("int64"))
        says = str(caught.exception)
        self.assertRegex(says, r"a\.pt: data\.pkl: PyTorch's weights_only unpickler: Can only build [^\n\\]*but got ")
        self.assertTrue(says.endswith(TRUSTED), says)
        if kind.__module__ == "numpy.dtypes":
            self.assertIn(f"'>. If you trust them: torch.serialization.add_safe_globals([numpy.dtypes.{kind.__name__}])", says)

    def test_what_pytorch_never_fills(self):
        """There is no list that helps, so none is offered: by no function, in no format."""
        cases = [(collections.deque, collections.deque([1])), (List, List([1]))]
        if hasattr(torch._weights_only_unpickler.Unpickler, "_check_set_item_target"):  # PyTorch 2.6 sets items of all
            cases += [(Dict, Dict(a=1)), (Ordered, Ordered(a=1)),
                      *((collections.defaultdict, collections.defaultdict(None, a=item)) for item in (1, HYPER))]
        for kind, value in cases:
            for is_zip in (True, False):
                torch.save({"v": [value]}, self.path("a.pt"), _use_new_zipfile_serialization=is_zip)
                says = [berth.verify(self.path("a.pt")).error]
                for call, allowed in ((berth.load, []), (berth.open, []), (berth.load, [kind, argparse.Namespace,
                                                                                     pathlib.PurePosixPath])):
                    with torch.serialization.safe_globals(allowed), self.assertRaises(berth.UnsafeFileError) as caught:
                        call(self.path("a.pt"))
                    says.append(str(caught.exception))
                for said in says:
                    self.assertNotIn("add_safe_globals", said)
                    self.assertTrue(said.endswith(TRUSTED), said)
                self.assertEqual(berth.load(self.path("a.pt"), weights_only=False)["v"][0], value)

    def test_a_pytorch_that_sets_items_of_all(self):
        """2.6 has no list of what it fills. All functions say the same of what it does."""
        kind, name = torch._weights_only_unpickler.Unpickler, "_check_set_item_target"
        if name in vars(kind):
            self.addCleanup(setattr, kind, name, vars(kind)[name])
            delattr(kind, name)
        for value, is_filled in ((Dict(a=1), True), (List([1]), False)):
            torch.save({"v": value}, self.path("a.pt"))
            says = [berth.verify(self.path("a.pt")).error]
            for call in (berth.load, berth.open):
                with self.assertRaises(berth.UnsafeFileError) as caught:
                    call(self.path("a.pt"))
                says.append(str(caught.exception))
            self.assertEqual(["add_safe_globals" in said for said in says], [is_filled] * 3, says)

    def test_the_names_of_a_report(self):
        """As PyTorch's list of what is allowed has them, and the step that it gives."""
        for old in {*_compat_pickle.NAME_MAPPING, *((module, "Name") for module in _compat_pickle.IMPORT_MAPPING)}:
            found = torch._utils.NAME_MAPPING.get(old) or (torch._utils.IMPORT_MAPPING.get(old[0], old[0]), old[1])
            report = berth.verify(io.BytesIO(archive(PROTO + "(c{}\n{}\nc__builtin__\nset\nt.".format(*old).encode())))
            self.assertEqual(report.globals, list(dict.fromkeys([".".join(found), "builtins.set"])))
            self.assertEqual(report.refused, [".".join(found)])

    def test_nobody_is_told_to_allow_what_runs_programs(self):
        torch.save({"a": Runs()}, self.path("a.pt"))
        files = [self.read(self.path("a.pt"))]
        for module, name in (("__builtin__", "eval"), ("builtins", "getattr"), ("__builtin__", "execfile"),
                             ("timeit", "timeit"), ("pdb", "run"), ("cProfile", "run"), ("commands", "getoutput"),
                             ("multiprocessing.util", "spawnv_passfds"), ("numpy.testing", "rundocs"),
                             ("operator", "methodcaller"), ("httplib", "HTTPSConnection"), ("torch.hub", "load")):
            files.append(archive(PROTO + f"c{module}\n{name}\n.".encode()))
        for data in files:
            with self.assertRaises(berth.UnsafeFileError) as caught:
                berth.load(io.BytesIO(data))
            self.assertTrue(str(caught.exception).endswith("Some of them run programs: do not allow them"),
                            str(caught.exception))
            self.assertNotIn("weights_only", str(caught.exception))

    def test_protocols_4_and_5(self):
        for protocol in (4, 5):
            torch.save(STATE, self.path("a.pt"), pickle_protocol=protocol)
            with self.assertRaises(berth.UnsafeFileError) as caught:
                berth.load(self.path("a.pt"))
            self.assertIn(f": `berth convert --set load.unknown_globals=inert {self.path('a.pt')} NEW.pt` saves it "
                          "again without running anything" + TRUSTED, str(caught.exception))
            with self.assertRaises(berth.UnsafeFileError) as caught:
                berth.load(io.BytesIO(self.read(self.path("a.pt"))))
            self.assertIn("too: `berth convert --set load.unknown_globals=inert` saves it again without running "
                          "anything" + TRUSTED, str(caught.exception))
            report = berth.verify(self.path("a.pt"))
            self.assertEqual((bool(report), report.intact, report.refused), (False, True, []))

    def test_torchscript(self):
        torch.jit.save(torch.jit.script(Scale()), self.path("a.pt"))
        report = berth.verify(self.path("a.pt"))
        self.assertEqual((bool(report), report.intact), (False, True))
        says = ("a.pt: a TorchScript archive (it has constants.pkl): a program, which is never run, without values to "
                "read. If you trust the file: torch.jit.load(f), which runs what the file asks for")
        self.assertTrue(report.error.endswith(says), report.error)
        report = berth.verify(self.write("cut.pt", self.read(self.path("a.pt"))[:-40]))
        self.assertFalse(report.intact)
        self.assertIn(CUT, report.error)

    def test_a_step_in_python_reads_the_file(self):
        """As it stands in the message: of a path, and of bytes."""
        torch.save(STATE, self.path("z.pt"))
        data, path = self.read(self.path("z.pt")), self.path("a.pt")
        script, package, old, array, arrays, holder = (io.BytesIO() for _ in range(6))
        torch.jit.save(torch.jit.script(Scale()), script)
        with torch.package.PackageExporter(package) as exporter:
            exporter.save_pickle("in", "a.pkl", 1)
        torch.save(STATE, old, pickle_protocol=4, _use_new_zipfile_serialization=False)
        numpy.save(array, numpy.ones(3))
        numpy.savez(arrays, a=numpy.ones(3))
        with zipfile.ZipFile(holder, "w") as made:
            made.writestr("in.pt", data)
        n = len(data)
        for content, says in (
                (script.getvalue(), ". If you trust the file: torch.jit.load(f), which runs what the file asks for"),
                (package.getvalue(),
                 ". If you trust the file: torch.package.PackageImporter(f), which runs what the file asks for"),
                (old.getvalue(), ", which PyTorch's weights_only=True refuses, too" + TRUSTED),
                (gzip.compress(data), "compressed by gzip: berth.load(gzip.open(f)) reads it"),
                (bz2.compress(data), "compressed by bzip2: berth.load(bz2.open(f)) reads it"),
                (lzma.compress(data), "compressed by xz: berth.load(lzma.open(f)) reads it"),
                (lzma.compress(data, lzma.FORMAT_ALONE), "compressed by lzma: berth.load(lzma.open(f)) reads it"),
                (array.getvalue(), ": torch.from_numpy(numpy.load(f)) is its tensor if it holds numbers in this machine's "
                                   "byte order"),
                (holder.getvalue(), ': zipfile.ZipFile(f).extractall("NEW") unpacks it'),
                (data + b"more", f": `berth.load(io.BytesIO(data[:{n}]))` leaves them out, if data is all that is in the file"),
                (data + data, f": `berth.load(io.BytesIO(data[{n}:]))` takes it out, if data is all that is in the file"),
                (moved(data), ': `with berth.config.patch("debug=off load.repacked=accept"): berth.load(f)` reads it')):
            if "repacked" in says and b"/.storage_alignment" not in data:  # of PyTorch 2.6: nothing was calculated
                continue
            self.write("a.pt", content)
            for f in (path, io.BytesIO(content)):
                with self.subTest(says), berth.config.patch("load.repacked=refuse"):
                    with self.assertRaises(berth.Error) as caught:
                        berth.load(f)
                    said = str(caught.exception)
                    self.assertTrue(said.endswith(says), said)
                    step = re.search(r"(?:`(.*)`|: ((?:berth|torch|zipfile)\.[^:]*?\)(?= |,|$)[^ ,:]*))[^:]*$", said)
                    with contextlib.chdir(self.folder):  # where it unpacks
                        exec(step[1] or step[2], globals() | {"f": f, "data": content})  # pylint: disable=exec-used
        self.write("a.pt", arrays.getvalue())
        with self.assertRaisesRegex(berth.Error, r": {k: torch.from_numpy\(v\) for k, v in numpy.load\(f\).items\(\)} are "):
            berth.load(path)
        warnings.simplefilter("ignore")
        dcp.save(STATE, checkpoint_id=self.path("saved"))
        with self.assertRaisesRegex(berth.Error, r"checkpoint: berth\.load of its directory reads it$"):
            berth.load(self.path("saved/.metadata"))

    def test_what_nobody_may_do_is_not_offered(self):
        torch.save({"args": HYPER}, self.path("a.pt"))
        with unittest.mock.patch.dict(os.environ, {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}):
            for call in (berth.load, berth.open, lambda f: berth.load(f, weights_only=False)):
                with self.assertRaises(berth.UnsafeFileError) as caught:
                    call(self.path("a.pt"))
                self.assertIn(". If you trust them: torch", str(caught.exception))
                self.assertNotIn("weights_only", str(caught.exception))

    # ---- files and directories that are broken: each whole, then broken ----

    def check_is_whole(self, f):
        self.assertEqual(sorted(berth.load(f)), sorted(STATE))
        report = berth.verify(f)
        self.assertEqual((bool(report), report.error, report.intact, report.refused, report.n_bad),
                         (True, "", True, [], 0))
        return report

    def check_is_broken(self, f, *says, kind=berth.DamagedFileError):
        with self.assertRaises(kind) as caught:
            berth.load(f)
        report = berth.verify(f)
        self.assertEqual((bool(report), report.intact, report.refused), (False, False, []))
        for said in (str(caught.exception), report.error):
            for words in says:
                self.assertIn(words, said)
        return report

    def test_an_index(self):
        names = [f"m-{i}.safetensors" for i in range(len(STATE))]
        weights = dict(zip(STATE, names))
        for name, file in weights.items():
            berth.save({name: STATE[name]}, self.path(file))
        index = self.write("m.safetensors.index.json", json.dumps({"weight_map": weights}).encode())
        self.assertEqual([each.name.split("/")[0] for each in self.check_is_whole(index).records], names)
        with berth.open(index) as file:
            self.assertEqual(file.verify(), berth.verify(index))
        self.check_is_whole(self.folder)
        data = self.read(self.path(names[1]))
        self.write(names[1], data[:-5])
        self.assertEqual(len(self.check_is_broken(index, names[1], CUT).records), 1)
        self.write(names[1], self.read(self.path(names[0])))
        self.check_is_broken(index, '"layer.bias" is not in m-1.safetensors')
        os.remove(self.path(names[1]))
        missing = f"{names[1]}: cannot be opened: No such file or directory"
        with self.assertRaises(berth.MissingFileError) as caught:
            berth.open(index)
        self.assertIn(missing, str(caught.exception))
        report = self.check_is_broken(index, missing, kind=berth.MissingFileError)
        self.assertEqual([each.name.split("/")[0] for each in report.records], names[:1])  # the others are verified
        self.check_is_broken(self.write("m.safetensors.index.json", b"{"), "m.safetensors.index.json: is no index of a "
                             "checkpoint: it is no JSON")

    def test_a_directory_of_dcp_with_a_broken_piece(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(STATE, checkpoint_id=self.path("dcp"))
            dcp.save({"args": HYPER, **STATE}, checkpoint_id=self.path("named"))
        piece = self.path("dcp/__0_0.distcp")
        data, metadata = self.read(piece), self.read(self.path("dcp/.metadata"))
        self.assertEqual(self.check_is_whole(self.path("dcp")).n_storages, 2)
        at = data.index(STATE["layer.weight"].numpy().tobytes())
        self.write("dcp/__0_0.distcp", data[:at] + b"\1" + data[at + 1:])
        report = self.check_is_broken(self.path("dcp"), "__0_0.distcp at byte", "its bytes have CRC")
        (bad,) = report.records
        self.assertEqual((report.n_bad, bad.name, bad.crc32), (1, "__0_0.distcp: layer.weight", "bad"))
        self.assertTrue(bad.offset < at < bad.offset + bad.nbytes)
        # Each piece has its verdict: also those that are there beside one that is cut off.
        self.write("dcp/__0_0.distcp", data[:at] + b"\1" + data[at + 1:-1])
        report = self.check_is_broken(self.path("dcp"), "__0_0.distcp")
        self.assertEqual((report.n_bad, report.n_storages, [bad.crc32 for bad in report.records]),
                         (2, 2, ["bad", "bad"]))
        for says in ("its bytes have CRC", f"are not in __0_0.distcp, which has {len(data) - 1}: a download or a save in "
                     "place that did not end?"):
            self.assertEqual(sum(says in bad.error for bad in report.records), 1)
        os.remove(piece)
        report = self.check_is_broken(self.path("dcp"), "__0_0.distcp: No such file or directory")
        self.assertEqual((report.n_bad, report.n_storages), (2, 2))
        self.write("dcp/__0_0.distcp", data)
        self.write("dcp/.metadata", metadata[:len(metadata) // 2])
        self.check_is_broken(self.path("dcp"), "dcp/.metadata: at byte ")
        report = berth.verify(self.path("named"))
        self.assertEqual((bool(report), report.intact, report.refused, report.n_bad),
                         (False, True, ["argparse.Namespace", "pathlib.PurePosixPath"], 0))
        self.assertTrue(report.error.endswith("global argparse Namespace is not allowed in a checkpoint"), report.error)

    def test_records_have_names_in_every_format(self):
        torch.save(STATE, self.path("a.pt"))
        berth.save(STATE, self.path("a.safetensors"))
        torch.save(STATE, self.path("old.pt"), _use_new_zipfile_serialization=False)
        for name, names in (("a.pt", {"data.pkl", "data/0", "data/1"}), ("a.safetensors", set(STATE)),
                            ("old.pt", {str(each.untyped_storage()._cdata) for each in STATE.values()})):
            for source in (self.path(name), io.BytesIO(self.read(self.path(name)))):
                with self.subTest(name):
                    report = berth.verify(source)
                    self.assertLessEqual(names, {record.name for record in report.records})
                    sizes = {STATE[record.name].nbytes == record.nbytes for record in report.records
                             if record.name in STATE}
                    self.assertNotIn(False, sizes)

    def test_a_pipe_says_what_reads_it(self):
        torch.save(STATE, self.path("a.pt"))
        os.mkfifo(self.path("pipe"))
        for call in (berth.load, functools.partial(berth.load, weights_only=False), berth.open, berth.verify):
            with self.subTest(call):
                try:
                    said = call(self.path("pipe")).error
                except berth.Error as error:
                    said = str(error)
                self.assertTrue(said.endswith(
                    'pipe: is a pipe, which can be read only once and in order: open it, `with open(path, "rb") as f`, '
                    'and give f, which is read into memory'), said)
                writer = subprocess.Popen(["cp", self.path("a.pt"), self.path("pipe")])
                with open(self.path("pipe"), "rb") as f:
                    self.assertTrue(call(f))
                self.assertEqual(writer.wait(60), 0)
        os.mkfifo(self.path("m.safetensors.index.json"))  # is not waited for
        for call in (berth.load, berth.open):
            with self.assertRaises(berth.DamagedFileError) as caught:
                call(self.path("m.safetensors.index.json"))
            self.assertIn("is no index of a checkpoint: it is no file", str(caught.exception))

    def test_a_file_that_does_not_report_its_size(self):
        for call in (berth.load, functools.partial(berth.load, weights_only=False), berth.open, berth.verify):
            with open("/proc/version", "rb") as f:
                said = []
                for source in (f.name, f):
                    try:
                        said.append(call(source).error)
                    except berth.Error as error:
                        said.append(str(error))
                self.assertEqual(said[0], '/proc/version: does not report its size, as files of /proc do not: open it, '
                                 '`with open(path, "rb") as f`, and give f, which is read into memory')
                self.assertIn("It says: Linux version ", said[1])

    def test_what_has_no_path_gets_no_command_to_paste(self):
        array, names = io.BytesIO(), io.BytesIO()
        numpy.save(array, numpy.ones(3))
        pickle.dump(HYPER, names)
        torch.save(STATE, self.path("a.pt"))
        for data, says in ((b"\x1f\x8b", "compressed by gzip: berth.load(gzip.open(f)) reads it"),
                           (b"\x04\x22\x4d\x18", "compressed by lz4: `lz4 -dc` unpacks it"),
                           (array.getvalue(), "torch.from_numpy(numpy.load(f)) is its tensor"),
                           (names.getvalue(), "a bare pickle, not a PyTorch checkpoint; it names the global"),
                           (self.read(self.path("a.pt")) + b"more", "]))` leaves them out, if data is all that is in the file")):
            with self.subTest(says), self.assertRaises(berth.Error) as caught:
                berth.load(io.BytesIO(data))
            self.assertIn(says, str(caught.exception))
            self.assertNotRegex(str(caught.exception), r"\b(FILE|DIRECTORY|IN|NEW\.pt)\b")

    def test_bytes_behind_a_safetensors_file(self):
        berth.save(STATE, self.path("a.safetensors"))
        data = self.read(self.path("a.safetensors"))
        self.check_is_whole(self.path("a.safetensors"))
        says = f"at byte {len(data)}: 11 bytes follow the last tensor"
        self.write("a.safetensors", data + b"extra bytes")
        self.check_is_broken(self.path("a.safetensors"), f"a.safetensors: {says}: `berth.load(io.BytesIO(data[:{len(data)}]))` leaves them out")
        self.check_is_broken(io.BytesIO(data + b"extra bytes"), says)

    @unittest.skipUnless(shutil.which("strace"), "no strace")
    def test_bytes_that_the_disk_cannot_read(self):
        """Every read of the file in its turn fails: an exception, but where only the names are read once more."""
        torch.save({"a": torch.zeros(100_000)}, self.path("a.pt"))
        said = {"load": set(), "verify": set()}
        for call, when in (("load", 1), ("load", 2), ("load", 9), *(("verify", when) for when in range(1, 5))):
            reading = starter.Child(UNREADABLE, call, self.path("a.pt"))
            subprocess.run(
                ["strace", "-f", "-qq", "-o", "/dev/null", "-P", self.path("a.pt"), "-e", "trace=pread64,getxattr",
                 f"--inject=pread64:error=EIO:when={when}", "--inject=getxattr:error=EXDEV", "-p", str(reading.pid)],
                check=False)
            status, out, err = reading.wait()
            self.assertEqual(status, 0, err)
            kind, number, says = json.loads(out)
            said[call].add(kind)
            if kind != "good":  # "unlisted" is good, too
                self.assertIn("Input/output error", says)
                self.assertIn("a.pt", says)
                self.assertEqual(number, errno.EIO)
        self.assertEqual(said, {"load": {"FileError", "good"}, "verify": {"FileError", "unlisted", "good"}})
