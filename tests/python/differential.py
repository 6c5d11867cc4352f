# SPDX-License-Identifier: BSD-3-Clause
"""Changed files, read by Berth and by those whose formats they are: PyTorch and the safetensors package.

A mutant is made from a number alone. usage: differential.py NUMBER... shows what is read in each.
"""

import collections
import contextlib
import io
import itertools
import json
import os
import pickle
import pickletools
import random
import resource
import select
import shutil
import signal
import struct
import sys
import tempfile
import unittest
import zipfile

import berth
import berth.safetensors.torch as our_weights
import safetensors.torch
import torch
from berth import _records
from berth.safetensors import SafetensorError, safe_open

from same import Different, same
from watch import Watch

LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")
N = 30_000 if LONG else 2_000
BATCH = 250  # mutants that one process reads
MOST_SECONDS = 30  # without a word of that process
MOST_MEMORY = 64  # bytes a byte of the file, beside what a load of nothing may need:
SOME_MEMORY = 16 << 20
MOST_PROCESSOR = 2.0  # seconds, unless PyTorch takes half of it
UNDER_ASAN = "libasan" in os.environ.get("LD_PRELOAD", "")  # which keeps what is freed


# ---- values to begin with ----


def tensor_with_attributes():
    made = torch.arange(4.0)
    made.note, made.shape_of = "text", (4, [1])
    return made


def values():
    """Small values that have everything between them."""
    base = torch.arange(24, dtype=torch.float32)
    shared = [1, "one"]
    ordered = collections.OrderedDict([("weight", base[:6].view(2, 3)), ("bias", base[3:])])
    ordered._metadata = {"": {"version": 1}}
    sparse = torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2))
    return [
        {"a": base, "b": base[2:8].view(2, 3).t(), "epoch": 3},
        ordered,
        [1, -1, 255, 70_000, 1 << 40, -(1 << 90), True, None, 1.5, 2j, "t", "\u00fc\U0001f600", b"bytes",
         bytearray(b"x")],
        {"list": [shared, shared], "tuple": ((), (1,), (1, (2, 3)), (1, 2, 3, 4)), "set": {1, "a", (2, 3)},
         3: {"d": {}}, (1, 2): collections.Counter("abca"), None: 0, 1.5: torch.Size([2, 3])},
        {"parameter": torch.nn.Parameter(base[:4].clone()), "half": base.half(), "bool": base > 3,
         "bf16": base.bfloat16(), "int8": base.to(torch.int8), "complex": base[:4] * 1j, "empty": base[:0],
         "conj": torch.view_as_complex(base[:4].clone().view(2, 2)).conj(), "scalar": base[1]},
        {"quantized": torch.quantize_per_tensor(base[:6], 0.5, 3, torch.quint8),
         "channels": torch.quantize_per_channel(base[:6].view(2, 3), torch.tensor([0.1, 0.2]),
                                                torch.tensor([1, 2]), 0, torch.qint8)},
        {"coo": sparse, "csr": sparse.to_sparse_csr(), "meta": torch.empty(3, 4, device="meta")},
        {"attributes": tensor_with_attributes(), "dtype": torch.float16, "device": torch.device("cpu"),
         "layout": torch.strided, "grad": torch.arange(3.0, requires_grad=True)},
        {"typed": base.storage(), "untyped": base.byte().untyped_storage(), "int": torch.tensor(7)},
        {"classes": [set, bytearray, complex, torch.Tensor, torch.Size, collections.Counter], "device": torch.device},
        {f"layer.{i}.weight": torch.full((i, 2), float(i)) for i in range(12)},
    ]


def records_of(value):
    """The records of torch.save that are not the library's own."""
    file = io.BytesIO()
    _records.originals()["save"](value, file)
    with zipfile.ZipFile(file) as archive:
        named = {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}
    return {name: data for name, data in named.items()
            if name not in ("version", "byteorder", ".data/serialization_id")}


def archive_of(records):
    file = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(file)
    for name, data in records.items():
        writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    return file.getvalue()


def legacy_of(value):
    file = io.BytesIO()
    _records.originals()["save"](value, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def flat_tensors():
    return {"a": torch.arange(6.0).view(2, 3), "b": torch.arange(3, dtype=torch.int64),
            "c.d": torch.ones(1).half(), "empty": torch.zeros(0, 2)}


# ---- changes ----

PUSHES = (b"N", b"K", b"M", b"J", b"\x8a", b"X", b"G", b"]", b"}", b")", b"\x88", b"\x89", b"h", b"c")


class Changes:
    """What a random generator makes of bytes, pickles and JSON."""

    TEXTS = ("untyped_storage", "__class__", "__dict__", "data_ptr", "set_", "requires_grad", "_cdata",
             "a", "", "__reduce_ex__", "storage_offset", "\u202e")
    GLOBALS = ("collections OrderedDict", "collections Counter", "torch._utils _rebuild_tensor_v2",
               "torch._utils _rebuild_parameter", "torch FloatStorage", "torch.storage UntypedStorage",
               "torch Size", "builtins set", "builtins bytearray", "builtins complex", "_codecs encode",
               "__builtin__ set", "__builtin__ bytearray", "__builtin__ complex",
               "torch float32", "torch device", "torch.nn.parameter Parameter", "torch Tensor",
               "torch._utils _rebuild_sparse_tensor", "torch._tensor _rebuild_from_type_v2",
               "torch.serialization _get_layout", "torch._utils _rebuild_qtensor", "os system",
               "builtins eval",
               "torch._utils _rebuild_wrapper_subclass", "torch._utils _rebuild_device_tensor_from_numpy",
               "torch.nn.parameter UninitializedParameter",
               "torch.nested._internal.nested_tensor NestedTensor")
    NUMBERS = (0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 65_535, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32,
               (1 << 63) - 1, -1, -2, -(1 << 31), -(1 << 63))

    def __init__(self, number):
        self.random = random.Random(number)

    def bytes(self, data):
        """Up to 4 changes of single bytes, ranges or ends."""
        data = bytearray(data)
        for _ in range(self.random.randint(1, 4)):
            at = self.random.randrange(len(data)) if data else 0
            n = min(self.random.choice((1, 1, 2, 4, 8, 16)), len(data) - at)
            way = self.random.randrange(7)
            if way == 0:
                data[at:at + n] = self.random.randbytes(n)
            elif way == 1 and data:
                data[at] ^= 1 << self.random.randrange(8)
            elif way == 2:
                del data[at:at + n]
            elif way == 3:
                data[at:at] = self.random.randbytes(n)
            elif way == 4:
                to = self.random.randrange(len(data)) if data else 0
                data[to:to + n] = data[at:at + n]
            elif way == 5 and self.random.randrange(4) == 0:
                del data[at:]
            elif data:
                size = self.random.choice((1, 2, 4, 8))
                number = self.random.choice(self.NUMBERS) % (1 << 8 * size)
                data[at:at + size] = number.to_bytes(size, "little")
        return bytes(data)

    # ---- pickles ----

    def operations(self, pickled):
        """Each operation of a pickle as bytes, the last of them the end."""
        places = [at for _, _, at in pickletools.genops(pickled)] + [len(pickled)]
        return [pickled[begin:end] for begin, end in itertools.pairwise(places)]

    def push(self):
        """A value on the stack."""
        text = self.random.choice(self.TEXTS).encode()
        number = self.random.choice(self.NUMBERS)
        module, name = self.random.choice(self.GLOBALS).split()
        return self.random.choice((
            b"N", b"\x88", b"\x89", b")", b"]", b"}", b"h" + bytes([self.random.randrange(12)]),
            b"K" + bytes([number % 256]), b"\x8a\x08" + struct.pack("<Q", number % (1 << 64)),
            b"X" + struct.pack("<I", len(text)) + text, b"G" + struct.pack(">d", float(number)),
            b"c" + module.encode() + b"\n" + name.encode() + b"\n",
            b"K\x01K\x02\x86", b"ccollections\nOrderedDict\n)R", b"}K\x01K\x02s", b"]K\x01a",
        ))

    def operation(self):
        """One that can stand anywhere, if one is lucky."""
        text = self.random.choice(self.TEXTS).encode()
        number = self.random.choice(self.NUMBERS)
        module, name = self.random.choice(self.GLOBALS).split()
        return self.random.choice((
            b"(", b"0", b"1", b"2", b"N", b"\x88", b"\x89", b")", b"]", b"}", b"\x8f", b"t", b"\x85", b"\x86",
            b"\x87", b"a", b"e", b"s", b"u", b"R", b"b", b"\x81", b"Q", b"l", b"d", b".",
            b"h" + bytes([self.random.randrange(12)]), b"q" + bytes([self.random.randrange(12)]),
            b"J" + struct.pack("<i", (number + (1 << 31)) % (1 << 32) - (1 << 31)),
            b"K" + bytes([number % 256]), b"\x8a\x08" + struct.pack("<Q", number % (1 << 64)),
            b"X" + struct.pack("<I", len(text)) + text, b"G" + struct.pack(">d", float(number)),
            b"c" + module.encode() + b"\n" + name.encode() + b"\n",
            b"}X" + struct.pack("<I", len(text)) + text + b"K\x05sb",  # {text: 5}, and BUILD
            b"}(X" + struct.pack("<I", len(text)) + text + b"K\x05X\x01\x00\x00\x00zK\x06u" + b"b",
            b"\x80" + bytes([self.random.randrange(6)]), b"\x8c" + bytes([len(text)]) + text,
            b"\x93", b"\x94",
            b"\x95" + struct.pack("<Q", number % (1 << 64)), b"I%d\n" % number, b"L%dL\n" % number, b"F1.5\n",
        ))

    def pickle(self, pickled):
        """Operations are taken away, doubled, moved, exchanged, put in; or the numbers and texts in them."""
        operations = self.operations(pickled)
        for _ in range(self.random.choice((1, 1, 1, 1, 2, 2, 3, 6))):
            at = self.random.randrange(len(operations))
            way = self.random.randrange(8)
            if way == 0 and len(operations) > 1:
                del operations[at]
            elif way == 1:
                operations.insert(at, operations[at])
            elif way == 2:
                to = self.random.randrange(len(operations))
                operations[at], operations[to] = operations[to], operations[at]
            elif way == 3:
                n = self.random.randint(1, 8)
                operations[at:at] = operations[self.random.randrange(len(operations)):][:n]
            elif way == 4 and len(operations[at]) > 1:
                operations[at] = operations[at][:1] + self.bytes(operations[at][1:])
            elif way == 5 and operations[at][:1] in PUSHES:  # another value in its place
                operations[at] = self.push()
            elif way == 6 and operations[at][:1] in PUSHES:  # or the value once more, in a tuple or with a state
                operations[at] += self.random.choice((b"\x85", b"2\x86", b"0" + self.push(), b"2a",
                                                      b"}K\x01K\x02sb"))
            else:
                operations.insert(max(at, 1), self.operation())
        return b"".join(operations)

    # ---- JSON ----

    def header(self, data):
        """The header of a safetensors file: its keys, items, texts, or its bytes."""
        n = int.from_bytes(data[:8], "little")
        header, rest = json.loads(data[8:8 + n]), data[8 + n:]
        way = self.random.randrange(4)
        if way == 0:
            return self.bytes(data)
        if way == 1:
            text = self.bytes(json.dumps(header).encode())
            return len(text).to_bytes(8, "little") + text + rest
        for _ in range(self.random.randint(1, 3)):
            self.change_entry(header)
        text = json.dumps(header, ensure_ascii=self.random.random() < 0.5).encode("utf-8", "surrogatepass")
        text += b" " * self.random.choice((0, -len(text) % 8, 3))
        return len(text).to_bytes(8, "little") + text + rest

    def change_entry(self, header):
        name = self.random.choice(list(header) or [""])
        entry = header.get(name)
        wild = self.random.choice((None, 0, -1, 1.5, "", "F32", [], {}, [1], [0, 4], {"a": "b"}, 1 << 63, True))
        way = self.random.randrange(6)
        if way == 0:
            header[name] = wild
        elif way == 1:
            header[self.random.choice((*self.TEXTS, "__metadata__"))] = entry
        elif way == 2:
            header["__metadata__"] = {self.random.choice(self.TEXTS): self.random.choice(("a", "b", name, "c.d"))}
        elif isinstance(entry, dict) and entry:
            key = self.random.choice(list(entry))
            if way == 3 or not isinstance(entry[key], list) or not entry[key]:
                entry[key] = self.random.choice((wild, "F64", "BF16", "I8", "F8_E4M3", "BOOL", "f32"))
            else:
                entry[key] = list(entry[key])
                entry[key][self.random.randrange(len(entry[key]))] = self.random.choice((*self.NUMBERS, wild))
        else:
            header.pop(name, None)


class Mutants:
    """All of them, by their numbers."""

    def __init__(self):
        made = values()
        self.archives = [records_of(value) for value in made]
        self.legacy = [legacy_of(value) for value in made]
        self.safetensors = [safetensors.torch.save(flat_tensors()),
                            safetensors.torch.save({"x": torch.ones(2)}, {"format": "pt", "best": "x"})]

    def of(self, number):
        """(what it is, its bytes)"""
        change = Changes(number)
        pick = change.random.choice
        match number % 5:
            case 0 | 1:
                records = dict(pick(self.archives))
                records["data.pkl"] = change.pickle(records["data.pkl"])
                return "pickle", archive_of(records)
            case 2:
                return "archive", change.bytes(archive_of(pick(self.archives)))
            case 3:
                data = pick(self.legacy)
                if change.random.random() < 0.3:
                    return "legacy", change.bytes(data)
                return "legacy", self.legacy_of_operations(change, data)
            case _:
                return "safetensors", change.header(pick(self.safetensors))

    def legacy_of_operations(self, change, data):
        """The value's pickle is the fourth: magic number, protocol, system; then keys of storages, bytes."""
        pickles, file = [], io.BytesIO(data)
        for _ in range(5):
            begin = file.tell()
            pickletools.dis(file, io.StringIO())
            pickles.append(data[begin:file.tell()])
        at = change.random.choice((0, 1, 2, 3, 3, 3, 3, 4))
        pickles[at] = change.pickle(pickles[at])
        return b"".join(pickles) + data[file.tell():]


# ---- reading ----


def outcome(load, *arguments, **named):
    """(value, None) or (None, what was raised)"""
    try:
        return load(*arguments, **named), None
    except Exception as error:
        return None, error


def by_name(tensors):
    """The package gives tensors that begin at one place in a random order."""
    return dict(sorted(tensors.items())) if type(tensors) is dict else tensors


def elements_of(tensor):
    """A tensor's dtype, sizes and elements: a part of it is a tensor of its own."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return tensor.dtype, tensor.shape
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return tensor.dtype, tensor.shape, tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def taken(file, name):
    with file.prefetch({name: None}) as loader:
        return loader.take(name)


def is_ours(error):
    """A refusal by Berth, or what a caller of PyTorch expects of a file that is none."""
    return isinstance(error, berth.Error)


def is_no_refusal(error):
    """What PyTorch stumbles over, and nobody else needs: the text of the id, the dtype of an untyped storage."""
    return isinstance(error, UnicodeDecodeError) or (isinstance(error, AttributeError) and "'dtype'" in str(error))


def sparse_of_torch():
    """The sparse tensors that PyTorch checks at the end of a load; before 2.15 one list of all threads."""
    find = getattr(torch._utils, "_get_sparse_tensors_to_validate", None)
    return find() if find else torch._utils._sparse_tensors_to_validate


class Reading:
    """One mutant, read in every way. differences: sentences."""

    def __init__(self, kind, data, folder, says=lambda _: None):
        self.kind, self.data, self.says = kind, data, says
        self.path = os.path.join(folder, "mutant.safetensors" if kind == "safetensors" else "mutant.pt")
        with open(self.path, "wb") as file:
            file.write(data)
        self.differences = []
        self.counts = collections.Counter()

    def differs(self, way, text):
        self.differences.append(f"{self.kind}, {way}: {text}")

    def compare(self, way, mine, theirs, may_raise=is_ours):
        (value, error), (their_value, their_error) = mine, theirs
        if error is not None and not may_raise(error):
            self.differs(way, f"{type(error).__module__}.{type(error).__name__}: {error}"[:300])
        elif error is None and their_error is not None and is_no_refusal(their_error):
            self.counts[f"{self.kind}: its own reader fails"] += 1
        elif error is None and their_error is not None:
            self.differs(way, f"read, refused by its own reader: {their_error!r}"[:300])
        elif error is not None and their_error is None:
            self.counts[f"{self.kind}: refused by Berth alone"] += 1
        elif error is None:
            self.counts[f"{self.kind}: read by both"] += 1
            try:
                same(value, their_value, resizable=self.kind != "legacy")
            except Different as difference:
                self.differs(way, str(difference)[:300])
            except RecursionError:
                self.counts[f"{self.kind}: too deep to compare"] += 1

    def theirs(self):
        self.says("theirs")
        if self.kind == "safetensors":
            with Watch() as watch:
                value, error = outcome(safetensors.torch.load_file, self.path)
            return (by_name(value), error), watch
        sparse_of_torch().clear()  # what a load that failed has left there: the next one is refused for it
        with Watch() as watch:
            read = outcome(_records.originals()["load"], self.path, weights_only=True)
        return read, watch

    def all(self, skips_theirs=False):
        theirs, their_watch = ((None, None), None) if skips_theirs else self.theirs()
        self.says("berth.load")
        with Watch() as watch:
            mine = outcome(berth.load, self.path)
        if self.kind == "safetensors":
            mine = by_name(mine[0]), mine[1]
        if not skips_theirs:
            self.compare("berth.load", mine, theirs)
            if watch.seconds > max(MOST_PROCESSOR, 2 * their_watch.seconds) and not UNDER_ASAN:
                self.differs("berth.load", f"{watch.seconds:.1f} s of a processor")
        if watch.nbytes > MOST_MEMORY * len(self.data) + SOME_MEMORY and not UNDER_ASAN:
            self.differs("berth.load", f"{watch.nbytes} bytes of memory for {len(self.data)}")
        if self.kind != "safetensors":
            self.says("berth.load of BytesIO")
            self.against("berth.load of BytesIO", outcome(berth.load, io.BytesIO(self.data)), mine)
        self.says("berth.load(mmap=True)")
        value, error = outcome(berth.load, self.path, mmap=True)
        if self.kind == "safetensors":
            value = by_name(value)
        self.against("berth.load(mmap=True)", (value, error), mine, resizable=False, empty_are_shared=False)
        self.says("install()")
        with berth.installed():
            installed = outcome(torch.load, self.path, weights_only=True)
        if not skips_theirs and self.kind != "safetensors":
            self.compare("install()", installed, theirs, may_raise=lambda error: isinstance(
                error, (berth.Error, pickle.UnpicklingError, RuntimeError, type(theirs[1]))))
        self.says("berth.open")
        self.opened(mine)
        self.says("berth.safetensors")
        self.as_weights(None if skips_theirs or self.kind != "safetensors" else theirs)
        return self

    def as_weights(self, theirs):
        """By the interface of safetensors: as the package, which has a theirs, and each way as the others."""
        def is_refusal(error):
            return isinstance(error, SafetensorError)

        whole = outcome(our_weights.load_file, self.path) if self.kind == "safetensors" else (None, None)
        whole = by_name(whole[0]), whole[1]
        if theirs:
            self.compare("load_file", whole, theirs, is_refusal)
        found = {name: elements_of(tensor) for name, tensor in (whole[0] or {}).items()}  # the first reading of each name
        for backend in ("mmap", "pread"):
            file, error = outcome(safe_open, self.path, "pt", backend=backend)
            readings = [("safe_open", (None, error))]
            if file:
                file.metadata()
                names = file.keys()
                readings += [(name, outcome(file.get_tensor, name)) for name in names]
                readings += [(name, outcome(lambda name=name: file.get_slice(name)[...])) for name in names]
                readings += [(name, outcome(taken, file, name)) for name in names]
            for name, (tensor, error) in readings:
                if error is not None and not is_refusal(error):
                    self.differs(f"safe_open, {backend}", f"{name!r}: {type(error).__module__}.{type(error).__name__}: {error}"[:300])
                elif tensor is not None and elements_of(tensor) != found.setdefault(name, elements_of(tensor)):
                    self.differs(f"safe_open, {backend}", f"{name!r}: {tensor}, not {found[name]}"[:300])
        loaded = outcome(our_weights.load, self.data) if self.kind == "safetensors" else (None, whole[1])
        self.against("load(bytes)", (by_name(loaded[0]), loaded[1]), whole)

    def against(self, way, read, mine, **how):
        """One way of Berth's against another."""
        if way.endswith("BytesIO") and "follow the last storage" in str(mine[1]):
            return  # a file object may hold several values
        if (read[1] is None) != (mine[1] is None):
            self.differs(way, f"{read[1]!r}, but berth.load: {mine[1]!r}"[:400])
        elif read[1] is None:
            with contextlib.suppress(RecursionError):
                try:
                    same(read[0], mine[0], **how)
                except Different as difference:
                    self.differs(way, str(difference)[:300])
        elif type(read[1]) is not type(mine[1]):
            self.differs(way, f"{read[1]!r}, but berth.load: {mine[1]!r}"[:400])

    def opened(self, mine):
        """Values by their names are those of the whole."""
        try:
            with berth.open(self.path) as file:
                names = file.keys()
                for name in names:
                    value, error = outcome(file.__getitem__, name)
                    if error is not None and not isinstance(error, (berth.Error, KeyError)):
                        raise error
                    if error is None and mine[1] is None and isinstance(mine[0], dict) and name in mine[0] \
                            and "." not in name and type(mine[0][name]) is torch.Tensor:
                        same(value, mine[0][name], resizable=False)
        except (berth.Error, RecursionError):
            pass
        except Different as difference:
            self.differs("berth.open", str(difference)[:300])
        except Exception as error:
            self.differs("berth.open", f"{type(error).__module__}.{type(error).__name__}: {error}"[:300])


# ---- many ----


def read_some(numbers, mutants, skips_theirs, report):
    """In a process of its own: what it reports is there if it dies."""
    def write(**what):
        os.write(report, (json.dumps(what) + "\n").encode())

    limit = 8 << 30
    if not UNDER_ASAN:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sys.setrecursionlimit(3000)
    with tempfile.TemporaryDirectory(prefix="berth-differential-") as folder:
        for number in numbers:
            kind, data = mutants.of(number)
            reading = Reading(kind, data, folder, lambda stage: write(number=number, stage=stage))  # noqa: B023
            reading.all(number in skips_theirs)
            write(number=number, differences=reading.differences, counts=reading.counts)


def lines_of(fd, seconds):
    """JSON lines from a pipe until its end; None: it was silent for too long."""
    rest = b""
    while True:
        if not select.select([fd], [], [], seconds)[0]:
            yield None
            return
        more = os.read(fd, 1 << 16)
        if not more:
            return
        *lines, rest = (rest + more).split(b"\n")
        yield from map(json.loads, lines)


def read_all(numbers, mutants, progress=lambda _: None):
    """(differences by number, counts)"""
    differences, counts, left, skips_theirs = {}, collections.Counter(), list(numbers), set()
    while left:
        batch = left[:BATCH]
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                read_some(batch, mutants, skips_theirs, writing)
            finally:
                os._exit(0)
        os.close(writing)
        last = None
        for line in lines_of(reading, MOST_SECONDS):
            if line is None:
                os.kill(child, signal.SIGKILL)
                break
            last = line
            if "differences" in line:
                left.remove(line["number"])
                counts.update(line["counts"])
                if line["differences"]:
                    differences[line["number"]] = line["differences"]
        os.close(reading)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0 and left[:1] != batch[:1] and not (set(batch) & set(left)):
            progress(len(left))
            continue
        number = last["number"] if last else batch[0]
        if last and last.get("stage") == "theirs":
            counts["ended or hung its own reader"] += 1
            skips_theirs.add(number)
            continue
        differences[number] = [f"the process ended with {status} in {last}"]
        left = [each for each in left if each != number]
    return differences, counts


class Mutated(unittest.TestCase):
    def test_as_their_own_readers(self):
        """Pickles, archives, legacy files and safetensors headers: the same values, or a refusal of ours."""
        seed = int(os.environ.get("BERTH_SEED", "0"))
        differences, counts = read_all(range(seed, seed + N), Mutants())
        print(f"mutants: {N}; " + ", ".join(f"{what} {n}" for what, n in sorted(counts.items())))
        shown = "\n".join(f"{number}: {each}" for number, those in sorted(differences.items())[:20] for each in those)
        self.assertEqual(len(differences), 0, f"differential.py NUMBER shows one:\n{shown}")


if __name__ == "__main__":
    _mutants = Mutants()
    for _number in map(int, sys.argv[1:]):
        _kind, _data = _mutants.of(_number)
        _folder = tempfile.mkdtemp(prefix="berth-differential-")
        _reading = Reading(_kind, _data, _folder, print).all()
        print(f"{_number}: {_kind}, {_reading.path}", *_reading.differences, sep="\n    ")
