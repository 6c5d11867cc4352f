# SPDX-License-Identifier: BSD-3-Clause
"""Every kind of tensor, loaded to every form of map_location: what torch.load gives, or what it raises."""

import collections
import functools
import itertools
import pkgutil

import berth
import torch

from folder import Folder
from same import same


class Subclass(torch.Tensor):
    """Not a plain type; the tests allow it."""


def per_tensor(dtype):
    return torch.quantize_per_tensor(torch.rand(4, 6), 0.1, 3, dtype)


def per_channel(zero_points, dtype):
    return torch.quantize_per_channel(torch.rand(4, 6), torch.rand(4) + 0.1, zero_points, 0, dtype)


def with_attribute():
    made = torch.rand(3)
    made.note = {"tensor": torch.rand(2)}
    return made


def tied():
    made = torch.rand(5)
    return [made, made, made[1:], made.storage()]


def nested(layout):
    return torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)], layout=layout)


KINDS = {
    "contiguous": lambda: torch.rand(3, 4),
    "a view": lambda: torch.rand(10)[2:7],
    "transposed": lambda: torch.rand(4, 5).t(),
    "of no dimension": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 3),
    "bool": lambda: torch.tensor([True, False]),
    "bfloat16": lambda: torch.rand(3).bfloat16(),
    "float8": lambda: torch.rand(3).to(torch.float8_e4m3fn),
    "uint16": lambda: torch.arange(5).to(torch.uint16),
    "with a gradient": lambda: torch.rand(3, requires_grad=True),
    "Parameter": lambda: torch.nn.Parameter(torch.rand(3)),
    "with an attribute": with_attribute,
    "conjugate": lambda: torch.rand(3, dtype=torch.complex64).conj(),
    "negative": lambda: torch.rand(3, dtype=torch.complex64).conj().imag,
    "quantized": lambda: per_tensor(torch.qint8),
    "quantized, 32 bits": lambda: per_tensor(torch.qint32),
    "quantized by channel": lambda: per_channel(torch.zeros(4, dtype=torch.int64), torch.qint8),
    "quantized by channel, float zero points": lambda: per_channel(torch.zeros(4), torch.quint8),
    "quantized Parameter": lambda: torch.nn.Parameter(per_tensor(torch.qint8), requires_grad=False),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse, not coalesced": lambda: torch.sparse_coo_tensor([[0, 0], [1, 1]], [1., 2.], (3, 3)),
    "sparse, empty": lambda: torch.sparse_coo_tensor(torch.empty(2, 0, dtype=torch.int64), [], (3, 3)),
    "sparse, with a gradient": lambda: torch.eye(3).to_sparse().requires_grad_(),
    "CSR": lambda: torch.eye(3).to_sparse_csr(),
    "CSC": lambda: torch.eye(3).to_sparse_csc(),
    "BSR": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "BSC": lambda: torch.eye(4).to_sparse_bsc((2, 2)),
    "nested": lambda: nested(torch.strided),
    "jagged": lambda: nested(torch.jagged),
    "subclass": lambda: torch.rand(3).as_subclass(Subclass),
    "on meta": lambda: torch.empty(3, 4, device="meta"),
    "untyped storage": lambda: torch.rand(3).untyped_storage(),
    "typed storage": lambda: torch.rand(3).storage(),
    "empty storage": lambda: torch.UntypedStorage(0),
    "tied": tied,
    "other values": lambda: [torch.device("cpu"), "cpu", torch.float16, {"epoch": 1}],
}


def clone(storage, location):
    return storage.clone()


def to_meta(storage, location):
    return torch.UntypedStorage(storage.nbytes(), device="meta")


class Name(str):
    pass


PLACES = {
    "None": None,
    "cpu": "cpu", "torch.device cpu": torch.device("cpu"),
    "meta": "meta", "torch.device meta": torch.device("meta"), "a str of the program's": Name("meta"),
    "an empty dict": {}, "cpu: cpu": {"cpu": "cpu"}, "cpu: meta": {"cpu": "meta"},
    "of another device": {"cuda:0": "cpu"}, "OrderedDict": collections.OrderedDict(cpu="meta"),
    "defaultdict": collections.defaultdict(lambda: "meta"),
    "function, the same": lambda storage, location: storage,
    "function, None": lambda storage, location: None,
    "function, a copy": clone, "partial": functools.partial(clone), "function, to meta": to_meta,
    "function, a longer one": lambda storage, location: torch.UntypedStorage(storage.nbytes() + 64).fill_(1),
}
# What PyTorch refuses, with the same words.
REFUSED = {
    "cpu:0": "cpu:0", "meta:0": "meta:0", "no device": "junk", "not there": "cuda", "a number": 0,
    "bytes": b"cpu", "a tuple": ("cpu",), "dict of devices": {"cpu": torch.device("meta")},
}
NO_STORAGES = {"a text": lambda *_: "cpu", "a tensor": lambda *_: torch.rand(3),
               "a typed storage": lambda *_: torch.rand(3).storage()}


def comparable(value):
    """Sizes of jagged tensors are numbers of their own in each load."""
    if isinstance(value, torch.Tensor) and value.is_nested and value.layout == torch.jagged:
        return [value.values(), value.offsets()]
    return value


class AllKinds(Folder):
    def setUp(self):
        super().setUp()
        self.enterContext(torch.serialization.safe_globals([Subclass, *self.names_of_jagged()]))

    def names_of_jagged(self):
        """What PyTorch 2.15 refuses in a file of a jagged tensor, unless the program allows it."""
        torch.save(KINDS["jagged"](), self.path("v.pt"))
        return [pkgutil.resolve_name(name)
                for name in torch.serialization.get_unsafe_globals_in_checkpoint(self.path("v.pt"))]

    def outcome(self, load, where, mmap):
        """(the value, None), or (None, what it raised)."""
        try:
            return comparable(load(self.path("v.pt"), where, weights_only=True, mmap=mmap)), None
        except Exception as error:
            return None, error

    def each(self, places):
        """Saves each kind; yields what it is, and what both give for it at each place."""
        torch.manual_seed(1)
        for kind, make in KINDS.items():
            torch.save(make(), self.path("v.pt"))
            for (place, where), mmap in itertools.product(places.items(), (False, True)):
                yield ((kind, place, mmap), self.outcome(berth.load, where, mmap),
                       self.outcome(torch.load, where, mmap))

    def test_what_can_be(self):
        n_loaded = 0
        for which, (mine, error), (theirs, their_error) in self.each(PLACES):
            self.assertEqual((error is None), (their_error is None), which)
            self.assertTrue(str(error).endswith(str(their_error)), which)
            if not error:
                with self.subTest(which):
                    same(mine, theirs, empty_are_shared=which[-1], resizable=False)
                n_loaded += 1
        self.assertGreater(n_loaded, 1100)  # 1,222 with PyTorch 2.13; others refuse sparse ones on meta

    def test_what_is_refused(self):
        """Not as a fault of the file, also where PyTorch's unpickler makes the values."""
        n_refused = 0
        for which, (_, error), (_, their_error) in self.each(REFUSED):
            self.assertEqual(repr(error), repr(their_error), which)
            n_refused += error is not None
        self.assertGreater(n_refused, 500)

    def test_functions_that_return_no_storage(self):
        for which, (_, error), (_, their_error) in self.each(NO_STORAGES):
            self.assertEqual(type(error), type(their_error), which)
