# SPDX-License-Identifier: BSD-3-Clause
"""What berth.save writes: the bytes of torch.save, for every value and to every target."""

import collections
import copyreg
import io
import os
import pathlib
import tempfile
import unittest
import warnings
import zipfile

import berth
import cases
import safetensors.torch
import torch
from berth import _conditions, _native
from berth._errors import Declined, declined
from torch import nn

from folder import Folder
from same import same


# PyTorch 2.6 does not write these records, and others in another order; the id is computed from all.
NEWER = (".format_version", ".storage_alignment", ".data/serialization_id")


def records(file):
    """[(name, bytes)] of those that every PyTorch writes."""
    with zipfile.ZipFile(file) as archive:
        return sorted((name, archive.read(name)) for name in archive.namelist()
                      if name.partition("/")[2] not in NEWER)


def torch_writes_all():
    buffer = io.BytesIO()
    torch.save(1, buffer)
    return "archive/.format_version" in zipfile.ZipFile(buffer).namelist()


WRITES_ALL = torch_writes_all()


def comparable(data):
    """The bytes of a file for a comparison with PyTorch's; with an older PyTorch those of the records."""
    return data if WRITES_ALL else records(io.BytesIO(data))


class Saved(Folder):
    def both(self, value, name="v.pt"):
        """The file that berth.save writes, and that of torch.save, under one name."""
        mine, theirs = self.path(f"berth/{name}"), self.path(f"torch/{name}")
        berth.save(value, mine)
        torch.save(value, theirs)
        return mine, theirs

    def identical(self, value, name="v.pt"):
        """The bytes of both, which are the same."""
        mine, theirs = self.both(value, name)
        self.assertEqual(comparable(self.read(mine)), comparable(self.read(theirs)))
        return self.read(mine)


class Bytes(Saved):
    def test_every_case_of_the_peers(self):
        """To a path, an open file and a BytesIO."""
        for name, make in cases.CASES.items():
            if not make.differs.get("bytes_differ"):
                with self.subTest(name):
                    value = make()
                    self.identical(value)
                    self.identical_in_objects(value)

    def identical_in_objects(self, value):
        theirs, mine = io.BytesIO(), io.BytesIO()
        torch.save(value, theirs)
        berth.save(value, mine)
        with open(self.path("object.pt"), "w+b") as file:
            berth.save(value, file)
            file.seek(0)
            for each in (mine.getvalue(), file.read()):
                self.assertEqual(comparable(each), comparable(theirs.getvalue()))

    @unittest.skipUnless(hasattr(torch.utils, "serialization"), "since PyTorch 2.7")
    def test_options_of_torch_have_names_of_ours(self):
        from torch.utils.serialization import config

        value = cases.CASES["training_script"]()
        for alignment in (1, 4096):
            with self.subTest(alignment), config.patch({"save.storage_alignment": alignment}), \
                    berth.config.patch(save_storage_alignment=alignment):
                self.identical(value)

    def test_attributes_of_tensors(self):
        tensor = torch.ones(2)
        tensor.note, tensor.itself = "text", [1]
        parameter = nn.Parameter(torch.ones(3))
        parameter.note = tensor.itself
        self.identical([tensor, parameter, tensor, nn.Buffer(torch.ones(1))])

    def test_a_tensor_whose_storage_was_freed(self):
        """As FSDP frees those of parameters. No plain value, so PyTorch's own code pickles it."""
        tensor = torch.ones(3)
        tensor.untyped_storage().resize_(0)
        self.identical({"model": [tensor, torch.ones(2)]})
        with self.assertRaisesRegex(TypeError, r"^\['model'\]\[0\] cannot be saved: a tensor of float32, shape \[3\], .* has 0$"):
            berth.dcp.save({"model": [tensor]}, self.path("v.pt"))

    def test_what_holds_itself(self):
        items, table = [], {}
        items.append((1, [table]))
        table["items"], table["itself"] = items, table
        self.identical([items, table])

    def test_a_tuple_that_holds_itself_is_refused(self):
        """Unless its list comes first. What torch.save writes, torch.load(weights_only=True) refuses."""
        items = []
        pair = (items, 1)
        items.append(pair)
        self.identical([items, pair])
        for value in (pair, [pair, items]):
            with self.assertRaisesRegex(berth.Error, "a tuple contains itself"):
                berth.save(value, self.path("v.pt"))

    def test_an_ordered_dict_in_its_own_order_with_attributes(self):
        value = collections.OrderedDict((str(i), i) for i in range(10))
        value.move_to_end("3", last=False)
        value._metadata = {"version": 1}
        self.identical([value, value._metadata])

    def test_names_that_torch_writes_itself(self):
        self.identical({"cpu": torch.ones(1), "storage": torch.ones(2), "0": 1, "": [""]})

    def test_views_of_mapped_and_loaded_tensors(self):
        path = self.path("v.pt")
        torch.save({"a": torch.arange(100.), "b": torch.ones(0)}, path)
        for mmap in (False, True):
            loaded = berth.load(path, mmap=mmap)
            self.identical([loaded["a"][10:20], loaded])

    def test_a_tensor_that_is_no_leaf(self):
        leaf = torch.ones(3, requires_grad=True)
        self.identical([leaf * 2, leaf])

    def test_two_dtypes_of_one_storage_are_refused_as_by_torch(self):
        base = torch.arange(4.)
        for save in (berth.save, torch.save):
            with self.assertRaisesRegex(RuntimeError, "view the same data as different types"):
                save([base, base.view(torch.int32)], self.path("v.pt"))

    def test_dtypes_that_torch_does_not_save_are_refused(self):
        """Not written as int8, which is how PyTorch passes them by DLPack."""
        names = [f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8) if hasattr(torch, f"{kind}{bits}")]
        self.assertIn("uint4", names)
        for name in names:
            tensor = torch.arange(6, dtype=torch.uint8).view(getattr(torch, name))
            for value, file in ((tensor, "v.pt"), ([tensor[::2]], "v.pt"), ({"t": tensor}, "v.safetensors"),
                                ([torch.nn.Parameter(tensor, requires_grad=False)], "v.pt"),
                                (torch.TypedStorage(wrap_storage=tensor.untyped_storage(), dtype=tensor.dtype,
                                                    _internal=True), "v.pt")):
                with self.subTest((name, type(value), file)):
                    if file == "v.pt":
                        self.assertRaises(KeyError, torch.save, value, self.path("t.pt"))
                    with self.assertRaisesRegex(TypeError, f"torch.{name}, which PyTorch loads but does not save: "):
                        berth.save(value, self.path(file))
                    self.assertFalse(os.path.exists(self.path(file)))
            self.identical([tensor.view(torch.uint8), tensor.to("meta"), tensor.dtype])

    def test_hooks_are_warned_about_as_by_torch(self):
        tensor = torch.ones(1, requires_grad=True)
        tensor.register_hook(lambda grad: grad)
        for save in (berth.save, torch.save):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                save(tensor, self.path("v.pt"))
            self.assertEqual([str(each.message)[:13] for each in caught], ["backward hook"])


class Mine(dict):
    pass


class MyTensor(torch.Tensor):
    pass


class Plain(Folder):
    """What is not walked in C, and why. PyTorch's pickler takes it then (records.py)."""

    def declined(self, value, path, reason):
        target = self.write("old.pt", b"old")
        with self.assertRaises(Declined) as caught:
            if why := _conditions.reason():
                raise declined([], why)
            _native.save_begin(value, os.fsencode(target), None, False)
        self.assertEqual(caught.exception.path, path)
        self.assertIn(reason, caught.exception.reason)
        self.assertIn(reason, str(caught.exception))
        self.assertEqual(self.read(target), b"old")
        self.assertEqual(os.listdir(self.folder), ["old.pt"])

    def test_what_is_no_plain_value_is_named_with_its_path(self):
        plain = "is not a plain type"
        module = nn.Linear(1, 1)
        attribute = torch.ones(1)
        attribute.fun = len
        state = collections.OrderedDict()
        state._metadata = {"f": len}
        empty = torch.ones(0).untyped_storage()
        two_dtypes = [torch.storage.TypedStorage(wrap_storage=empty, dtype=dtype, _internal=True)
                      for dtype in (torch.float32, torch.float64)]
        self.declined(module, "", plain)
        self.declined({"model": [1, module]}, "['model'][1]", plain)
        self.declined([(0, Mine())], "[0][1]", plain)
        self.declined({"k": {frozenset(): 1}}, "['k'].keys(): frozenset()", plain)
        self.declined([{"a", frozenset()}], "[0]: frozenset()", plain)
        self.declined(torch.ones(1).as_subclass(MyTensor), "", plain)
        self.declined([attribute], "[0]['fun']", plain)
        self.declined(state, ".__dict__['_metadata']['f']", plain)
        self.declined([2**5000], "[0]", "an int of 626 bytes")
        self.declined([torch.contiguous_format], "[0]", plain)
        self.declined(two_dtypes, "[1]", "its empty storage has another dtype, too")

    def test_where_torch_is_not_itself(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            self.declined([1], "", "a torch dispatch mode is active")
        with torch.device("meta"):
            self.declined([1], "", "a torch function mode is active")
        with torch._guards.tracing(torch._guards.TracingContext(None)):
            self.declined([1], "", "torch.compile is tracing")
        with torch.serialization.skip_data():
            self.declined([1], "", "skip_data")
        copyreg.pickle(torch.Tensor, lambda tensor: (list, ()))
        self.addCleanup(copyreg.dispatch_table.pop, torch.Tensor, None)
        self.declined([1], "", "copyreg")
        del copyreg.dispatch_table[torch.Tensor]
        registry = list(torch.serialization._package_registry)
        torch.serialization.register_package(0, lambda storage: None, lambda storage, where: None)
        try:
            self.declined([1], "", "register_package")
        finally:
            torch.serialization._package_registry[:] = registry

    def test_values_that_are_nested_too_deep_for_pickle(self):
        value = []
        for _ in range(100_000):
            value = [value]
        with self.assertRaises(RecursionError):
            berth.save(value, self.path("v.pt"))


class Safetensors(Saved):
    """The name of a path says that the file is one of safetensors; the package writes the same bytes."""

    def test_the_bytes_are_those_of_the_package(self):
        rows = torch.arange(12.).reshape(3, 4)
        value = {"a.b": rows, "b": rows.t(), "0": rows[1:], "tied": rows, "": torch.tensor(3),
                 "\u20ac\n": torch.zeros(0, 3), "p": torch.nn.Parameter(rows), "format": torch.ones(2) > 0,
                 "c": torch.view_as_complex(torch.rand(3, 2)).conj(),
                 **{str(kind): rows.to(kind) for kind in (torch.bfloat16, torch.float16, torch.float64,
                                                          torch.float8_e4m3fn, torch.int8, torch.uint8)}}
        whole = {name: each.detach().clone().contiguous().resolve_conj() for name, each in value.items()}
        path = self.path("v.safetensors")
        for tensors, made in (({}, {}), (whole, collections.OrderedDict(value)), (whole, value)):
            expected = safetensors.torch.save(tensors, {"format": "pt"})
            for save in (berth.save, lambda *call: berth.save_async(*call).result()):
                for f in (path, os.fsencode(path), pathlib.Path(path)):
                    save(made, f)
                    self.assertEqual(self.read(path), expected)
        loaded = berth.load(path)
        self.assertEqual(set(loaded), set(whole))
        same({name: loaded[name] for name in whole}, whole, resizable=False)

    def test_only_the_names_of_paths_count(self):
        path = self.path("v.safetensors")
        with open(path, "wb") as file:
            berth.save({"a": torch.ones(2)}, file)
        self.assertTrue(zipfile.is_zipfile(path))
        with berth.installed():
            torch.save([1], path)
        self.assertTrue(zipfile.is_zipfile(path))

    def test_what_it_cannot_hold(self):
        tensor, path = torch.ones(2), self.path("v.safetensors")
        for value, words in (
                (tensor, "the value is of <class 'torch.Tensor'>"),
                ([tensor], "the value is of <class 'list'>"),
                ({"a": tensor, "epoch": 1}, r"\['epoch'\] is of <class 'int'>"),
                ({"a": {"b": tensor}}, r"\['a'\] is of <class 'dict'>"),
                ({1: tensor}, "a key is of <class 'int'>"),
                ({"\ud800": tensor}, r"'\\ud800' has a surrogate"),
                ({"a": tensor.as_subclass(MyTensor)}, "is not a plain type")):
            for save in (berth.save, berth.save_async):
                with self.assertRaisesRegex(TypeError, words):
                    save(value, path)
        for value, words in (({"a": tensor.to_sparse()}, "sparse"), ({"a": tensor.to("meta")}, "meta"),
                             ({"a": tensor.to(torch.complex128)}, "complex128"),
                             ({"__metadata__": tensor}, "reserved")):
            with self.assertRaisesRegex(berth.Error, f"v.safetensors: .*{words}"):
                berth.save(value, path)
        with self.assertRaisesRegex(TypeError, "berth.save.berth.load"):
            berth.dcp.save({"a": tensor}, path)
        self.assertEqual(os.listdir(self.folder), [])


class Writer:
    """An object with write() that takes at most n bytes at a time."""

    def __init__(self, most, fails_at=None):
        self.data, self.most, self.fails_at, self.flushed = b"", most, fails_at, False

    def write(self, data):
        if self.fails_at is not None and len(self.data) >= self.fails_at:
            raise ZeroDivisionError("of the writer")
        self.data += bytes(data[:self.most])
        return min(len(data), self.most)

    def flush(self):
        self.flushed = True


class Targets(Saved):
    VALUE = {"a": torch.arange(1000.), "b": [1, "two"]}

    def setUp(self):
        super().setUp()
        # Without a path the archive is called "archive", too.
        self.expected = self.identical(self.VALUE, "archive.pt")

    def test_paths(self):
        for path in (self.path("a/archive.pt"), pathlib.Path(self.path("b/archive.pt")),
                     os.fsencode(self.path("c/archive.pt"))):
            berth.save(self.VALUE, path)
            self.assertEqual(self.read(path), self.expected)

    def test_a_path_that_is_no_text(self):
        path = os.path.join(os.fsencode(self.folder), b"\xff\xfe.pt")
        berth.save(self.VALUE, path)
        self.assertEqual(berth.load(os.fsdecode(path))["b"], [1, "two"])

    def test_bytes_io(self):
        buffer = io.BytesIO(b"before")
        buffer.seek(6)
        berth.save(self.VALUE, buffer)
        self.assertEqual(buffer.getvalue(), b"before" + self.expected)
        self.assertEqual(buffer.tell(), 6 + len(self.expected))

    def test_objects_that_write(self):
        for most in (1 << 30, 7):
            writer = Writer(most)
            berth.save(self.VALUE, writer)
            self.assertEqual(writer.data, self.expected)
            self.assertTrue(writer.flushed)

    def test_an_exception_of_the_writer_is_passed_on(self):
        with self.assertRaisesRegex(ZeroDivisionError, "of the writer"):
            berth.save(self.VALUE, Writer(1 << 30, fails_at=100))
        with self.assertRaisesRegex(OSError, "returned 0, not how many of"):
            berth.save(self.VALUE, Writer(0))

    def test_files_at_their_position(self):
        for mode, buffering in (("wb", -1), ("wb", 0), ("w+b", -1), ("r+b", -1)):
            with self.subTest(mode=mode, buffering=buffering):
                path = self.write("v.pt", b"0123456789" * 2)
                with open(path, mode, buffering=buffering) as file:
                    file.write(b"before")
                    berth.save(self.VALUE, file)
                    self.assertEqual(file.tell(), 6 + len(self.expected))
                    file.write(b"after")
                self.assertEqual(self.read(path), b"before" + self.expected + b"after")

    def test_files_that_only_seem_real(self):
        import gzip

        with tempfile.NamedTemporaryFile(dir=self.folder) as file:
            berth.save(self.VALUE, file)
            self.assertEqual(self.read(file.name), self.expected)
        with gzip.open(self.path("v.gz"), "wb") as file:
            berth.save(self.VALUE, file)
        with gzip.open(self.path("v.gz")) as file:
            self.assertEqual(file.read(), self.expected)

    def test_a_buffer_around_something_else(self):
        raw = io.BytesIO()
        with io.BufferedWriter(raw) as file:
            berth.save(self.VALUE, file)
            self.assertEqual(raw.getvalue(), self.expected)

    def test_a_pipe(self):
        ends = os.pipe()
        with os.fdopen(ends[0], "rb") as read, os.fdopen(ends[1], "wb") as write:
            berth.save(self.VALUE, write)
            write.close()
            self.assertEqual(read.read(), self.expected)

    def test_what_is_no_file(self):
        with self.assertRaisesRegex(AttributeError, "'write' attribute"):
            berth.save(1, 5)
