#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Makes the fixtures in tests/data/old with an old PyTorch: 1.13, Debian 12's python3-torch.

    apt-get install python3-torch python3-numpy && /usr/bin/python3 tests/data/make_old.py

They are committed, because that version cannot be installed beside a newer one; the maker is kept
so that everyone can see what they are. expected.json says what is in each: for every tensor its
dtype, shape, and the SHA-256 of its elements in row-major order.
"""

import hashlib
import io
import json
import linecache
import os
import pickle
import tarfile
from collections import OrderedDict

import torch
import torch.package

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "old")


def numbers(*shape, dtype=torch.float32, start=0):
    n = 1
    for size in shape:
        n *= size
    return (torch.arange(start, start + n) % 251).to(dtype).reshape(shape)


def training_state():
    """Model, optimizer and scalars, as a training script of that time saved them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        model(numbers(3, 5)).sum().backward()
        optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 7,
        "loss": 0.25,
        "name": "run-ü",
        "rng": torch.get_rng_state(),
    }


def many():
    """More than ten storages, so that their lexicographic order is not their order."""
    return OrderedDict((f"layer.{i}", numbers(i + 1, 3, start=i)) for i in range(13))


def views():
    base = numbers(4, 6)
    return {
        "base": base,
        "row": base[1],
        "column": base[:, 2],
        "transposed": base.t(),
        "tied": base,
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "half": numbers(7, dtype=torch.float16),
        "bfloat16": numbers(7, dtype=torch.bfloat16),
        "bool": numbers(9, dtype=torch.uint8) > 4,
        "int64": numbers(3, dtype=torch.int64) - 1,
        "complex64": torch.complex(numbers(4), -numbers(4)),
        "parameter": torch.nn.Parameter(numbers(2, 2)),
    }


def rare():
    dense = torch.tensor([[0.0, 1.5, 0.0], [2.5, 0.0, 0.0]])
    return {
        "per_tensor": torch.quantize_per_tensor(numbers(6), 0.5, 3, torch.qint8),
        "per_channel": torch.quantize_per_channel(
            numbers(2, 3), torch.tensor([0.5, 0.25]), torch.tensor([1, 2]), 0, torch.quint8
        ),
        "coo": dense.to_sparse(),
    }


def address_keys(path, value):
    """What 1.6 wrote: keys are memory addresses, records in any order, no byteorder."""
    storages = OrderedDict()

    def persistent_id(obj):
        if not isinstance(obj, torch.storage.TypedStorage) and not torch.is_storage(obj):
            return None
        untyped = obj._storage if isinstance(obj, torch.storage.TypedStorage) else obj
        key = str(94743424565712 + 64 * len(storages))
        for known, (seen, _) in storages.items():
            if seen.data_ptr() == untyped.data_ptr():
                key = known
        storages[key] = (untyped, obj)
        kind = getattr(torch, obj.pickle_storage_type())
        return ("storage", kind, key, "cpu", obj.size())

    data = io.BytesIO()
    pickler = pickle.Pickler(data, protocol=2)
    pickler.persistent_id = persistent_id
    pickler.dump(value)
    writer = torch._C.PyTorchFileWriter(path)
    writer.write_record("data.pkl", data.getvalue(), len(data.getvalue()))
    for key in sorted(storages, reverse=True):
        untyped = storages[key][0]
        writer.write_record("data/" + key, untyped.data_ptr(), untyped.nbytes())
    writer.write_end_of_file()


def old_tar(path):
    """The tar of 0.1: only its shape, which is all that is ever looked at."""
    with tarfile.open(path, "w") as tar:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            info = tarfile.TarInfo(name)
            info.size = 4
            info.mtime = 0
            tar.addfile(info, io.BytesIO(b"\x80\x02N."))


class Unknown:
    """A class that no reader may import."""

    def __init__(self):
        self.value = 1


SCALE = """\
class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x * self.weight
"""


def scale_module():
    """A module of our own, from a source without a path: both kinds of file keep source text."""
    linecache.cache["scale.py"] = (len(SCALE), None, SCALE.splitlines(True), "scale.py")
    exec(compile(SCALE, "scale.py", "exec"), globals())
    return globals()["Scale"]()


def tensors_of(value, name=""):
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_of(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from tensors_of(item, f"{name}.{i}" if name else str(i))


def elements(tensor):
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    tensor = tensor.contiguous()
    if tensor.numel() == 0:
        return b""
    copy = tensor.clone().reshape(-1)
    if copy.dtype == torch.bfloat16:
        copy = copy.view(torch.int16)
    return copy.numpy().tobytes()


def describe(value):
    return {
        name: {
            "dtype": str(tensor.dtype)[6:],
            "shape": list(tensor.shape),
            "sha256": hashlib.sha256(elements(tensor)).hexdigest(),
        }
        for name, tensor in tensors_of(value)
        if tensor.layout == torch.strided
    }


def main():
    os.makedirs(HERE, exist_ok=True)
    expected = {}
    values = {"training": training_state(), "many": many(), "views": views(), "rare": rare()}
    for name, value in values.items():
        for suffix, new in (("zip", True), ("stream", False)):
            file = f"{name}-1.13-{suffix}.pth"
            torch.save(value, os.path.join(HERE, file), _use_new_zipfile_serialization=new)
            expected[file] = describe(value)
    address_keys(os.path.join(HERE, "addresses-1.6-zip.pth"), values["many"])
    expected["addresses-1.6-zip.pth"] = describe(values["many"])
    torch.save(scale_module(), os.path.join(HERE, "module-1.13-stream.pth"),
               _use_new_zipfile_serialization=False)
    torch.save({"weight": numbers(2), "extra": Unknown()}, os.path.join(HERE, "unknown-1.13-zip.pth"))
    torch.jit.save(torch.jit.script(scale_module()), os.path.join(HERE, "torchscript-1.13.pt"))
    with torch.package.PackageExporter(os.path.join(HERE, "package-1.13.pt")) as exporter:
        exporter.save_pickle("model", "weights.pkl", numbers(3))
    old_tar(os.path.join(HERE, "tar-0.1.pth"))
    with open(os.path.join(HERE, "expected.json"), "w") as out:
        json.dump(expected, out, indent=1, sort_keys=True)
        out.write("\n")


if __name__ == "__main__":
    main()
