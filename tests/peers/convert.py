# SPDX-License-Identifier: BSD-3-Clause
"""`berth convert` to safetensors and back, checked with the safetensors package."""

import json
import os
import struct
import subprocess

import safetensors.torch
import torch

import berth_ctypes as b
import cases
from files import LONG, expect

COMMAND = os.path.join(b.BUILD, "berth")
# What safetensors has a name for.
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16,
          torch.int32, torch.int64, torch.uint8, torch.bool, torch.uint16, torch.uint32,
          torch.uint64, torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e5m2fnuz,
          torch.float8_e4m3fnuz, torch.float8_e8m0fnu, torch.complex64]


def run(*arguments, code=0):
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)
    expect(done.returncode == code, f"berth {' '.join(arguments[:1])} ends with {done.returncode}, "
                                    f"not {code}: {done.stderr.strip()[-300:]}")
    return done.stderr


def raw(tensor):
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def same_tensors(mine, theirs):
    expect(sorted(mine) == sorted(theirs), f"names {sorted(mine)} are not {sorted(theirs)}")
    for name, tensor in theirs.items():
        found = mine[name]
        expect(found.dtype == tensor.dtype and found.shape == tensor.shape,
               f"{name} is {found.dtype} {list(found.shape)}, not {tensor.dtype} {list(tensor.shape)}")
        expect(raw(found) == raw(tensor), f"{name} has other bytes")


def without_ties(flat):
    """Of the names of one tensor the first, as the safetensors package keeps it."""
    kept, met = {}, set()
    for name in sorted(flat):
        tensor = flat[name]
        identity = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() == 0 or identity not in met:
            kept[name] = tensor
        met.add(identity)
    return kept


def read(path):
    with open(path, "rb") as file:
        return file.read()


def there(folder, value, flat):
    out = f"{folder}/out.safetensors"
    torch.save(value, f"{folder}/in.pt")
    run("convert", f"{folder}/in.pt", out)
    same_tensors(safetensors.torch.load_file(out), flat)
    listed = json.loads(subprocess.run([COMMAND, "ls", "--json", out], capture_output=True, check=True).stdout)
    expect(len(listed) == len(flat), f"`berth ls` has {len(listed)} of {len(flat)} names")
    plain = {k: v.detach().resolve_conj().contiguous().clone() for k, v in flat.items()}
    safetensors.torch.save_file(plain, f"{folder}/their.safetensors", metadata={"format": "pt"})
    expect(read(out) == read(f"{folder}/their.safetensors"), "the package writes another file")
    kept = without_ties(flat)
    run("convert", "--keep-ties", f"{folder}/in.pt", f"{folder}/kept.safetensors")
    same_tensors(safetensors.torch.load_file(f"{folder}/kept.safetensors"), kept)
    with safetensors.safe_open(f"{folder}/kept.safetensors", "pt") as file:
        texts = file.metadata()
    expect(texts.pop("format") == "pt" and sorted(texts) == sorted(set(flat) - set(kept)),
           f"metadata {texts}")
    run("verify", out)
    run("diff", f"{folder}/their.safetensors", out)


def back(folder, flat):
    safetensors.torch.save_file({k: v.contiguous().clone() for k, v in flat.items()},
                                f"{folder}/in.safetensors")
    run("convert", f"{folder}/in.safetensors", f"{folder}/out.pt")
    same_tensors(torch.load(f"{folder}/out.pt", weights_only=True), flat)


def there_and_back(folder, value, flat):
    there(folder, value, flat)
    run("convert", f"{folder}/out.safetensors", f"{folder}/again.pt")
    same_tensors(torch.load(f"{folder}/again.pt", weights_only=True), flat)


def refused(folder, value, word):
    torch.save(value, f"{folder}/in.pt")
    if os.path.exists(f"{folder}/no.safetensors"):
        os.remove(f"{folder}/no.safetensors")
    said = run("convert", f"{folder}/in.pt", f"{folder}/no.safetensors", code=2)
    expect(word in said, f"the error does not name {word}: {said.strip()}")
    expect(not os.path.exists(f"{folder}/no.safetensors"), "a file is left behind")


def tensors_only(folder):
    torch.save({"w": cases.numbers(3), "epoch": 7}, f"{folder}/in.pt")
    run("convert", "--tensors-only", f"{folder}/in.pt", f"{folder}/some.safetensors")
    same_tensors(safetensors.torch.load_file(f"{folder}/some.safetensors"), {"w": cases.numbers(3)})


def fours(*shape):
    n = torch.Size(shape).numel()
    return torch.arange(n, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).reshape(shape)


def file_of(path, dtype, shape, nbytes):
    header = json.dumps({"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, nbytes]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + bytes(nbytes))


def refused_there_as_here(folder, dtype, shape, nbytes, word):
    """What safetensors' own reader for PyTorch does not make a tensor of."""
    path = f"{folder}/odd.safetensors"
    file_of(path, dtype, shape, nbytes)
    try:
        safetensors.torch.load_file(path)
        expect(False, "safetensors reads it")
    except safetensors.SafetensorError:
        pass
    said = run("convert", path, f"{folder}/no.pt", code=1)
    expect(word in said, f"the error does not say {word}: {said.strip()}")
    expect(not os.path.exists(f"{folder}/no.pt"), "a file is left behind")


def long_header(folder, more):
    """100,000,000 bytes are read by safetensors, 8 more are not, and not written by us."""
    out = f"{folder}/long.safetensors"
    entry = len('"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},')
    left = 100_000_000 + more - len('{"__metadata__":{"format":"pt"},') - len("}") + len(",")
    n, each = 1000, left // 1000 - entry  # few names: how long a header takes is not the question here
    names = [f"{i:0{each}}" for i in range(n)]
    names[-1] += "x" * (left - n * (each + entry))
    torch.save(dict.fromkeys(names, torch.zeros(0, dtype=torch.uint8)), f"{folder}/in.pt")
    if os.path.exists(out):
        os.remove(out)
    said = run("convert", f"{folder}/in.pt", out, code=2 if more else 0)
    expect(os.path.exists(out) == (not more), "there is a file, or none")
    if more:
        expect("at most 100000000 bytes, this one would have 100000008" in said, said.strip())
        return
    with open(out, "rb") as file:
        expect(struct.unpack("<Q", file.read(8))[0] == 100_000_000, "the header has another length")
    expect(len(safetensors.torch.load_file(out)) == n, "tensors are missing")
    os.remove(out)


def metadata(folder):
    safetensors.torch.save_file({"w": cases.numbers(3)}, f"{folder}/in.safetensors",
                                metadata={"format": "pt"})
    run("convert", f"{folder}/in.safetensors", f"{folder}/out.pt")
    loaded = torch.load(f"{folder}/out.pt", weights_only=True)
    expect(raw(loaded["w"]) == raw(cases.numbers(3)), "w has other bytes")


def metadata_stays(folder):
    texts = {"format": "pt", "by": "me", "ä": ""}
    safetensors.torch.save_file({"w": cases.numbers(3)}, f"{folder}/in.safetensors", metadata=texts)
    run("convert", f"{folder}/in.safetensors", f"{folder}/out.safetensors")
    with safetensors.safe_open(f"{folder}/out.safetensors", "pt") as file:
        expect(file.metadata() == texts, f"metadata {file.metadata()}")
    said = run("convert", f"{folder}/in.safetensors", f"{folder}/out.pt")
    expect("left out 2 entries of __metadata__" in said, said)


def entry(dtype="U8", shape=(2,), begin=0, end=2, more=""):
    return f'{{"dtype":"{dtype}","shape":{list(shape)},"data_offsets":[{begin},{end}]{more}}}'


# S1, S2, S3 and S4: name, header, bytes of data, whether the package opens it, whether Berth does, and
# why not
BEHAVIOURS = [
    ("no tensors", "{}", 0, True, True, ""),
    ("spaces behind the header", '{"a":' + entry() + "}    ", 2, True, True, ""),
    ("spaces in the header", '{ "a" : ' + entry() + " }", 2, True, True, ""),
    ("a space before the header", ' {"a":' + entry() + "}", 2, True, False, "neither"),
    ("an escaped name", '{"\\u0061\\"":' + entry() + "}", 2, True, True, ""),
    ("a NUL in a name", '{"a\\u0000b":' + entry() + "}", 2, True, False, "header"),
    ("half a surrogate pair", '{"\\ud800":' + entry() + "}", 2, False, False, "header"),
    ("an empty name", '{"":' + entry() + "}", 2, True, True, ""),
    ("a name twice", '{"a":' + entry() + ',"a":' + entry() + "}", 2, True, False, "the object has already"),
    ("a key more", '{"a":' + entry(more=',"x":1') + "}", 2, True, True, ""),
    ("no dtype", '{"a":{"shape":[2],"data_offsets":[0,2]}}', 2, False, False, "dtype"),
    ("an unknown dtype", '{"a":' + entry("U9") + "}", 2, False, False, "dtype"),
    ("a dtype that PyTorch lacks", '{"a":' + entry("F6_E2M3", [4], 0, 3) + "}", 3, True, False, "PyTorch has no dtype"),
    ("no shape", '{"a":{"dtype":"U8","data_offsets":[0,2]}}', 2, False, False, "shape"),
    ("a negative size", '{"a":' + entry(shape=[-2]) + "}", 2, False, False, "shape"),
    ("a size of -0", '{"a":' + entry(shape=[0, 2], end=0).replace("[0, 2]", "[-0,2]") + "}", 0, False, False,
     "minus sign"),
    ("a size that is no integer", '{"a":' + entry(shape=[2.0]) + "}", 2, False, False, "shape"),
    ("a size of 2^63", '{"a":' + entry(shape=[0, 2**63], end=0) + "}", 0, True, False, "header"),
    ("a product above 2^64", '{"a":' + entry(shape=[2**62, 8]) + "}", 2, False, False, "number of bytes"),
    ("too few bytes", '{"a":' + entry(shape=[3]) + "}", 2, False, False, "number of bytes"),
    ("a gap", '{"a":' + entry() + ',"b":' + entry(begin=3, end=5) + "}", 5, False, False, "gap"),
    ("an overlap", '{"a":' + entry() + ',"b":' + entry(begin=1, end=3) + "}", 3, False, False, "overlaps"),
    ("the same bytes twice", '{"a":' + entry() + ',"b":' + entry() + "}", 2, False, False, "overlaps"),
    ("bytes behind the last", '{"a":' + entry() + "}", 3, False, False, "follow the last"),
    ("too short", '{"a":' + entry() + "}", 1, False, False, "1 bytes behind the end"),
    ("an empty tensor", '{"a":' + entry(shape=[0], end=0) + "}", 0, True, True, ""),
    ("metadata null", '{"__metadata__":null,"a":' + entry() + "}", 2, True, True, ""),
    ("metadata of a number", '{"__metadata__":{"a":1},"b":' + entry() + "}", 2, False, False, "texts"),
    ("metadata no map", '{"__metadata__":[],"b":' + entry() + "}", 2, False, False, "texts"),
]


def behaviour(folder, header, nbytes, is_opened_there, is_opened_here, says):
    path, text = f"{folder}/odd.safetensors", header.encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + bytes(nbytes))
    try:
        with safetensors.safe_open(path, "pt") as file:
            names = sorted(file.keys())
        expect(is_opened_there, f"the package opens it: {names}")
    except safetensors.SafetensorError as error:
        expect(not is_opened_there, f"the package refuses it: {error}")
    said = run("convert", path, f"{folder}/odd.pt", code=0 if is_opened_here else 1)
    expect(says in said, said.strip())
    if is_opened_here:
        done = subprocess.run([COMMAND, "ls", "--json", path], capture_output=True, text=True, check=True)
        mine = sorted(tensor["name"] for tensor in json.loads(done.stdout))
        expect([name or "" for name in mine] == names or "" in names, f"{mine} are not {names}")


def compact(folder, mmap):
    """Views without the rest of what they are views of: equal, sharing, and small."""
    base = torch.arange(100000, dtype=torch.float32)
    wide = torch.arange(6000, dtype=torch.float64).view(torch.complex128).view(torch.float64)
    values = {"row": base[500:700].view(10, 20), "columns": base[600:800].view(20, 10).t(),
              "none": base[90:90], "wide": wide[3:8], "tied": base[650:651],
              "p": torch.nn.Parameter(base[700:710]),
              "q": torch.quantize_per_tensor(base, 0.5, 3, torch.quint8)[40:80]}
    torch.save(values, f"{folder}/in.pt")
    run("convert", "--compact", "--set", f"load.mmap={mmap}", f"{folder}/in.pt", f"{folder}/out.pt")
    loaded = torch.load(f"{folder}/out.pt", weights_only=True)
    expect(list(loaded) == list(values), f"names {list(loaded)}")
    for name, tensor in values.items():
        found = loaded[name]
        expect(found.stride() == tensor.stride() and type(found) is type(tensor),
               f"{name} is another view")
        expect(torch.equal(found.dequantize(), tensor.dequantize()) if name == "q" else
               raw(found) == raw(tensor), f"{name} has other bytes")
    sizes = {name: tensor.untyped_storage().nbytes() for name, tensor in loaded.items()}
    expect(sizes == {"row": 1200, "columns": 1200, "none": 1200, "wide": 40, "tied": 1200,
                     "p": 1200, "q": 40}, f"storages are of {sizes} bytes")
    shared = {loaded[name].untyped_storage().data_ptr() for name in ("row", "columns", "tied", "p")}
    expect(len(shared) == 1, "what shared a storage does not any more")
    small, large = (os.path.getsize(f"{folder}/{name}.pt") for name in ("out", "in"))
    expect(small < 10000 < 500000 < large, f"{large} bytes became {small}")


def all_cases(results, folder):
    base = cases.numbers(4, 6)
    views = {"base.w": base, "row": base[1], "t": base.t(), "tied.w": base, "none": torch.zeros(0, 2),
             "scalar": torch.tensor(2.5)}
    model = cases.Model().state_dict()
    kinds = {str(dtype).removeprefix("torch."): cases.of_dtype(dtype) for dtype in DTYPES}
    odd = {name: cases.numbers(i + 1) for i, name in enumerate(["", ".w", "..", "a.b", "1", " ", "a['b']"])}
    for name, value, flat in [
        ("state_dict", model, dict(model)), ("dtypes", kinds, kinds), ("views", views, views),
        ("pairs of float4", {"a": fours(2, 3, 4), "b": fours(4, 6).t(), "c": fours(9)[2:5],
                             "d": fours(0, 4), "e": fours(4, 0)},
         {"a": fours(2, 3, 4), "b": fours(4, 6).t(), "c": fours(9)[2:5], "d": fours(0, 4),
          "e": fours(4, 0)}),
        ("odd names", odd, odd),
        ("tied names without a dot", {"weight": base, "tied": base, "part": base[:2], "end": base[:2]},
         {"weight": base, "tied": base, "part": base[:2], "end": base[:2]}),
        ("nested names", {"a": {"b": [base, {"c": base[0]}]}}, {"a.b.0": base, "a.b.1.c": base[0]}),
        ("Parameters", {"p": torch.nn.Parameter(base)}, {"p": base}),
        ("conjugates", {"z": cases.of_dtype(torch.complex64).conj()},
         {"z": cases.of_dtype(torch.complex64).conj()}),
    ]:
        results.run(f"safetensors: {name}, there", there, folder, value, flat)
        results.run(f"safetensors: {name}, back", back, folder, flat)
        results.run(f"safetensors: {name}, there and back", there_and_back, folder, value, flat)
    results.run("safetensors: non-tensors are refused", refused, folder,
                {"w": base, "epoch": 7}, "epoch")
    results.run("safetensors: quantized ones are refused", refused, folder,
                {"q": torch.quantize_per_tensor(base, 0.5, 0, torch.qint8)}, "q")
    results.run("safetensors: sparse ones are refused", refused, folder,
                {"s": torch.eye(2).to_sparse()}, "s")
    results.run("safetensors: a pair of float4 without a dimension is refused", refused, folder,
                {"f": fours(1)[0]}, "at least one dimension")
    for dtype, shape, nbytes, word in [
        ("F4", [3], 2, "must be even"), ("F4", [2, 3], 3, "must be even"), ("F4", [], 1, "must be even"),
        ("F6_E2M3", [4], 3, "PyTorch has no dtype float6_e2m3fn_x4: only a safetensors file can hold it"),
        ("F6_E3M2", [2, 2], 3, "must be a multiple of 4"), ("I4", [2], 1, "for 'I4'"),
    ]:
        results.run(f"safetensors: {dtype} of {shape} is refused", refused_there_as_here, folder, dtype,
                    shape, nbytes, word)
    results.run("safetensors: --tensors-only", tensors_only, folder)
    results.run("safetensors: metadata", metadata, folder)
    results.run("safetensors: metadata stays", metadata_stays, folder)
    for name, *case in BEHAVIOURS:
        results.run(f"safetensors: {name}", behaviour, folder, *case)
    for mmap in ("on", "off"):
        results.run(f"convert --compact, load.mmap={mmap}", compact, folder, mmap)


def longest_header(results, folder):
    for more in (0, 8) if LONG else (8,):
        results.run(f"safetensors: {more} bytes more than the longest header", long_header, folder, more)
