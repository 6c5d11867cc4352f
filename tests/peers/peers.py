# SPDX-License-Identifier: BSD-3-Clause
"""Every case in both directions between Berth and PyTorch, and past other tools. Two groups run at a time.

usage: run [--short | --more] [WORD...]
--short: each value, dtype and layout; --more: the others: other tools, huge files, forks, the other byte order
WORD: only what has one of the words in its name; -v names what passes too
BERTH_BUILD: folder of a built variant; BERTH_PYTHON: a Python with PyTorch 2.13 and safetensors
"""

import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import contextmanager

os.environ["TORCH_SERIALIZATION_DEBUG"] = "1"  # PyTorch compares offsets on each load

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.serialization import config

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import attributes
import berth_ctypes as b
import cases
import convert
import corpus
import devices
import exported
import forks
import huge
import inert
import legacy
import readings
import repacked
import shipped
import shown
import sparse
import starter
import suite
import unusual
from build_tree import Tree
from describe import FromBerth, FromTorch, difference
from files import LONG, Bad, expect, identical, libzip_accepts, unzip_accepts, zipfile_accepts

COMMAND = os.path.join(b.BUILD, "berth")
ALIGNMENTS = (1, 2, 64, 512, 4096, 32768)
# Enough for an option: small, large and odd records, views, many of them.
FOR_OPTIONS = ("training_script", "shapes", "dtype_float32", "dtype_float16", "dtype_complex128",
               "dtype_bool", "empty_storages_of_two_classes", "state_dict", "sparse",
               "quantized_per_tensor", "conjugates")


class Results:
    def __init__(self, words, verbose):
        self.words = words
        self.verbose = verbose
        self.passed = 0
        self.failures = []
        self.started = time.monotonic()

    def run(self, name, function, *arguments):
        """One check. It fails by an exception; its line says which."""
        if self.words and not any(word in name for word in self.words):
            return
        try:
            function(*arguments)
        except (Bad, b.BerthError, subprocess.CalledProcessError) as error:
            self.fail(name, str(error))
        except Exception as error:  # a defect of either side, or of this program
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.fail(name, f"{type(error).__name__}: {str(error).splitlines()[:1]} "
                            f"({os.path.basename(where.filename)}:{where.lineno})")
        else:
            self.passed += 1
            if self.verbose:
                print(f"{time.monotonic() - self.started:7.1f} {name}", flush=True)

    def fail(self, name, why):
        self.failures.append((name, why))
        print(f"FAILED {name}: {why}", flush=True)


# ---- both sides' files ----


class Files:
    """A case's value, and it as PyTorch and as Berth saved it, under one name in two folders."""

    def __init__(self, folder, name, value, **differs):
        self.name = name
        self.value = value
        self.differs = differs
        self.folder = folder
        for side in ("torch", "berth", "copy"):
            os.makedirs(f"{folder}/{side}", exist_ok=True)
        self.torch, self.berth, self.copy = (f"{folder}/{side}/{name}.pt"
                                             for side in ("torch", "berth", "copy"))
        self.original = FromTorch().describe(value)

    def remove(self):
        for path in (self.torch, self.berth, self.copy):
            if os.path.exists(path):
                os.remove(path)


def torch_saves(files):
    torch.save(files.value, files.torch)


def berth_saves(files, options=""):
    with b.patched(options), Tree(files.value) as tree:
        tree.save(files.berth)


def planned_as_written(files, options=""):
    with b.patched(options), Tree(files.value) as tree:
        records, nbytes = tree.plan(files.berth)
    size = os.path.getsize(files.berth)
    expect(nbytes == size, f"the plan says {nbytes} bytes, the file has {size}")
    reader = torch._C.PyTorchFileReader(files.berth)
    for name, _, _, offset in records:
        theirs = reader.get_record_offset(name)
        expect(offset == theirs, f"{name} is planned at {offset}, PyTorch finds it at {theirs}")


def torch_view(path, mmap, calculate):
    with config.patch({"load.calculate_storage_offsets": calculate}):
        return FromTorch().describe(torch.load(path, weights_only=True, mmap=mmap))


def torch_loads(files, mmap, calculate):
    wanted = files.original
    if files.differs.get("torch_loads_otherwise"):
        wanted = torch_view(files.torch, mmap, calculate)
    found = difference(torch_view(files.berth, mmap, calculate), wanted)
    expect(found is None, found)


def berth_loads(files, path, options=""):
    wanted = files.original
    if files.differs.get("only_mmap"):
        wanted = torch_view(files.torch, True, False)
    with b.patched(options), FromBerth(path) as checkpoint:
        found = difference(checkpoint.root(), wanted)
    expect(found is None, found)


def berth_verifies(path):
    b.check(b.berth_verify, b.from_path(path), None, None, None, None)


def offsets_agree(files, path, calculate):
    """Every tensor's place in the file, as PyTorch has it under FakeTensorMode."""
    with FakeTensorMode(), config.patch({"load.calculate_storage_offsets": calculate}):
        theirs = FromTorch(data=False)
        theirs.describe(torch.load(path, weights_only=True))
    with FromBerth(path, data=False) as checkpoint:
        checkpoint.root()
        mine = checkpoint.offsets()
    expect(len(mine) == len(theirs.offsets), f"{len(mine)} tensors, PyTorch has {len(theirs.offsets)}")
    for i, (offset, wanted) in enumerate(zip(mine, theirs.offsets)):
        expect(offset == wanted, f"tensor {i} is at {offset}, PyTorch finds it at {wanted}")


def command(*arguments):
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"berth {arguments[0]} ends with {done.returncode}: "
                                 f"{done.stderr.strip()[-300:]}")
    return done.stdout


def saves_again(files, options=""):
    """What was opened is saved as it was: the pickle kept all sharing, that of text, too."""
    with b.patched(options), FromBerth(files.torch) as checkpoint:
        b.check(b.berth_save, files.copy.encode(), b.berth_root(checkpoint.checkpoint), None)
    identical(files.copy, files.torch)


def copies(files, path):
    command("copy", path, files.copy)
    identical(files.copy, path)


def others_accept(results, name, path):
    results.run(f"{name} unzip -t", unzip_accepts, path)
    results.run(f"{name} zipfile.testzip", zipfile_accepts, path)
    results.run(f"{name} libzip", libzip_accepts, path)


# ---- groups ----


def both_directions(results, files, name):
    """The whole matrix for one case, in files that are already there."""
    differs = files.differs
    for label, path in (("PyTorch -> Berth", files.torch), ("Berth -> Berth", files.berth)):
        if path == files.torch and differs.get("torch_cannot_load"):
            continue
        results.run(f"{name}: {label}", berth_loads, files, path, "load.check=data")
        results.run(f"{name}: {label}, read", berth_loads, files, path, "load.mmap=off")
        results.run(f"{name}: {label}, offsets from the directory", berth_loads, files, path,
                    "load.calculate_storage_offsets=off")
    if not any(differs.get(each) for each in ("no_fake", "torch_cannot_load", "is_large")):
        calculate = not differs.get("no_calculated")
        results.run(f"{name}: file offsets", offsets_agree, files, files.torch, calculate)
    for mmap in (True,) if differs.get("only_mmap") else (False, True):
        for calculate in (False,) if differs.get("no_calculated") else (False, True):
            results.run(f"{name}: Berth -> PyTorch, mmap={mmap}, calculated offsets={calculate}",
                        torch_loads, files, mmap, calculate)
    results.run(f"{name}: berth_verify", berth_verifies, files.berth)


def each_case(results, folder):
    for name, make in cases.CASES.items():
        if results.words and not any(word in name for word in results.words):
            continue
        files = Files(folder, name, make(), **make.differs)
        results.run(f"{name}: PyTorch saves", torch_saves, files)
        results.run(f"{name}: Berth saves", berth_saves, files)
        results.run(f"{name}: plan", planned_as_written, files)
        if not make.differs.get("bytes_differ"):
            results.run(f"{name}: byte-identical", identical, files.berth, files.torch)
        both_directions(results, files, name)
        others_accept(results, f"{name}:", files.berth)
        results.run(f"{name}: copy", copies, files, files.torch)
        if not make.differs.get("bytes_differ") and not make.differs.get("only_mmap"):
            results.run(f"{name}: opened and saved again", saves_again, files)
        files.remove()


@contextmanager
def torch_options(alignment=64, crc32=True):
    options = {"save.storage_alignment": alignment, "save.compute_crc32": crc32}
    with config.patch(options):
        yield


def each_layout(results, folder):
    """Alignments, with CRCs and without."""
    for alignment in ALIGNMENTS:
        for crc32 in (True, False):
            label = f"alignment {alignment}, CRC {'on' if crc32 else 'off'}"
            if results.words and not any(word in label for word in results.words):
                continue
            options = (f"save.storage_alignment={alignment} "
                       f"save.compute_crc32={'on' if crc32 else 'off'}")
            for name in FOR_OPTIONS:
                make = cases.CASES[name]
                files = Files(folder, name, make(), **make.differs)
                with torch_options(alignment, crc32):
                    torch_saves(files)
                title = f"{label}: {name}"
                results.run(f"{title}: Berth saves", berth_saves, files, options)
                results.run(f"{title}: byte-identical", identical, files.berth, files.torch)
                results.run(f"{title}: plan", planned_as_written, files, options)
                with torch_options(alignment, crc32):
                    both_directions(results, files, title)
                if crc32:
                    others_accept(results, f"{title}:", files.berth)
                results.run(f"{title}: copy", copies, files, files.torch)
                results.run(f"{title}: opened and saved again", saves_again, files, options)
                files.remove()


def typed_storages(value):
    """Each storage with the dtype by which PyTorch turns it, at first meeting."""
    found = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, item):
            if isinstance(item, torch.storage.TypedStorage):
                found.setdefault(item._untyped_storage._cdata, (item._untyped_storage, item.dtype))
                return "storage"
            if isinstance(item, torch.UntypedStorage):
                found.setdefault(item._cdata, (item, torch.uint8))
                return "storage"
            return None

    with open(os.devnull, "wb") as nowhere:
        Pickler(nowhere, 2).dump(value)
    return list(found.values())


def torch_saves_big(files):
    """As PyTorch would on a big-endian machine: its own byteswap before and after."""
    storages = typed_storages(files.value)
    native = sys.byteorder
    for storage, dtype in storages:
        storage.byteswap(dtype)
    try:
        sys.byteorder = "big"
        torch_saves(files)
    finally:
        sys.byteorder = native
        for storage, dtype in storages:
            storage.byteswap(dtype)


def refused(function, *arguments):
    try:
        function(*arguments)
    except b.BerthError as error:
        expect("byte order" in str(error), f"another error: {error}")
        return
    raise Bad("is not refused")


def each_byteorder(results, folder):
    for name, make in cases.CASES.items():
        if make.differs.get("is_large") or make.differs.get("torch_cannot_load"):
            continue
        for order in ("little", "big"):
            title = f"byteorder {order}: {name}"
            if results.words and not any(word in title for word in results.words):
                continue
            # FakeTensorMode turns bytes that are not there: PyTorch 2.13 crashes.
            files = Files(folder, name, make(), **{**make.differs, "no_fake": True})
            options = f"save.byteorder={order}"
            if order == "big" and make.differs.get("not_foreign"):
                results.run(f"{title}: refused", refused, berth_saves, files, options)
                continue
            if order == "big":
                torch_saves_big(files)
            else:
                torch_saves(files)
            results.run(f"{title}: Berth saves", berth_saves, files, options)
            results.run(f"{title}: byte-identical", identical, files.berth, files.torch)
            if order == "big":
                both_directions(results, files, title)
                others_accept(results, f"{title}:", files.berth)
                results.run(f"{title}: copy", copies, files, files.torch)
                results.run(f"{title}: opened and saved again", saves_again, files, options)
            files.remove()


def dtypes_that_pytorch_only_loads(results, folder):
    for dtype in cases.NEVER_SAVED:
        files = Files(folder, "bits", [cases.of_dtype(dtype), cases.of_dtype(dtype, 9)[3:5]])
        results.run(f"{dtype}: Berth saves", berth_saves, files)
        results.run(f"{dtype}: Berth -> PyTorch", torch_loads, files, False, True)
        results.run(f"{dtype}: Berth -> Berth", berth_loads, files, files.berth)
        files.remove()


def the_id(results, folder):
    """Each number of records at which PyTorch's set of names grows, and its neighbours."""
    for n in (*(records - 5 + more for records in (13, 29, 59, 127, 257, 541) for more in (-1, 0, 1)),
              *[100_000] * LONG):
        title = f"id: {n} tensors: byte-identical"
        if results.words and not any(word in title for word in results.words):
            continue
        files = Files(folder, "id", [torch.tensor([i], dtype=torch.int32) for i in range(n)])
        torch_saves(files)
        berth_saves(files)
        results.run(title, identical, files.berth, files.torch)
        files.remove()


# What takes long first: two run at a time.
SHORT = (each_case, each_layout, legacy.all_cases, attributes.all_cases, sparse.all_cases, convert.all_cases, the_id,
         exported.all_cases, inert.all_cases, shown.all_cases, dtypes_that_pytorch_only_loads, devices.mixed,
         unusual.without_byteorder, unusual.names)
MORE = (huge.all_sizes, corpus.all_kinds, repacked.all_tools, convert.longest_header, readings.variants,
        readings.pickles_by_chance, forks.all_cases, each_byteorder, devices.all_cases, devices.cuda, shipped.all_files)


class Group:
    """One of them, as suite.py calls it: in a folder of its own."""

    def __init__(self, function, words, verbose):
        self.function, self.words, self.verbose = function, words, verbose

    def __str__(self):
        return f"{self.function.__module__}.{self.function.__name__}"

    def __call__(self, result):
        result.tell({"began": str(self)})
        results, processor = Results(self.words, self.verbose), suite.processor_seconds()
        with tempfile.TemporaryDirectory(prefix="berth-peers-") as folder:
            self.function(results, folder)
        result.tell({"test": str(self), "bad": results.failures, "skipped": [], "failed": len(results.failures),
                     "passed": results.passed, "seconds": time.monotonic() - results.started,
                     "processor": suite.processor_seconds() - processor})


def main():
    arguments = sys.argv[1:]
    words = [word for word in arguments if not word.startswith("-")]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.setrecursionlimit(20000)  # for the walks of these files
    os.environ.setdefault("BERTH_PYTHON", sys.executable)
    starter.start(("torch", "numpy"))  # for what people type, `python3 -c "import torch..."`
    groups = MORE * ("--short" not in arguments) + SHORT * ("--more" not in arguments)
    suite.run_suites([Group(each, words, "-v" in arguments) for each in groups])


if __name__ == "__main__":
    main()
