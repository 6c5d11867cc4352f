# SPDX-License-Identifier: BSD-3-Clause
"""Values that both sides save and load: one function a case, found by its name.

@case marks it; `differs` names what PyTorch itself does otherwise:
  torch_cannot_load      weights_only=True refuses the file that PyTorch writes
  bytes_differ           Berth writes it in another way
  torch_loads_otherwise  PyTorch's file gives back other values: Berth's gives PyTorch the same ones
  only_mmap              PyTorch loads it with mmap only, and Berth as that
  no_calculated          PyTorch calculates wrong offsets
  no_fake                FakeTensorMode cannot load it
  not_foreign            not to be saved in the other byte order
  is_large               takes seconds: only where its number of tensors matters
"""

import collections
import struct

import torch
from torch import nn

CASES = {}

# PyTorch 2.15 loads nested tensors only where the program allows it (versions.py shows that).
if torch.torch_version.TorchVersion(torch.__version__) >= (2, 15):
    torch.serialization.add_safe_globals([torch._utils._rebuild_nested_tensor])


def case(function=None, **differs):
    def add(function):
        function.differs = differs
        CASES[function.__name__] = function
        return function

    return add(function) if function else add


def numbers(*shape, dtype=torch.float32, start=0):
    n = 1
    for size in shape:
        n *= size
    return ((torch.arange(n) + start) % 113).to(dtype).reshape(shape)


# ---- scalars and containers ----


@case
def integers():
    edges = [0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, 2**70, 2**2030]
    return edges + [-edge for edge in edges] + [-129, -(2**31) - 1, -(2**63) - 1]


@case
def floats():
    nans = [struct.unpack(">d", bytes.fromhex(text))[0] for text in
            ("7ff8000000000000", "fff8000000000001", "7ff80000deadbeef")]
    return [0.0, -0.0, 1.5, float("inf"), -float("inf"), 5e-324, 1 + 2j, complex(-0.0, nans[2])] + nans


@case
def singletons():
    return [None, True, False, None, (), ((),), [], {}, collections.OrderedDict()]


@case
def texts():
    return ["plain", "", "ümläut", chr(0x1F600), "a\0b", "\udc80 lone", "line\nbreak", "x" * 70000]


@case
def binary():
    return [bytes(range(256)), b"xy", bytearray(range(256)), bytearray(), bytearray(b"z" * 300)]


# torch.load(weights_only=True) refuses what PyTorch writes for b''.
@case(torch_cannot_load=True, bytes_differ=True)
def empty_bytes():
    return [b"", b"", bytearray(b"")]


@case
def torch_objects():
    size = torch.Size([2, 3])
    dtypes = [torch.float32, torch.bfloat16, torch.uint64, torch.float8_e4m3fn, torch.complex32]
    return [size, size, torch.Size([]), torch.device("cpu"), torch.device("cuda", 1), *dtypes,
            torch.float32, torch.per_tensor_affine, torch.per_channel_affine, torch.sparse_coo,
            torch.sparse_csr, torch.strided, torch.sparse_coo]


@case
def sharing():
    inner, pair, text = [1], (1, [2]), "some text"
    table = {text: inner, "other": pair}
    ring = [table]
    ring.append(ring)
    return [inner, inner, pair, pair, text, text, table, table, ring]


@case
def keys():
    pair = (1, ("x", None))
    return {1: "int", "1": "text", None: "none", True: "already 1", 2.5: "float", pair: "tuple",
            (): "empty", torch.float16: "dtype", b"xy": "bytes", 1 + 1j: "complex",
            torch.Size([1, 2]): "size", torch.device("cuda", 0): "device", 2**70: "big"}


@case
def sets_and_counters():
    return [set(), {5}, {1, 2, 3}, {"x1", "x2"}, collections.Counter("abracadabra"),
            collections.Counter()]


def _counts(make):
    return [make(n) for n in (0, 1, 2, 999, 1000, 1001, 2000, 2001)]


@case
def list_batches():
    return _counts(lambda n: [None] * n)


@case
def dict_batches():
    return _counts(lambda n: dict.fromkeys(range(n)))


@case
def ordered_dict_batches():
    return _counts(lambda n: collections.OrderedDict.fromkeys(range(n)))


@case
def counter_batches():
    return _counts(lambda n: collections.Counter({i: i for i in range(n)}))


@case
def deep():
    value = []
    for _ in range(150):
        value = [(value,), {"k": value}]
        value = value[:1]
    return value


# ---- tensors ----

SAVED = """
    float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 bool complex64 complex128 complex32
    uint16 uint32 uint64 float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz float8_e8m0fnu
    float4_e2m1fn_x2 bits8 bits16 bits1x8 bits2x4 bits4x2 bcomplex32
""".split()
SAVED = [getattr(torch, name) for name in SAVED if hasattr(torch, name)]  # an older PyTorch has fewer
NEW = torch.storage._new_dtypes()


def of_dtype(dtype, n=6):
    """Distinct bytes seen as a dtype."""
    source = (torch.arange(n * dtype.itemsize) % 251 + 1).to(torch.uint8)
    if dtype == torch.bool:
        return source % 2 == 0
    tensor = torch.empty(n, dtype=dtype)
    tensor.untyped_storage().copy_(source.untyped_storage())
    return tensor


def _dtype_case(dtype):
    # PyTorch does not turn what lies in an UntypedStorage.
    one_way = dtype in NEW and dtype.itemsize > 1
    name = str(dtype).removeprefix("torch.")

    def make():
        return {name: of_dtype(dtype), "slice": of_dtype(dtype, 9)[3:5], "none": of_dtype(dtype, 0)}

    make.__name__ = f"dtype_{name}"
    case(not_foreign=one_way)(make)


for _dtype in SAVED:
    _dtype_case(_dtype)


# PyTorch has no storage class for them and does not save them; what Berth saves it loads.
NEVER_SAVED = [getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in range(1, 8)]


@case
def shapes():
    base = numbers(4, 6)
    return {
        "0-dim": torch.tensor(3.5), "base": base, "tied": base, "row": base[2], "column": base[:, 1],
        "transposed": base.t(), "expanded": numbers(1, 3).expand(5, 3), "empty": torch.zeros(0, 3),
        "narrow": base[1:3, 2:5], "steps": base.flatten()[::3], "flat": base.view(-1),
        "ranks": numbers(1, 2, 1, 3, 1, 2), "empty inside": torch.zeros(2, 0, 3)[1:],
        "strided": torch.as_strided(numbers(20), (3, 3), (5, 2), 1), "0 step": base[0:0],
        "channels last": numbers(1, 2, 3, 4).to(memory_format=torch.channels_last),
    }


@case
def many_shapes_of_one_storage():
    base = numbers(100)
    return [base[i: i + n].view(-1) for i in range(0, 40, 7) for n in (0, 1, 9)]


@case
def grads():
    leaf = numbers(3).requires_grad_()
    return [leaf, nn.Parameter(numbers(2)), nn.Parameter(numbers(2), requires_grad=False), leaf]


@case
def parameters_with_attributes():
    parameter, frozen, tensor = nn.Parameter(numbers(2)), nn.Parameter(numbers(3), False), numbers(4)
    parameter.tag = {"rank": 3}
    frozen.scale = numbers(1)
    tensor.note = "text"
    tensor.other = parameter
    return [parameter, frozen, tensor, parameter, tensor]


@case
def conjugates():
    z = of_dtype(torch.complex64)
    imaginary = of_dtype(torch.complex64).conj().imag
    return [z.conj(), z, imaginary, torch._neg_view(of_dtype(torch.complex128).conj()), z.conj()]


@case(no_fake=True)
def quantized_per_tensor():
    return [torch.quantize_per_tensor(numbers(7), 0.25, 3, torch.qint8),
            torch.quantize_per_tensor(numbers(2, 3), 0.5, 128, torch.quint8),
            torch.quantize_per_tensor(numbers(5), 2.0, 0, torch.qint32)]


@case(no_fake=True)
def quantized_per_channel():
    scales = torch.tensor([0.5, 0.25, 1.0], dtype=torch.float64)
    one = torch.quantize_per_channel(numbers(3, 4), scales, torch.tensor([0, 1, 2]), 0, torch.qint8)
    two = torch.quantize_per_channel(numbers(4, 3), scales, torch.tensor([3, 1, 2]), 1, torch.quint8)
    return [one, two, one]


# Two and four elements a byte.
@case(no_fake=True)
def quantized_below_a_byte():
    scales, zero_points = torch.rand(3), torch.zeros(3)
    return [torch.quantize_per_channel(numbers(3, 4), scales, zero_points, 0, torch.quint4x2),
            torch.quantize_per_channel(numbers(3, 8), scales, zero_points, 0, torch.quint2x4)]


@case(no_fake=True)
def sparse():
    dense = torch.tensor([[0, 1.5, 0, 0], [2, 0, 0, 3]])
    coo = dense.to_sparse()
    twice = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 4))
    hybrid = torch.sparse_coo_tensor([[0, 2]], numbers(2, 3), (4, 3))
    blocks = numbers(4, 4)
    return [coo, twice, hybrid, dense.to_sparse_csr(), dense.to_sparse_csc(),
            blocks.to_sparse_bsr((2, 2)), blocks.to_sparse_bsc((2, 2)), coo]


@case(no_fake=True)
def nested():
    return torch.nested.nested_tensor([numbers(2, 3), numbers(4, 3)])


@case(no_fake=True)
def meta():
    return [torch.empty(3, 4, device="meta"), torch.empty(2, device="meta", dtype=torch.int64),
            nn.Parameter(torch.empty(5, device="meta"))]


@case(no_fake=True)
def bare_storages():
    return [numbers(4).untyped_storage(), numbers(3)._typed_storage(),
            numbers(3, dtype=torch.int64)._typed_storage()]


@case
def bytes_like_a_descriptor():
    """PyTorch takes data that begin as a descriptor for one: the id has their next 4 bytes too."""
    start = b"PK\7\10" + bytes(range(1, 97))
    return [torch.tensor(list(text), dtype=torch.uint8)
            for text in (start[:4], start[:7], start[:8], start[:9], start, b"." + start,
                         start * 1000)]


@case(not_foreign=True)
def bytes_of_uint16():
    words = of_dtype(torch.uint16)
    return [words, words.view(torch.uint8)]


# With mmap PyTorch gives the second one the first one's dtype.
@case(torch_loads_otherwise=True)
def empty_storages_of_two_classes():
    storage = torch.UntypedStorage(0)
    return [torch.empty(0, dtype=dtype).set_(storage) for dtype in (torch.float32, torch.int64)]


# Its numel is 1: PyTorch's calculated offsets are wrong for what follows, without mmap it fails, with
# mmap it and Berth see four of the bytes.
@case(no_calculated=True, only_mmap=True, torch_loads_otherwise=True, not_foreign=True)
def storage_of_seven_bytes():
    seven = torch.empty(0).set_(torch.UntypedStorage(7).fill_(7), 0, (1,))
    return [seven, numbers(3)]


# ---- what training scripts save ----


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 11))
        self.body[3].bias.requires_grad_(False)
        self.head = nn.Linear(4, 11)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))

    def forward(self, ids):
        return self.body(self.embedding(ids)) + self.head(self.embedding(ids))


def _trained(make_optimizer, steps=2):
    torch.manual_seed(7)
    model = Model()
    optimizer = make_optimizer(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.arange(5) + step).square().mean().backward()
        optimizer.step()
    return model, optimizer


@case
def state_dict():
    return Model().state_dict()


@case
def adam():
    model, optimizer = _trained(lambda p: torch.optim.Adam(p, lr=1e-3))
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


@case
def sgd():
    model, optimizer = _trained(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True))
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


@case
def training_script():
    model, optimizer = _trained(lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    optimizer.step()
    scheduler.step()
    return {
        "epoch": 3, "best": 0.125, "arch": "résumé", "config": {"layers": [4, 8], "name": None},
        "model": model.state_dict(), "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(), "rng": torch.get_rng_state(),
        "history": collections.OrderedDict(loss=[1.0, 0.5], lr=(1e-3, 9e-4)),
        "parameters": list(model.parameters()),
    }


@case(is_large=True)
def three_thousand_tensors():
    return collections.OrderedDict((f"layer.{i}.weight", numbers(i % 7 + 1, start=i))
                                   for i in range(3000))
