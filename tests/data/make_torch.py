#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Makes the fixtures in tests/data/torch with a current PyTorch (2.13).

    python3 tests/data/make_torch.py

Tests of every kind use them; they are committed so that tests run without PyTorch. The element
values are counted numbers, so that a test can say what it expects.
"""

import argparse
import enum
import os
import zipfile
from collections import OrderedDict, defaultdict, deque

import torch
from torch.utils.serialization import config

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch")


def numbers(*shape, dtype=torch.float32, start=0):
    n = 1
    for size in shape:
        n *= size
    return torch.arange(start, start + n).to(dtype).reshape(shape)


def small():
    """Views, ties, an empty tensor, and a dtype without a storage class of its own."""
    base = numbers(3, 4)
    return OrderedDict(
        base=base,
        transposed=base.t(),
        row=base[1],
        tied=base,
        integers=numbers(5, dtype=torch.int64, start=-2),
        words=numbers(3, dtype=torch.uint16, start=65533),
        empty=torch.empty(0, 7),
        complex=torch.complex(numbers(2), numbers(2, start=10)),
        weight=torch.nn.Parameter(numbers(2, 2)),
        meta=torch.empty(2, 3, device="meta"),
        epoch=3,
    )


def many():
    """More than ten storages."""
    return OrderedDict((f"layer.{i}", numbers(i + 1, start=i)) for i in range(12))


def longer_record():
    """A storage of 7 bytes, first met as float32: its record is longer than its one element."""
    storage = torch.arange(7, dtype=torch.uint8).untyped_storage()
    tensor = torch.empty(0).set_(storage, 0, (1,), (1,))
    return OrderedDict(odd=tensor, after=numbers(4))


class OwnList(list):
    pass


class OwnDict(dict):
    pass


class OwnOrdered(OrderedDict):
    pass


class Own:
    def __init__(self, name):
        self.name = name


class Outer:
    """What is inside it is named by a call of getattr before protocol 4."""

    class Inner:
        pass

    class Color(enum.Enum):
        RED = 1

    class Tensor(torch.Tensor):
        pass


class OwnTensor(torch.Tensor):
    pass


def tensor_subclasses():
    tagged = numbers(5).as_subclass(OwnTensor)
    tagged.tag, tagged.other = "x", [numbers(2)]
    quantized = torch.quantize_per_channel(numbers(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8)
    return {
        "plain": numbers(4).as_subclass(OwnTensor),
        "tagged": tagged,
        "part": numbers(6)[2:].as_subclass(OwnTensor),
        "nested": numbers(3).as_subclass(Outer.Tensor),
        "again": numbers(2).as_subclass(Outer.Tensor),
        "quantized": quantized.as_subclass(OwnTensor),
        "uint16": numbers(3).to(torch.uint16).as_subclass(OwnTensor),
        "meta": torch.empty(2, device="meta").as_subclass(OwnTensor),
        "parameter": torch.nn.Parameter(numbers(3).as_subclass(OwnTensor)),
    }


def nested_classes():
    inner = Outer.Inner()
    inner.weight = numbers(2)
    weight = torch.nn.Parameter(numbers(3))
    return {"inner": inner, "class": Outer.Inner, Outer.Color.RED: numbers(1), "function": numbers,
            "state": {weight: {"step": numbers(2)}}, "weight": weight}


def inert():
    """What PyTorch reads with weights_only=False alone: nothing of it may ever be run."""
    tensor = numbers(4)
    grouped = defaultdict(list)
    grouped["a"].append(tensor)
    grouped["b"].extend([1, tensor[1:]])
    tagged = OwnList([1, tensor])
    tagged.tag = "x"
    fields = OwnDict(a=tensor, b=2)
    fields.attribute = [tensor[2:]]
    itself = OwnList()
    itself.append(itself)
    key = Own("key")
    return OrderedDict(
        grouped=grouped,
        tagged=tagged,
        fields=fields,
        ordered=OwnOrdered(a=tensor, b=2),
        queue=deque([1, tensor], maxlen=5),
        frozen=frozenset([tensor.dtype]),
        itself=itself,
        objects={Own("one"), Own("two")},
        classes={Own, argparse.Namespace},
        keyed={key: tensor, (key, 1): numbers(2), frozenset([1]): 3},
        arguments=argparse.Namespace(lr=0.1, tensor=tensor),
        lists=[OwnList(range(n)) for n in (0, 1, 2, 999, 1000, 1001, 1002)],
        dicts=[OwnDict((i, i) for i in range(n)) for n in (0, 1, 2, 999, 1000, 1001, 1002)],
        jagged=torch.nested.nested_tensor([numbers(3), numbers(5)], layout=torch.jagged),
        subclasses=tensor_subclasses(),
        classes_within=nested_classes(),
    )


def save(name, value, alignment=64):
    with config.patch("save.storage_alignment", alignment):
        torch.save(value, os.path.join(HERE, name))


def zip_again(name, source, compression, folders):
    """What a user gets who unpacks a checkpoint and packs it again."""
    with zipfile.ZipFile(os.path.join(HERE, source)) as old:
        with zipfile.ZipFile(os.path.join(HERE, name), "w") as new:
            if folders:
                for folder in ("small/", "small/data/", "small/.data/"):
                    new.writestr(zipfile.ZipInfo(folder), b"")
            for record in old.namelist():
                info = zipfile.ZipInfo(record)
                new.writestr(info, old.read(record), compress_type=compression(record))


def main():
    os.makedirs(HERE, exist_ok=True)
    save("small.pt", small())
    save("unaligned.pt", small(), alignment=1)
    save("many.pt", many())
    save("longer-record.pt", longer_record())
    save("scalar.pt", {"epoch": 3})
    save("inert.pt", inert())
    zip_again("zipped-again.pt", "small.pt", lambda record: zipfile.ZIP_STORED, folders=True)
    zip_again("deflated.pt", "small.pt", lambda record: zipfile.ZIP_DEFLATED, folders=False)
    zip_again(
        "deflated-pickle.pt",
        "small.pt",
        lambda record: zipfile.ZIP_STORED if "/data/" in record else zipfile.ZIP_DEFLATED,
        folders=False,
    )


if __name__ == "__main__":
    main()
