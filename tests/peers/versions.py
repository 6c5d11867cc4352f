# SPDX-License-Identifier: BSD-3-Clause
"""The command and whatever PyTorch this Python has, from 1.13 on, in both directions: what peers.py
needs of a PyTorch came with 2.13. See matrix.

BERTH_BUILD: folder of a built variant. Ends with "N passed, N failed".
"""

import collections
import json
import os
import subprocess
import sys
import tempfile
import warnings

import attribute_names
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
COMMAND = os.path.join(os.path.abspath(os.environ.get("BERTH_BUILD", f"{HERE}/../../build/debug")), "berth")
TABLE = f"{HERE}/../../format/values/tensor_attributes.def"
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool",
          "complex64", "complex128", "complex32", "uint16", "uint32", "uint64", "float8_e5m2",
          "float8_e4m3fn", "bcomplex32")


def numbers(*shape):
    n = 1
    for size in shape:
        n *= size
    return torch.arange(n, dtype=torch.float32).reshape(shape)


def of_dtype(name):
    dtype = getattr(torch, name)
    if name == "bool":
        return numbers(8) % 2 == 0
    nbytes = 4 * torch.empty(0, dtype=dtype).element_size()
    return torch.arange(1, 1 + nbytes, dtype=torch.uint8).view(dtype)


def cases():
    base, model = numbers(4, 5), torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    tagged = numbers(2)
    tagged.tag = "x"
    yield "views", {"base": base, "turned": base.t(), "row": base[2], "tied": base}
    yield "state_dict", model.state_dict()
    yield "ordered", collections.OrderedDict(a=numbers(2), b=[numbers(3), (numbers(1), 5)])
    yield "parameter", {"p": torch.nn.Parameter(numbers(3))}
    yield "attributes", {"t": tagged}
    yield "empty", {"none": numbers(0), "scalar": torch.tensor(2.5)}
    yield "values", {"size": torch.Size([1, 2]), "dtype": torch.float32, "int": 2**70, "weight": numbers(2)}
    yield "bytes", {"bytes": b"\xff\0", "weight": numbers(2)}
    for name in DTYPES:
        if hasattr(torch, name):
            yield name, {name: of_dtype(name)}


def command(*words):
    done = subprocess.run([COMMAND, *words], capture_output=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"berth {words[0]}: {done.stderr.decode().strip()[-200:]}")
    return done.stdout


def flat(value, name=""):
    """Names as `berth ls` gives them, with the tensors."""
    if isinstance(value, torch.Tensor):
        yield name, value
    items = value.items() if isinstance(value, dict) else \
        enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, item in items:
        yield from flat(item, f"{name}.{key}" if name else str(key))


def raw(tensor):
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def reads(path, value):
    listed = {row["name"]: row for row in json.loads(command("ls", "--json", path)) if "dtype" in row}
    for name, tensor in flat(value):
        row = listed.pop(name)
        assert row["dtype"] == str(tensor.dtype).split(".")[1], f"{name}: {row['dtype']}"
        assert row["shape"] == list(tensor.shape), f"{name}: {row['shape']}"
        assert command("cat", path, name) == raw(tensor), f"{name}: other bytes"
    assert not listed, f"{sorted(listed)} besides"


def is_read(path, value, **options):
    loaded = dict(flat(torch.load(path, **options)))
    wanted = dict(flat(value))
    assert loaded.keys() == wanted.keys(), f"{sorted(loaded)}, not {sorted(wanted)}"
    for name, tensor in wanted.items():
        same = loaded[name]
        assert (same.dtype, same.shape, same.stride(), raw(same)) == \
            (tensor.dtype, tensor.shape, tensor.stride(), raw(tensor)), name
        assert same.requires_grad == tensor.requires_grad, f"{name}: requires_grad"


def loads_alone(path, **options):
    try:
        torch.load(path, **options)
    except Exception as error:  # of many kinds
        return str(error).splitlines()[0]
    return None


def both_ways(folder, name, value, **saved):
    """What this PyTorch cannot do with its own file, it need not do with Berth's."""
    theirs, mine, zipped = f"{folder}/theirs.pt", f"{folder}/mine.pt", f"{folder}/zipped.pt"
    try:
        torch.save(value, zipped)
    except Exception as error:
        print(f"skipped: {name}: this PyTorch cannot save it: {error}", flush=True)
        return
    torch.save(value, theirs, **saved)
    reads(theirs, value)
    command("verify", theirs)
    command("convert", theirs, mine)
    for options in ({}, {"weights_only": True}):
        reason = loads_alone(zipped, **options)
        if reason:
            print(f"skipped: {name}: this PyTorch cannot load it with {options}: {reason}", flush=True)
        else:
            is_read(mine, value, **options)


def table_has_all_names():
    with open(TABLE, encoding="utf-8") as file:
        table = {name for name, _ in attribute_names.ROW.findall(file.read())}
    missing = set(attribute_names.listed_names()) - table
    assert not missing, f"format/values/tensor_attributes.def lacks {sorted(missing)}"


def main():
    counts = {True: 0, False: 0}

    def run(name, function, *words, **options):
        try:
            function(*words, **options)
            counts[True] += 1
        except Exception as error:  # a defect of either side
            counts[False] += 1
            print(f"FAILED {name}: {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)

    warnings.simplefilter("ignore")
    run("attribute names", table_has_all_names)
    with tempfile.TemporaryDirectory(prefix="berth-versions-") as folder:
        for name, value in cases():
            run(name, both_ways, folder, name, value)
            for protocol in (2, 3):
                run(f"{name}: legacy, protocol {protocol}", both_ways, folder, name, value,
                    _use_new_zipfile_serialization=False, pickle_protocol=protocol)
    print(f"{counts[True]} passed, {counts[False]} failed")
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
