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
from files import expect

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


def there(folder, value, flat):
    torch.save(value, f"{folder}/in.pt")
    run("convert", f"{folder}/in.pt", f"{folder}/out.safetensors")
    same_tensors(safetensors.torch.load_file(f"{folder}/out.safetensors"), flat)


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
    n, each = 100_000, left // 100_000 - entry
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
    views = {"base": base, "row": base[1], "t": base.t(), "tied": base, "none": torch.zeros(0, 2),
             "scalar": torch.tensor(2.5)}
    model = cases.Model().state_dict()
    kinds = {str(dtype).removeprefix("torch."): cases.of_dtype(dtype) for dtype in DTYPES}
    for name, value, flat in [
        ("state_dict", model, dict(model)), ("dtypes", kinds, kinds), ("views", views, views),
        ("pairs of float4", {"a": fours(2, 3, 4), "b": fours(4, 6).t(), "c": fours(9)[2:5],
                             "d": fours(0, 4), "e": fours(4, 0)},
         {"a": fours(2, 3, 4), "b": fours(4, 6).t(), "c": fours(9)[2:5], "d": fours(0, 4),
          "e": fours(4, 0)}),
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
        ("F6_E2M3", [4], 3, "PyTorch has no dtype for 'F6_E2M3'"),
        ("F6_E3M2", [4], 3, "PyTorch has no dtype for 'F6_E3M2'"), ("I4", [2], 1, "for 'I4'"),
    ]:
        results.run(f"safetensors: {dtype} of {shape} is refused", refused_there_as_here, folder, dtype,
                    shape, nbytes, word)
    for more in (0, 8):
        results.run(f"safetensors: {more} bytes more than the longest header", long_header, folder, more)
    results.run("safetensors: --tensors-only", tensors_only, folder)
    results.run("safetensors: metadata", metadata, folder)
    for mmap in ("on", "off"):
        results.run(f"convert --compact, load.mmap={mmap}", compact, folder, mmap)
