# SPDX-License-Identifier: BSD-3-Clause
"""Programs of torch.export (.pt2): their weights, as torch.export.load gives them."""

import os
import subprocess
import warnings
import zipfile

import torch
from torch.export import pt2_archive

import cases
from convert import COMMAND, run
from files import expect

# What a program has a number for.
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32,
          torch.int64, torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.float8_e5m2,
          torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.float8_e4m3fnuz, torch.complex64, torch.complex128]


class Module(torch.nn.Module):
    """Parameters and buffers of all kinds; a constant and a buffer that is not kept."""

    def __init__(self):
        super().__init__()
        base = cases.numbers(6, 4)
        self.layer = torch.nn.Linear(4, 3)
        self.tied = self.layer.weight
        self.norm = torch.nn.BatchNorm1d(3)
        self.frozen = torch.nn.Parameter(torch.zeros(0, 5), requires_grad=False)
        self.constant = torch.ones(2, dtype=torch.bfloat16)
        self.register_buffer("whole", base)
        self.register_buffer("row", base[2])
        self.register_buffer("columns", base.t())
        self.register_buffer("scalar", torch.tensor(2.5))
        self.register_buffer("forgotten", torch.tensor([1, 2, 3]), persistent=False)
        for dtype in DTYPES:
            self.register_buffer(str(dtype).replace("torch.", "of_"), cases.of_dtype(dtype))

    def forward(self, x):
        return self.norm(self.layer(x)) + self.constant.float().sum() + self.forgotten.sum()


def export(module, *inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module.eval(), inputs)


def save(path, **programs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pt2_archive._package.package_pt2(path, exported_programs=programs)


def same_as_torch(folder, expected):
    """What Berth converts has the bytes that torch.save writes."""
    os.makedirs(f"{folder}/ours", exist_ok=True)
    os.makedirs(f"{folder}/theirs", exist_ok=True)
    torch.save(expected, f"{folder}/theirs/w.pt")
    run("convert", f"{folder}/m.pt2", f"{folder}/ours/w.pt")
    with open(f"{folder}/ours/w.pt", "rb") as ours, open(f"{folder}/theirs/w.pt", "rb") as theirs:
        expect(ours.read() == theirs.read(), "other bytes than torch.save(torch.export.load(…).state_dict)")
    run("verify", f"{folder}/m.pt2")
    run("diff", f"{folder}/m.pt2", f"{folder}/theirs/w.pt")


def one_program(folder):
    save(f"{folder}/m.pt2", model=export(Module(), torch.zeros(5, 4)))
    same_as_torch(folder, torch.export.load(f"{folder}/m.pt2").state_dict)


def two_programs(folder):
    save(f"{folder}/m.pt2", encode=export(torch.nn.Linear(3, 2), torch.zeros(1, 3)),
         decode=export(torch.nn.Linear(2, 3), torch.zeros(1, 2)))
    loaded = pt2_archive._package.load_pt2(f"{folder}/m.pt2").exported_programs
    same_as_torch(folder, {name: loaded[name].state_dict for name in ("encode", "decode")})


def repacked(folder, *tool):
    """Zipped again, stored or deflated: the same weights."""
    save(f"{folder}/m.pt2", model=export(Module(), torch.zeros(5, 4)))
    expected = torch.export.load(f"{folder}/m.pt2").state_dict
    with zipfile.ZipFile(f"{folder}/m.pt2") as archive:
        archive.extractall(f"{folder}/out")
    os.remove(f"{folder}/m.pt2")
    subprocess.run([*tool, "../m.pt2", "."], cwd=f"{folder}/out", check=True)
    same_as_torch(folder, expected)


def flipped(folder):
    """verify finds a changed byte, and names the record."""
    save(f"{folder}/m.pt2", model=export(torch.nn.Linear(4, 3), torch.zeros(1, 4)))
    with open(f"{folder}/m.pt2", "r+b") as file:
        file.seek(64 + 5)
        file.write(b"\x55")
    done = subprocess.run([COMMAND, "verify", f"{folder}/m.pt2"], capture_output=True, text=True, check=False)
    expect(done.returncode == 1 and "data/weights/weight_0" in done.stdout + done.stderr, done)


def all_cases(results, folder):
    os.makedirs(f"{folder}/pt2", exist_ok=True)
    for name, function, *arguments in [
        ("one", one_program), ("two", two_programs), ("a flipped byte", flipped),
        ("zip -0", repacked, "zip", "-q", "-r", "-0"), ("zip", repacked, "zip", "-q", "-r"),
    ]:
        place = f"{folder}/pt2/{name.replace(' ', '_')}"
        os.makedirs(place, exist_ok=True)
        results.run(f"exported: {name}", function, place, *arguments)
