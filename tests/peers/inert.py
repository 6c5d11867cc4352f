# SPDX-License-Identifier: BSD-3-Clause
"""load.unknown_globals=inert shows every tensor of files that PyTorch opens with weights_only=False
alone, in both formats and protocols, without running anything of them."""

import collections
import enum
import json
import os
import subprocess

import berth_ctypes as b
import torch
from files import expect

COMMAND = os.path.join(b.BUILD, "berth")
INERT = ("--set", "load.unknown_globals=inert")


class Outer:
    class Inner:
        pass

    class Color(enum.Enum):
        RED = 1

    class Tensor(torch.Tensor):
        pass


class Flags(enum.IntFlag):
    A = 1
    B = 2


class OwnTensor(torch.Tensor):
    pass


Pair = collections.namedtuple("Pair", "first second")


def numbers(*shape, start=0):
    n = 1
    for size in shape:
        n *= size
    return torch.arange(start, start + n, dtype=torch.float32).reshape(shape)


def subclasses():
    tagged = numbers(3).as_subclass(OwnTensor)
    tagged.tag, tagged.other = "x", numbers(2, start=7)
    return {"plain": numbers(4).as_subclass(OwnTensor), "tagged": tagged,
            "part": numbers(8)[3:6].as_subclass(OwnTensor),
            "nested": numbers(2, 2).as_subclass(Outer.Tensor),
            "bytes": numbers(3).to(torch.int16).as_subclass(OwnTensor),
            "parameter": torch.nn.Parameter(numbers(2).as_subclass(OwnTensor))}


def nested_classes():
    inner = Outer.Inner()
    inner.weight = numbers(5)
    return {"inner": inner, "class": Outer.Inner, "pair": Pair(numbers(2), 1)}


def enums_and_functions():
    return {"color": Outer.Color.RED, "flags": Flags.A | Flags.B, "function": numbers,
            "method": Outer.Color.mro, "built in": len, "tensor's": torch.Tensor.add,
            Outer.Color.RED: numbers(3), "bytes": b"\xff", "weight": numbers(2)}


def module():
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))


def optimizer():
    model = torch.nn.Linear(2, 2)
    chosen = torch.optim.Adam(model.parameters())
    model(numbers(1, 2)).sum().backward()
    chosen.step()
    return chosen


def containers():
    tensor = numbers(4)
    return {"default": collections.defaultdict(list, a=[tensor]), "queue": collections.deque([tensor]),
            "frozen": frozenset([1]), "slice": slice(1, 2), "shared": tensor}


CASES = (subclasses, nested_classes, enums_and_functions, module, optimizer, containers)


def all_tensors(value):
    """The bytes of each tensor in a value, found by Python's own means."""
    found, seen, left = [], set(), [value]
    while left:
        at = left.pop()
        if id(at) in seen or isinstance(at, (str, bytes, int, float, type, enum.Enum)):
            continue
        seen.add(id(at))
        if isinstance(at, torch.Tensor):
            found.append(bytes(at.detach().as_subclass(torch.Tensor).contiguous().view(-1)
                               .view(torch.uint8).tolist()))
        elif isinstance(at, dict):
            left += list(at.values())
        elif isinstance(at, (list, tuple, collections.deque)):
            left += list(at)
        if not callable(at) or isinstance(at, torch.nn.Module):
            left += list(getattr(at, "__dict__", {}).values())
    return sorted(set(found))


def command(*words):
    done = subprocess.run([COMMAND, *words, *INERT], capture_output=True, check=False)
    expect(done.returncode == 0, f"berth {words[0]}: {done.stderr.decode().strip()[-300:]}")
    return done.stdout


def listed_tensors(path):
    return sorted({command("cat", path, tensor["name"])
                   for tensor in json.loads(command("ls", "--json", path)) if "dtype" in tensor})


def shows_every_tensor(path, value):
    mine, theirs = listed_tensors(path), all_tensors(value)
    expect(mine == theirs, f"{len(mine)} tensors, Python finds {len(theirs)}")


def saved_again(folder, path, value):
    """With classes and all, as PyTorch opens it."""
    command("copy", path, f"{folder}/copy.pt", "--set", "save.byteorder=big")
    loaded = torch.load(f"{folder}/copy.pt", weights_only=False)
    expect(type(loaded) is type(value), f"it is a {type(loaded)}")
    expect(all_tensors(loaded) == all_tensors(value), "other tensors than were saved")


# In protocols 4 and 5 these have a class within another, or a frozenset, for which protocol 2 has no opcodes.
REFUSED_IN_4 = ("subclasses", "nested_classes", "enums_and_functions", "containers")


def is_refused(path):
    done = subprocess.run([COMMAND, "ls", path, *INERT], capture_output=True, check=False)
    says = any(why in done.stderr for why in (b"STACK_GLOBAL of a class within another", b"FROZENSET"))
    expect(done.returncode == 1 and says, f"it is not refused: {done.stderr.decode().strip()[-300:]}")


def run_case(results, folder, make, protocol, is_zip):
    title = f"inert, {'zip' if is_zip else 'legacy'}, protocol {protocol}: {make.__name__}"
    if results.words and not any(word in title for word in results.words):
        return
    value, path = make(), f"{folder}/inert.pt"
    torch.save(value, path, pickle_protocol=protocol, _use_new_zipfile_serialization=is_zip)
    if protocol >= 4 and make.__name__ in REFUSED_IN_4:
        results.run(f"{title}: refused", is_refused, path)
        return
    results.run(f"{title}: every tensor", shows_every_tensor, path, value)
    if is_zip:
        results.run(f"{title}: saved again", saved_again, folder, path, value)


def all_cases(results, folder):
    for make in CASES:
        for protocol, is_zip in ((2, True), (2, False), (3, True), (3, False), (4, True), (5, True)):
            run_case(results, folder, make, protocol, is_zip)
