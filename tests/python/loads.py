# SPDX-License-Identifier: BSD-3-Clause
"""What berth.load returns: what torch.load returns."""

import contextlib
import fractions
import functools
import glob
import io
import os
import pickle
import sys
import threading
import time
import zipfile

import berth
import cases
import safetensors.torch
import torch
from berth import _gate
from pickles import ONE, PROTO, archive, get, put, tensor

from differential import Watch
from calls import in_a_child
from folder import Folder
from processes import resident
from records import Box
from same import Different, same

INTERVAL = sys.getswitchinterval()  # while no save shortens it
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")


class Values(Folder):
    def same_as_torch(self, path, mmap, **how):
        mine = berth.load(path, mmap=mmap)
        theirs = torch.load(path, weights_only=True, mmap=mmap)
        same(mine, theirs, empty_are_shared=mmap, **how)
        return mine

    def test_classes_and_functions_as_values(self):
        """All that PyTorch allows, but what Berth refuses by its name; pickle writes those of builtins as Python 2's."""
        n_loaded = 0
        for name, each in torch._weights_only_unpickler._get_allowed_globals().items():
            with contextlib.suppress(pickle.PicklingError):  # its own name is another one
                torch.save({"v": each}, self.path("v.pt"))
                with self.subTest(name), contextlib.suppress(pickle.UnpicklingError):
                    theirs = torch.load(self.path("v.pt"), weights_only=True)
                    if name not in _gate.WITH_CLASSES:
                        self.assertIs(berth.load(self.path("v.pt"))["v"], theirs["v"])
                        n_loaded += 1
        self.assertGreater(n_loaded, 90)

    def test_an_empty_storage_of_two_classes(self):
        """As PyTorch's own test_save_different_dtype_unallocated; identity as there."""
        types = torch.float32, torch.float64, torch.int8, torch.bool, torch.complex64, torch.bfloat16
        for first in types:
            empty = torch.tensor([], dtype=first)
            for second in types:
                other = torch.TypedStorage(wrap_storage=empty.untyped_storage(), dtype=second, _internal=True)
                own = torch.TypedStorage(wrap_storage=empty.untyped_storage(), dtype=first, _internal=True)
                for value in ([empty, other], [own, other, own, other], [other, empty],
                              [empty, torch.tensor([], dtype=second)]):
                    buffer = io.BytesIO()
                    torch.save(value, buffer)
                    for data in (io.BytesIO(buffer.getvalue()), self.write("v.pt", buffer.getvalue())):
                        with self.subTest(first=first, second=second):
                            mine = berth.load(data)
                            if not isinstance(data, str):
                                data.seek(0)
                            theirs = torch.load(data, weights_only=True)
                            self.assertEqual([each.dtype for each in mine], [each.dtype for each in value])
                            self.assertEqual([[a is b for a in mine] for b in mine],
                                             [[a is b for a in theirs] for b in theirs])

    def test_every_case_of_the_peers(self):
        for name, make in cases.CASES.items():
            differs, path = make.differs, self.path("v.pt")
            if differs.get("torch_loads_otherwise"):
                continue
            with self.subTest(name):
                value = make()
                torch.save(value, path)
                if differs.get("torch_cannot_load"):
                    self.assertRaises(berth.Error, berth.load, path)
                    berth.save(value, path)
                    same(berth.load(path), value)
                    continue
                for mmap in (True,) if differs.get("only_mmap") else (False, True):
                    self.same_as_torch(path, mmap)

    def test_several_old_values_in_one_file(self):
        """torch.save of PyTorch before 1.6, called several times: each load goes on behind the last one."""
        values = {"a": torch.arange(5.)}, [torch.ones(3, dtype=torch.uint8), "x"], 7, {"b": torch.ones(1 << 18)}
        path = self.path("v.pt")
        with open(path, "wb") as file:
            for value in values:
                torch.save(value, file, _use_new_zipfile_serialization=False)

        def loaded(load, file):
            return [(load(file), file.tell()) for _ in values]

        class Other(io.BytesIO):
            pass

        for make in (io.BytesIO, Other):
            same(*(loaded(load, make(self.read(path))) for load in (berth.load, torch.load)), resizable=False)
        for buffering in (0, -1):
            with open(path, "rb", buffering) as mine, open(path, "rb") as theirs:
                same(loaded(berth.load, mine), loaded(torch.load, theirs), resizable=False)
        for options in ({}, {"encoding": "latin1"}, {"weights_only": False}):
            same(berth.load(path, **options), torch.load(path, **options), resizable=False)
            for load in (berth.load, torch.load):
                with open(path, "rb") as file:
                    same([load(file, **options) for _ in values], list(values), resizable=False)
        with berth.installed():
            same(torch.load(path), values[0], resizable=False)
        same(berth.load(path, mmap=True), values[0], resizable=False)
        with berth.open(path) as opened:
            self.assertEqual(opened.keys(), ["a"])
            self.assertGreater(opened.info["behind_nbytes"], 1 << 20)
        report = berth.verify(path)
        self.assertEqual((report.error, report.intact, report.n_storages), ("", True, 3))
        self.assertGreater(report.behind_nbytes, 1 << 20)
        self.write("x.pt", self.read(path)[:-1])
        report = berth.verify(self.path("x.pt"))
        self.assertFalse(report or report.intact)
        self.assertRegex(report.error, r"x.pt from byte \d+ on: storage .* did not end\?: what is in front of it is "
                         r"whole, and berth\.load\(f\) gives its first object$")
        same(berth.load(self.path("x.pt")), values[0], resizable=False)
        with open(self.path("allowed.pt"), "wb") as file:
            for number in (1, 2):
                torch.save(fractions.Fraction(number), file, _use_new_zipfile_serialization=False)
        with torch.serialization.safe_globals([fractions.Fraction]):
            for load in (berth.load, torch.load):
                self.assertEqual(load(self.path("allowed.pt")), 1)
                with open(self.path("allowed.pt"), "rb") as file:
                    self.assertEqual([load(file), load(file)], [1, 2])
        torch.save(values[0], self.path("y.pt"), _use_new_zipfile_serialization=False)
        self.write("y.pt", self.read(self.path("y.pt")) + bytes(9))
        with self.assertRaisesRegex(berth.Error, "follow the last storage"):
            berth.load(self.path("y.pt"))
        with open(path, "rb") as file:
            file.seek(1)
            with self.assertRaises(berth.Error):
                berth.load(file)

    def test_a_file_object_at_its_end(self):
        """Who has forgotten seek(0) is told so; who loads until EOFError, as with PyTorch, ends there."""
        for is_zip in (True, False):
            torch.save([1], self.path("v.pt"), _use_new_zipfile_serialization=is_zip)
            data = self.read(self.path("v.pt"))
            for begin in (len(data), len(data) + 5):
                for open_it in (lambda: io.BytesIO(data), lambda: open(self.path("v.pt"), "rb"),
                                lambda: open(self.path("v.pt"), "rb", buffering=0), lambda: io.BufferedReader(io.BytesIO(data))):
                    for load in (berth.load, lambda f: berth.load(f, weights_only=False), berth.open,
                                 lambda f: torch.load(f), None):  # pylint: disable=unnecessary-lambda
                        with open_it() as file, self.subTest(is_zip=is_zip, begin=begin, file=file, load=load):
                            file.seek(begin)
                            says = (f"the object of {type(file)}: its position, byte {begin}, is its end, so there is nothing "
                                    "to read. f.seek(0) goes to its begin")
                            if not load:
                                report = berth.verify(file)
                                self.assertEqual((report.error, report.intact), (says, False))
                                continue
                            with berth.installed(), self.assertRaises(EOFError) as caught:
                                load(file)
                            self.assertIsInstance(caught.exception, berth.DamagedFileError)
                            self.assertEqual((str(caught.exception), caught.exception.status, caught.exception.offset),
                                             (says, "BERTH_E_TRUNCATED", begin))
        with self.assertRaisesRegex(berth.DamagedFileError, "^memory: the file is empty"):
            berth.load(io.BytesIO())
        with open(self.path("v.pt"), "rb") as file, berth.installed():
            found = []
            with self.assertRaises(EOFError):
                while True:
                    found.append(torch.load(file))
            self.assertEqual(found, [[1]])

    def test_a_file_object_can_be_closed_while_its_tensors_live(self):
        """As PyTorch's own test_save_different_dtype_unallocated does: nothing of a BytesIO stays lent."""
        value = {"a": torch.arange(5.), "empty": torch.ones(0), "view": torch.arange(9.)[3:5]}
        for is_zip in (False, True):
            with io.BytesIO() as file:
                torch.save(value, file, _use_new_zipfile_serialization=is_zip)
                file.seek(0)
                loaded = berth.load(file)
                file.seek(0)
                with berth.open(file) as opened:
                    tensors = {name: opened[name] for name in opened.keys()}
                del opened
                with self.subTest(is_zip=is_zip):
                    file.truncate(0)
                self.assertEqual(loaded["empty"].untyped_storage().data_ptr(), 0)  # so PyTorch shares it with nobody
            for name, tensor in value.items():
                self.assertTrue(loaded[name].equal(tensor) and tensors[name].equal(tensor))

    def test_an_old_file_whose_last_storage_has_a_part_of_an_element(self):
        for nbytes, kind in ((7, torch.float32), (23, torch.complex128), (3, torch.int16)):
            bytes_of = torch.UntypedStorage(nbytes).fill_(1)
            value = {"a": torch.empty(0, dtype=kind).set_(bytes_of, 0, (1,), (1,))}
            path = self.path("v.pt")
            torch.save(value, path, _use_new_zipfile_serialization=False)
            same(berth.load(path), torch.load(path), resizable=False)
            with berth.open(path) as file:
                self.assertTrue(torch.equal(file["a"], value["a"]))
                self.assertTrue(file.verify())
            with open(path, "ab") as file:
                file.write(bytes(kind.itemsize))
            self.assertRaises(berth.Error, berth.load, path)

    def test_the_comparison_sees_what_differs(self):
        base = torch.arange(4.)
        for mine, theirs in (([base, base], [base, base.clone()]), ([[1]] * 2, [[1], [1]]),
                             (base[:2], base[:2].clone()), (1, True), (0.0, -0.0),
                             (["ab" * 2] * 2, ["".join(("ab", "ab")), "".join(("ab", "ab"))]),
                             (base, torch.arange(4.).requires_grad_())):
            with self.assertRaises(Different):
                same(mine, theirs)

    def test_texts_of_safetensors_make_no_tensors(self):
        """S4: what load_file gives, whatever __metadata__ says, and whoever wrote it."""
        import safetensors.torch

        class Tied(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.lm_head = torch.nn.Embedding(4, 4), torch.nn.Linear(4, 4, bias=False)
                self.lm_head.weight = self.embed.weight

        path, model = self.path("m.safetensors"), Tied()
        for metadata in ({"best_layer": "weight"}, {"zz": "weight", "format": "weight"}, {"weight": "weight"},
                         {"other.weight": "a.weight"}):
            safetensors.torch.save_file({"weight": torch.ones(2), "a.weight": torch.zeros(3)}, path, metadata=metadata)
            same(berth.load(path), safetensors.torch.load_file(path))
            with berth.open(path) as file:
                self.assertEqual(sorted(file.keys()), ["a.weight", "weight"])
            berth.install()
            try:
                same(torch.load(path), safetensors.torch.load_file(path))
            finally:
                berth.uninstall()
        safetensors.torch.save_model(model, path)
        same(berth.load(path), safetensors.torch.load_file(path))
        with berth.config.patch("load.tied_names=rule"):
            model.load_state_dict(berth.load(path))  # strict
        self.assertEqual(safetensors.torch.load_model(Tied(), path), (set(), []))

    def test_files_of_other_versions(self):
        """All files of tests/data that torch.load takes; among them legacy ones with views."""
        n = 0
        for path in sorted(glob.glob(f"{DATA}/*/*.pt*")):
            try:
                torch.load(path, weights_only=True)
            except Exception:
                continue  # TorchScript, pickled modules, inert classes
            with self.subTest(os.path.basename(path)), berth.config.patch("debug=off"):
                # torch.load makes storages of legacy files that can be resized.
                self.same_as_torch(path, False, resizable="stream" not in path)
                n += 1
        self.assertGreater(n, 8)

    def test_views_in_legacy_files_share_memory(self):
        value = berth.load(f"{DATA}/old/views-1.13-stream.pth")
        theirs = torch.load(f"{DATA}/old/views-1.13-stream.pth", weights_only=True)
        mine, other = ([each.detach() for each in tensors(tree)] for tree in (value, theirs))
        for tensor in (*mine, *other):
            tensor.zero_()
        n_shared = 0
        for i, tensor in enumerate(mine):
            tensor.fill_(1)
            other[i].fill_(1)
            same(mine, other, resizable=False)
            n_shared += sum(bool(each.any()) for each in mine) > 1
            tensor.zero_()
            other[i].zero_()
        self.assertGreater(n_shared, 1)

    def test_bad_sparse_indices_are_refused_where_torch_refuses_them(self):
        """PyTorch 2.13 only where the program wants it, all others."""
        path = self.path("v.pt")
        torch.save(torch.sparse_coo_tensor([[0, 9]], [1., 2.], (3,), check_invariants=False), path)
        for checks in (False, True):
            with torch.sparse.check_sparse_tensor_invariants(checks):
                said = [self.message(load, path) for load in (berth.load, torch.load)]
                self.assertTrue(said[0] == said[1] or said[0].endswith(said[1] or "?"), said)
        self.assertIn("found index 9", said[0])
        good = torch.sparse_coo_tensor([[0, 2]], [1., 2.], (3,))
        torch.save(good, path)
        with torch.sparse.check_sparse_tensor_invariants():  # of the load that failed nothing is left
            same(berth.load(path), torch.load(path))

    def test_bad_sparse_indices_of_loads_that_overlap(self):
        """Each load checks what it has made, and nothing else."""
        bad, good = self.path("bad.pt"), self.path("good.pt")
        torch.save([torch.sparse_coo_tensor([[0, 9]], [1., 2.], (3,), check_invariants=False), torch.ones(7)],
                   bad)
        torch.save(torch.sparse_coo_tensor([[0, 2]], [1., 2.], (3,)), good)

        def meanwhile(storage, location):
            if storage.nbytes() == 7 * 4:  # the sparse tensor is made
                thread = threading.Thread(target=berth.load, args=(good,))
                thread.start()
                thread.join()
                berth.load(good)
            return storage

        with torch.sparse.check_sparse_tensor_invariants():
            self.assertIn("found index 9", self.message(lambda path: berth.load(path, meanwhile), bad))

    def test_bad_sparse_indices_in_many_threads(self):
        """PyTorch turns the switch of the process off while it makes one."""
        path, loaded = self.path("v.pt"), []

        def work():
            for _ in range(100):
                if "found index 9" not in self.message(berth.load, path):
                    loaded.append(path)

        self.addCleanup(sys.setswitchinterval, INTERVAL)
        sys.setswitchinterval(1e-6)
        for more in None, Box(1):  # the second by PyTorch's unpickler
            torch.save([torch.sparse_coo_tensor([[0, 9]], [1., 2.], (3,), check_invariants=False), more], path)
            with torch.sparse.check_sparse_tensor_invariants(), torch.serialization.safe_globals([Box]):
                threads = [threading.Thread(target=work) for _ in range(8)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertTrue(torch.sparse.check_sparse_tensor_invariants.is_enabled())
            self.assertEqual(loaded, [])

    def test_bad_sparse_indices_of_a_load_that_fails_before_they_are_checked(self):
        """It leaves nothing to the next load, PyTorch's neither; PyTorch's own leaves all that it has made."""
        bad, good = self.path("bad.pt"), self.path("good.pt")
        torch.save([torch.sparse_coo_tensor([[0, 9]], [1., 2.], (3,), check_invariants=False), Box(1),
                    torch.ones(7)], bad)
        torch.save(torch.sparse_coo_tensor([[0, 2]], [1., 2.], (3,)), good)

        def fails(storage, _):
            if storage.nbytes() == 7 * 4:  # the sparse tensor is made
                raise KeyError("mine")
            return storage

        with torch.sparse.check_sparse_tensor_invariants(), torch.serialization.safe_globals([Box]):
            with self.assertRaisesRegex(KeyError, "mine"):
                berth.load(bad, fails)
            self.assertEqual(self.message(torch.load, good), "loaded")

    def message(self, load, path):
        try:
            load(path)
        except RuntimeError as error:
            return str(error)
        return "loaded"

    def test_the_other_byte_order(self):
        value = {"a": torch.arange(5.), "b": torch.arange(5, dtype=torch.int16)}
        with berth.config.patch("save.byteorder=big"):
            berth.save(value, self.path("v.pt"))
        for mmap in (False, True):
            self.same_as_torch(self.path("v.pt"), mmap)

    def test_deflated_and_safetensors(self):
        with berth.config.patch("debug=off"):  # which refuses what was zipped again
            same(berth.load(f"{DATA}/torch/deflated.pt"),
                 torch.load(f"{DATA}/torch/deflated.pt", weights_only=True), empty_are_shared=False)
        from safetensors.torch import save_file

        value = {"a": torch.arange(6.).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
        save_file(value, self.path("v.safetensors"))
        for options in ({}, {"mmap": True}, {"encoding": "latin1"}):
            loaded = berth.load(self.path("v.safetensors"), **options)
            self.assertEqual(list(loaded), ["a", "b"])
            self.assertTrue(all(torch.equal(loaded[key], value[key]) for key in value))

    def test_memory_of_its_own(self):
        """Each storage goes with its last tensor; large ones begin at a large page."""
        torch.save([torch.ones(1 << 20), torch.ones(3)], self.path("v.pt"))
        large, small = berth.load(self.path("v.pt"))
        self.assertEqual(large.data_ptr() % (2 << 20), 0)
        self.assertEqual(small.data_ptr() % 64, 0)

    def test_a_map_has_no_descriptor(self):
        """200 mapped files, of load and of open; what reads further after a File is closed has all it needs."""
        value = {"weight": torch.arange(5000.0), "bias": torch.arange(3.0)}
        torch.save(value, self.path("model.pt"))
        before, held = self.open_files(), []
        for i in range(200):
            if i % 2:
                held.append(berth.load(self.path("model.pt"), mmap=True))
                continue
            with berth.open(self.path("model.pt")) as file:
                held.append({name: file[name] for name in value})
        self.assertEqual(self.open_files(), before)
        child = os.fork()
        if child == 0:
            good = all(tensor.equal(value[name]) for each in held for name, tensor in each.items())
            held.clear()
            os._exit(0 if good else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        for each in held:
            for name, tensor in each.items():
                self.assertTrue(tensor.equal(value[name]))
        del each, tensor
        held.clear()
        with open("/proc/self/maps", encoding="utf-8") as maps:
            self.assertNotIn(self.path("model.pt"), maps.read())

    def test_a_prefetch_keeps_the_descriptor_of_a_map(self):
        torch.save(torch.arange(500_000.0), self.path("model.pt"))
        before = self.open_files()
        with berth.config.patch("load.prefetch", "populate"):
            tensor = berth.load(self.path("model.pt"), mmap=True)
        self.assertGreater(self.open_files(), before)
        self.assertTrue(tensor.equal(torch.arange(500_000.0)))
        del tensor
        self.assertEqual(self.open_files(), before)

    def test_mapped_tensors_are_written_to_in_this_process_only(self):
        path = self.path("v.pt")
        torch.save({"a": torch.zeros(5000)}, path)
        before = self.read(path)
        with berth.config.patch("load.mmap_flags=shared"):
            mapped = berth.load(path, mmap=True)
        mapped["a"].fill_(7)
        self.assertEqual(self.read(path), before)
        self.assertEqual(berth.load(path)["a"].sum(), 0)
        os.unlink(path)
        self.assertEqual(mapped["a"].sum(), 35000)

    def test_an_empty_storage_of_two_dtypes(self):
        empty = torch.ones(0)
        typed = torch.storage.TypedStorage(wrap_storage=empty.untyped_storage(), dtype=torch.float64,
                                           _internal=True)
        torch.save([empty, typed], self.path("v.pt"))
        for mmap in (False, True):
            same(berth.load(self.path("v.pt"), mmap=mmap), torch.load(self.path("v.pt"), mmap=mmap),
                 empty_are_shared=mmap)

    def test_a_tuple_that_its_list_holds(self):
        data = archive(PROTO + b"]" + put(0) + b"\x85" + put(1) + get(0) + get(1) + b"a\x86.")
        for load in (torch.load, berth.load):
            pair, items = load(io.BytesIO(data))
            self.assertTrue(pair[0] is items and items[0] is pair)

    def test_values_nested_as_deep_as_a_file_can_be(self):
        import pickles

        n = 200_000
        data = pickles.archive(pickles.PROTO + b"]" * n + b"a" * (n - 1) + b".")
        value = berth.load(io.BytesIO(data))
        depth = 0
        while value:
            value, depth = value[0], depth + 1
        self.assertEqual(depth, n - 1)


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(
            value, (list, tuple)) else ():
        yield from tensors(each)


class Places(Folder):
    """map_location."""

    def setUp(self):
        super().setUp()
        self.file = self.path("v.pt")
        shared = torch.arange(10.)
        self.value = {"a": shared, "b": shared[2:5], "p": torch.nn.Parameter(torch.ones(2)),
                      "s": torch.ones(3).untyped_storage(), "e": torch.ones(0)}
        torch.save(self.value, self.file)

    def same_as_torch(self, where):
        for mmap in (False, True):
            same(berth.load(self.file, where, mmap=mmap),
                 torch.load(self.file, where, weights_only=True, mmap=mmap),
                 empty_are_shared=mmap, resizable=False)

    def test_names_devices_and_dicts(self):
        for where in (None, "cpu", torch.device("cpu"), "meta", torch.device("meta"), {},
                      {"cpu": "cpu"}, {"cuda:0": "cpu"}, {"cpu": "meta"}):
            with self.subTest(where):
                self.same_as_torch(where)

    def test_locations_of_the_file_that_nobody_knows(self):
        """An error of ours, which names the file and shows its text; it is the caller's if the caller chose the place."""
        for location, shown in ((b"\xed\xa0\x80", "\\ud800"), (b"\x1b[2J", "\\x1b[2J"),
                                (b"\xe2\x80\xae", "\\u202e")):
            path = self.write("odd.pt", archive(PROTO + tensor(location=location) + b".", ONE))
            for where in (None, {}, {"cpu": "cpu"}, {"cpu": "meta"}, lambda storage, location: None):
                for options in ({}, {"mmap": True}, {"encoding": "latin1"}):
                    with self.subTest(location, where=where, options=options):
                        with self.assertRaises(berth.Error) as told:
                            berth.load(path, where, **options)
                        self.assertNotIsInstance(told.exception, berth.DamagedFileError)
                        self.assertTrue(str(told.exception).isprintable())
                        self.assertIn(path, str(told.exception))
                        self.assertIn(shown, str(told.exception))
            self.assertEqual(berth.load(path, "cpu").numel(), 1)
            with self.assertRaises(RuntimeError) as told:
                berth.load(path, {location.decode("utf-8", "surrogatepass"): "nowhere"})
            self.assertIs(type(told.exception), RuntimeError)

    def test_functions(self):
        calls = []

        def keep(storage, location):
            calls.append((bytes(storage), location))
            return storage

        self.same_as_torch(keep)
        self.assertEqual(calls[:4], calls[4:8])  # ours, then torch's
        self.same_as_torch(lambda storage, location: None)
        self.same_as_torch(lambda storage, location: storage.clone())

    def test_the_hosts_memory(self):
        """What is moved elsewhere needs the host's memory for 64 MiB and one storage, not for the file."""
        n, nbytes = 20, 12 << 20
        torch.save([torch.full((nbytes // 4,), i) for i in range(n)] + [torch.ones(3)], self.file)
        found, most = [], [0]

        def move(storage, location):
            found.append(int.from_bytes(bytes(storage[:4]), "little"))
            most[0] = max(most[0], resident())
            return torch.UntypedStorage(storage.nbytes(), device="meta")

        before = resident()
        value = berth.load(self.file, move)
        self.assertEqual(found[:n], list(range(n)))
        self.assertEqual({each.device.type for each in value}, {"meta"})
        if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # which keeps what was freed
            self.assertLess(most[0] - before, (64 << 20) + 3 * nbytes)

    def test_a_function_that_fails(self):
        def fail(storage, location):
            raise ZeroDivisionError

        for how in ({}, {"_use_new_zipfile_serialization": False}):
            torch.save(self.value, self.file, **how)
            for options in ({}, {"encoding": "latin1"}):
                with self.subTest(how, options=options):
                    with self.assertRaises(ZeroDivisionError):
                        berth.load(self.file, fail, **options)
                    with self.assertRaisesRegex(TypeError, "must return a torch.UntypedStorage or None, not"):
                        berth.load(self.file, lambda storage, location: location, **options)

    def test_a_device_that_is_not_there(self):
        """The file is whole: that is what verify says of it, and a load refuses no more than the place."""
        import pickles

        for location, says in (("cuda:0", "Attempting to deserialize object on a CUDA"), ("xyz:9", "don't know how to"),
                               ("cuda:x", "device string")):
            there = pickles.tensor(location=location.encode())
            torch.save(torch.ones(1), self.file, _use_new_zipfile_serialization=False)
            legacy = self.read(self.file).replace(b"X\3\0\0\0cpu", b"X%c\0\0\0" % len(location) + location.encode())
            for data in (pickles.archive(pickles.PROTO + there + b".", pickles.ONE), legacy):
                path = self.write("there.pt", data)
                self.assertRaisesRegex(RuntimeError, says, torch.load, path)
                for options in ({}, {"weights_only": False}, {"map_location": {"cpu": "cpu"}},
                                {"map_location": lambda storage, location: None}):
                    with self.subTest(location, options=options):
                        with self.assertRaisesRegex(berth.Error, f"{location}.*{says}.*map_location=\"cpu\"") as caught:
                            berth.load(path, **options)
                        self.assertNotIsInstance(caught.exception, berth.DamagedFileError)
                report = berth.verify(path)
                self.assertTrue(report and report.intact, report)
                for where in ("cpu", {location: "cpu"}, lambda storage, location: storage):
                    self.assertEqual(berth.load(path, where).device.type, "cpu")


class Only:
    """A file object with these methods, and seek, tell and read."""

    def __init__(self, file, *names):
        for name in ("seek", "tell", "read", *names):
            setattr(self, name, getattr(file, name))

    def fail(self, which, error):
        """The read with this number raises the error."""
        readinto, n = self.readinto, [0]

        def failing(into):
            n[0] += 1
            if n[0] > which:
                raise error
            return readinto(into)

        self.readinto = failing


class Sources(Folder):
    def setUp(self):
        super().setUp()
        self.value = {"a": torch.arange(1000.), "b": [1, "two"]}
        torch.save(self.value, self.path("v.pt"))
        self.data = self.read(self.path("v.pt"))

    def check(self, f, **how):
        value = berth.load(f, **how)
        self.assertTrue(torch.equal(value["a"], self.value["a"]))
        self.assertEqual(value["b"], [1, "two"])

    def test_paths(self):
        import pathlib

        for path in (self.path("v.pt"), pathlib.Path(self.path("v.pt")),
                     os.fsencode(self.path("v.pt"))):
            self.check(path)
            self.check(path, mmap=True)

    def test_files(self):
        path = self.write("w.pt", b"before" + self.data)
        for buffering in (-1, 0):
            with open(self.path("v.pt"), "rb", buffering=buffering) as file:
                self.check(file)
            with open(path, "rb", buffering=buffering) as file:
                file.read(6)
                self.check(file)

    def test_bytes_io(self):
        buffer = io.BytesIO(b"before" + self.data)
        buffer.seek(6)
        self.check(buffer)
        buffer.write(b"more")  # it is not locked any more
        self.check(io.BufferedReader(io.BytesIO(self.data)))

    def test_where_a_file_object_stands_then(self):
        """Where it stood; behind a value in the old format, as with torch.load."""
        torch.save(self.value, self.path("old.pt"), _use_new_zipfile_serialization=False)
        torch.save({"a": fractions.Fraction(1)}, self.path("refused.pt"))
        safetensors.torch.save_file({"a": self.value["a"]}, self.path("a.safetensors"))
        self.write("cut.pt", self.data[:1000])
        self.write("junk.pt", b"junk" * 100)

        def calls():
            yield berth.verify
            yield berth.open
            for options in ({}, {"weights_only": False}, {"encoding": "latin1"}, {"map_location": "meta"}):
                yield functools.partial(berth.load, **options)

        def made(data):
            yield io.BytesIO(data)
            yield Only(io.BytesIO(data), "readinto", "readline")
            for buffering in (0, -1):
                with open(self.write("f", data), "rb", buffering) as file:
                    yield file

        for name in ("v.pt", "old.pt", "refused.pt", "a.safetensors", "cut.pt", "junk.pt"):
            data = self.read(self.path(name))
            for begin in (0, 6):
                for call in calls():
                    for file in made(b"before"[:begin] + data + b"behind" * (name == "old.pt")):
                        file.seek(begin)
                        is_loaded = False
                        with contextlib.suppress(berth.Error):
                            is_loaded = isinstance(call(file), dict)
                        with self.subTest(name, begin=begin, call=call, file=file):
                            self.assertEqual(file.tell(), begin + len(data) * (is_loaded and name == "old.pt"))

    def test_a_file_object_is_not_kept_beside_its_tensors(self):
        """From the position on; with what kinds of objects have: a file in an archive, a remote file.

        berth.open reads what is asked for, and so does PyTorch's unpickler behind the gate.
        """
        value = [torch.arange(18 << 20, dtype=torch.float32), torch.arange(6 << 20, dtype=torch.float32)]
        nbytes, most = 96 << 20, 64 << 20
        if "libasan" in os.environ.get("LD_PRELOAD", ""):
            most += 256 << 20  # of what was freed it keeps as much
        with zipfile.ZipFile(self.path("v.zip"), "w") as archive, archive.open("v.pt", "w") as member:
            torch.save(value, member)
        with open(self.path("w.pt"), "wb") as file:
            file.write(b"before")
            torch.save(value, file)
        with (zipfile.ZipFile(self.path("v.zip")) as archive, archive.open("v.pt") as member,
              open(self.path("w.pt"), "rb") as file):
            for name, f in {"zip": member, "readinto": Only(file, "readinto"), "read": Only(file)}.items():
                file.seek(6)
                with self.subTest(name), Watch() as watch:
                    found = berth.load(f)
                self.assertTrue(all(map(torch.equal, found, value)))
                self.assertLess(watch.nbytes, nbytes + most)
                del found
                file.seek(6)
                member.seek(0)
                with self.subTest(name, use="open"), Watch() as watch:
                    with berth.open(f) as opened:
                        self.assertTrue(torch.equal(opened.slice("0")[5:9], value[0][5:9]))
                        self.assertTrue(opened.verify())
                self.assertLess(watch.nbytes, most)
        del f, file, member, archive
        for how in ({}, {"_use_new_zipfile_serialization": False}):
            torch.save([Box(1), *value], self.path("box.pt"), **how)
            for names in ((), ("readinto",)):
                for trust in (False, True):
                    with open(self.path("box.pt"), "rb") as file, self.subTest(how, names=names, trust=trust):
                        with torch.serialization.safe_globals([Box]), Watch() as watch:
                            found = berth.load(Only(file, "readline", *names), weights_only=not trust)
                    self.assertTrue(all(map(torch.equal, found[1:], value)))
                    self.assertLess(watch.nbytes, nbytes + most)
                    del found
        torch.save([Box(1), *value], self.path("box.pt"))
        for trust in (False, True):
            with (open(self.path("box.pt"), "rb") as file, berth.config.patch("load.check", "data"),
                  torch.serialization.safe_globals([Box])):
                for f in (self.path("box.pt"), file, Only(file, "readline")):
                    file.seek(0)
                    with self.subTest(type(f), trust=trust), Watch() as watch:
                        found = berth.load(f, weights_only=not trust)
                    self.assertTrue(all(map(torch.equal, found[1:], value)))
                    self.assertLess(watch.nbytes, nbytes + most)
                    del found

    def test_file_objects_that_fail(self):
        for cut in range(0, len(self.data), 97):
            with self.assertRaises(berth.Error):
                berth.load(Only(io.BytesIO(self.data[:cut])))
        torch.save([torch.arange(1 << 20)] * 2, self.path("large.pt"))
        for error in (ZeroDivisionError, KeyboardInterrupt, RecursionError):
            for which in range(3):
                file = Only(io.BytesIO(self.read(self.path("large.pt"))), "readinto")
                file.fail(which, error)
                with self.assertRaises(error):
                    berth.load(file)
        for answer in (-1, None, 1 << 40, "1"):
            file = Only(io.BytesIO(self.data), "readinto")
            file.readinto = lambda into, answer=answer: answer
            with self.assertRaisesRegex(OSError, "readinto.. of .* returned"):
                berth.load(file)

    def test_memory_that_is_no_row_of_bytes(self):
        """What Python raises, and not the file object, comes out as well."""
        file = Only(io.BytesIO(self.data))
        file.read = lambda n: memoryview(bytes(2 * n))[::2]
        for use in (berth.load, berth.open, berth.verify):
            with self.assertRaises(BufferError) as caught:
                use(file)
            self.assertEqual((caught.exception.__cause__, caught.exception.__context__), (None, None))
            file.seek(0)

    def test_an_open_file_object(self):
        """It is read when it is asked; others may move it, and what it raises comes out."""
        file = Only(io.BytesIO(b"before" + self.data), "readinto")
        file.seek(6)
        with berth.open(file) as opened:
            for at in (0, 100, 5):
                file.seek(at)
                self.assertTrue(torch.equal(opened.slice("a")[at:], self.value["a"][at:]))
            self.assertEqual(in_a_child(lambda: self.message_of(opened, "open a path in each process")), 0)
            readinto, found = file.readinto, []
            file.readinto = lambda into: (time.sleep(0.01), readinto(into))[1]
            threads = [threading.Thread(target=lambda: found.append(opened.slice("a")[5:])) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:  # one after the other moves it
                thread.join()
            self.assertEqual([each.equal(self.value["a"][5:]) for each in found], [True] * 4)
            file.readinto = lambda into: opened.slice("a")[:3]
            with self.assertRaisesRegex(RuntimeError, "is read while it is read"):
                opened["a"]
            for error in (ZeroDivisionError, KeyboardInterrupt, EOFError):
                file.fail(0, error)
                for use in (lambda: opened["a"], lambda: opened.numpy("a"), lambda: opened.slice("a")[2:3],
                            opened.verify):
                    with self.assertRaises(error):
                        use()
        with open(self.path("v.pt"), "rb") as file:
            opened = berth.open(Only(file))
        with self.assertRaisesRegex(ValueError, "closed file"):
            opened["a"]

    def message_of(self, opened, words):
        try:
            opened["a"]
        except berth.Error as error:
            return error.status == "BERTH_E_UNSUPPORTED" and words in str(error)

    def test_a_file_object_that_keeps_what_it_was_given(self):
        kept = []
        file = Only(io.BytesIO(self.data), "readinto")
        readinto = file.readinto
        file.readinto = lambda into: (kept.append(memoryview(into)), readinto(into))[1]
        value = berth.load(file)
        for each in kept:
            each[:] = bytes(len(each))
        self.assertTrue(torch.equal(value["a"], self.value["a"]))

    def test_legacy_files_in_memory(self):
        path = f"{DATA}/old/views-1.13-stream.pth"
        same(berth.load(io.BytesIO(self.read(path))), torch.load(path, weights_only=True),
             empty_are_shared=False, resizable=False)

    def test_what_cannot_be(self):
        with self.assertRaisesRegex(ValueError, "must be a file path"):
            berth.load(io.BytesIO(self.data), mmap=True)
        with self.assertRaisesRegex(AttributeError, "'read'"):
            berth.load(5)
        with self.assertRaisesRegex(TypeError, "binary mode"):
            berth.load(io.StringIO("text"))
