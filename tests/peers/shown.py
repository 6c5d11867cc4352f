# SPDX-License-Identifier: BSD-3-Clause
"""What `berth show` prints of values and elements is what PyTorch and Python make of them."""

import json
import math
import os
import subprocess

import berth_ctypes as b
import torch
from files import expect

COMMAND = os.path.join(b.BUILD, "berth")
FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn",
          "float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e8m0fnu")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


def show(path, *words):
    done = subprocess.run([COMMAND, "show", "--json", path, *words], capture_output=True, check=False)
    expect(done.returncode == 0, done.stderr.decode())
    return json.loads(done.stdout)


def same(shown, number):
    if math.isnan(number):
        return math.isnan(shown)
    return shown == number and math.copysign(1, shown) == math.copysign(1, number)


def every_pattern_of_bits(path, name):
    """All of one byte, 5,000 of wider ones, and those around 0, infinity and NaN."""
    dtype = getattr(torch, name)
    nbytes = dtype.itemsize
    torch.manual_seed(7)
    patterns = (torch.arange(2) if name == "bool" else torch.arange(256)).to(torch.uint8)
    if nbytes > 1:
        edges = torch.tensor([[0] * (nbytes - 1) + [a] for a in range(256)]
                             + [[255] * (nbytes - 1) + [a] for a in range(256)])
        patterns = torch.cat([torch.randint(256, (5000, nbytes)), edges]).to(torch.uint8).reshape(-1)
    tensor = patterns.view(dtype)
    torch.save(tensor, path)
    shown = show(path, "--length", "all")["first_elements"]
    wide = tensor.double() if name in FLOATS else tensor
    for got, number in zip(shown, wide.tolist(), strict=True):
        if name in FLOATS:  # the text is the shortest that is this element
            got = torch.tensor(float(got), dtype=torch.float64).to(dtype).double().item()
            expect(same(got, number), f"{got} is {number}")
        else:
            expect(int(got) == number, f"{got} is {number}")


def plain(value):
    """A value as the command's JSON has it."""
    if isinstance(value, torch.Tensor):
        return {"kind": "tensor", "dtype": str(value.dtype)[6:], "shape": list(value.shape),
                "first_elements": value.flatten()[:4].tolist()}
    if isinstance(value, dict):
        items = {str(key): plain(item) for key, item in value.items()}
        if getattr(value, "_metadata", None):
            items["__dict__"] = {"_metadata": plain(value._metadata)}
        return items
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def a_training_checkpoint(path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    model(torch.randn(4, 3, dtype=torch.float64)).sum().backward()
    optimizer.step()
    value = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "lr": 0.1,
             "name": "run é", "empty": [], "pair": (1, (2.5, None)), "flag": True, "negative": -2**62}
    torch.save(value, path)
    shown = show(path)
    expect(shown == plain(value), f"{shown}\n{plain(value)}")
    expect(show(path, "optimizer.param_groups.0.betas") == [0.9, 0.999], "the betas")


def all_cases(results, folder):
    path = f"{folder}/shown.pt"
    for name in FLOATS + INTEGERS:
        results.run(f"shown: elements of {name}", every_pattern_of_bits, path, name)
    results.run("shown: a training checkpoint", a_training_checkpoint, path)
