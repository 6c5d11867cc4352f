# SPDX-License-Identifier: BSD-3-Clause
"""Programs of torch.export (.pt2): their weights, as torch.export.load gives them."""

import json
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
CONFIG = "data/weights/model_weights_config.json"


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


def rewrite(path, change):
    """Writes the archive again, its records changed."""
    with zipfile.ZipFile(path) as archive:
        records = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    change(records)
    writer = torch._C.PyTorchFileWriter(path)
    for name, data in records.items():
        if name not in (".data/version", "byteorder", ".data/serialization_id"):
            writer.write_record(name, data, len(data))
    writer.write_end_of_file()


def weight(**changes):
    """Changes members of the entry of "weight", by their paths."""
    def change(records):
        config = json.loads(records[CONFIG])
        for path, value in changes.items():
            entry = config["config"]["weight"]
            *inner, last = path.split("__")
            for name in inner:
                entry = entry[name]
            entry[last] = value
        records[CONFIG] = json.dumps(config).encode()
    return change


def text(data):
    return lambda records: records.update({CONFIG: data})


def twice(records):
    records[CONFIG] = records[CONFIG].replace(b'"bias"', b'"weight"')


# What is wrong, how it is made, and what Berth says. A Linear(4, 3): a weight of 48 bytes.
BROKEN = [
    ("no JSON", text(b"{"), "the list of weights: "),
    ("a list", text(b"[]"), "the list of weights is no JSON object"),
    ("no config", text(b"{}"), "the list of weights has no config"),
    ("a config that is a list", text(b'{"config": []}'), "the list of weights has no config"),
    ("many small objects", text(b'{"config": {"a": [' + b"{}," * 99 + b"{}]}}"), "too many objects"),
    ("a name twice", twice, "duplicate object key"),
    ("an entry that is a number", text(b'{"config": {"a": 1}}'), '"a": a tensor subclass'),
    ("a pickle", weight(use_pickle=True), '"weight": a tensor subclass, which torch.export stores as a pickle'),
    ("no tensor_meta", weight(tensor_meta=None), '"weight": it has no tensor_meta'),
    ("an unknown dtype", weight(tensor_meta__dtype=14), '"weight": its dtype is not known'),
    ("a dtype that is text", weight(tensor_meta__dtype="7"), '"weight": its dtype is not known'),
    ("a sparse layout", weight(tensor_meta__layout=1), '"weight": it is no strided tensor'),
    ("a negative size", weight(tensor_meta__sizes=[{"as_int": -1}, {"as_int": 4}]), "are no numbers"),
    ("a symbolic size", weight(tensor_meta__sizes=[{"as_expr": {"expr_str": "s0"}}, {"as_int": 4}]),
     "are no numbers"),
    ("65 sizes", weight(tensor_meta__sizes=[{"as_int": 1}] * 65, tensor_meta__strides=[{"as_int": 1}] * 65),
     "are no numbers"),
    ("a stride less", weight(tensor_meta__strides=[{"as_int": 1}]), "are no numbers"),
    ("a negative offset", weight(tensor_meta__storage_offset={"as_int": -1}), "are no numbers"),
    ("a size too large", weight(tensor_meta__sizes=[{"as_int": 4}, {"as_int": 4}]), '"weight": '),
    ("an offset too large", weight(tensor_meta__storage_offset={"as_int": 1}), '"weight": '),
    ("half an element", weight(path_name="weight_1", tensor_meta__dtype=8), "does not hold a whole number of its elements"),
    ("another dtype for a shared record", weight(path_name="weight_1", tensor_meta__dtype=4,
                                                 tensor_meta__sizes=[], tensor_meta__strides=[]),
     "storage weights/weight_1 is of float32 here and of int32 before"),
    ("no such record", weight(path_name="weight_9"), '"weight": the archive does not hold its record'),
    ("a path out of the folder", weight(path_name="../constants/x"), "the archive does not hold its record"),
    ("no path", weight(path_name=None), "the archive does not hold its record"),
    ("a path without an end", weight(path_name="x" * 600), "the archive does not hold its record"),
    ("no bytes", lambda records: records.update({"data/weights/weight_0": b""}), "exported without weights"),
    ("another format", lambda records: records.update({"archive_format": b"pt3"}), 'it does not say "pt2"'),
]


def broken(folder, change, says):
    save(f"{folder}/m.pt2", model=export(torch.nn.Linear(4, 3), torch.zeros(1, 4)))
    rewrite(f"{folder}/m.pt2", change)
    said = run("ls", f"{folder}/m.pt2", code=1)
    expect(says in said and "m.pt2" in said, said.strip())


def all_cases(results, folder):
    os.makedirs(f"{folder}/pt2", exist_ok=True)
    for name, function, *arguments in [
        ("one", one_program), ("two", two_programs), ("a flipped byte", flipped),
        ("zip -0", repacked, "zip", "-q", "-r", "-0"), ("zip", repacked, "zip", "-q", "-r"),
        *[(name, broken, *rest) for name, *rest in BROKEN],
    ]:
        place = f"{folder}/pt2/{name.replace(' ', '_')}"
        os.makedirs(place, exist_ok=True)
        results.run(f"exported: {name}", function, place, *arguments)
