#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Who may include whom. Prints file:line and the rule for each crossing.

usage: check_includes.py [ROOT]
"""
import os
import re
import sys

ROOMS = ["base", "config", "format", "io", "save", "load"]
MAY_INCLUDE = {
    "base": ["base"],
    "config": ["base", "config"],
    "format": ["base", "config", "format"],
    "io": ["base", "config", "io"],
    "save": ["base", "config", "format", "io", "save"],
    "load": ["base", "config", "format", "io", "load"],
    "tools": ["tools", "adapters/curl"],
    "adapters/curl": ["adapters/curl"],
    "adapters/mpi": ["adapters/mpi"],
    "adapters/python": ["adapters/python", "adapters/curl"],
    "tests/support": ["tests/support"],
    "tests/api": ["tests/support", "tests/api"],
    "tests/core": ["tests/support", "tests/core"],
    "tests/peers": ["tests/support", "tests/peers"],
}
# The other folders of tests look into every room, and at the whole test library.
TESTS_MAY_INCLUDE = ROOMS + ["tests/support", "tests/support/*", "tests/simulated"]

# Parts of the library that its core does without, with their folders: docs/decisions/rings.md.
WINGS = {
    "joint": ["save/joint"],
    "rows": ["load/rows"],
    "prefetch": ["load/prefetch"],
    "device": ["io/device", "save/device", "load/device"],
    "trace": ["io/trace"],
}

# System headers that belong to one place: pattern, the folders that may, why.
KEPT = [
    (r"(unistd|fcntl|pthread|threads|time|dirent|poll|signal)\.h|sys/.*",
     lambda folder: folder != "format",
     "format/ is pure: no file, no thread, no clock, no environment"),
    (r"argp\.h", lambda folder: folder == "tools", "only tools/ includes it"),
    (r"jansson\.h", lambda folder: folder in ("tools", "format", "tests/fuzz", "tests/load", "tests/save"),
     "only format/ and tools/ read and write JSON"),
    (r"cuda(Typedefs)?\.h", lambda folder: folder in ("io", "tests/io"), "only io/ knows CUDA"),
    (r"curl/.*", lambda folder: folder == "adapters/curl", "only adapters/curl/ knows the network"),
    (r"(berth_)?mpi\.h", lambda folder: folder in ("adapters/mpi", "examples", "tests/mpi"),
     "only adapters/mpi knows MPI"),
    (r"Python\.h", lambda folder: folder == "adapters/python", "only the package for Python knows Python"),
    (r"criterion/.*", lambda folder: folder.startswith("tests/"), "only tests include it"),
    (r"(libdeflate|zlib)\.h",
     lambda folder: folder in ("format", "adapters/curl") or folder.startswith("tests/"),
     "only format/ computes and inflates, and adapters/curl/ sums the parts that it sends"),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCE = (".c", ".h", ".cpp", ".def", ".inc")


def folder_of(path):
    """The room; of adapters/ and tests/ the folder in it, and tests/support/* for those in tests/support/."""
    parts = os.path.dirname(path).split("/")
    if parts[0] == "adapters":
        return "/".join(parts[:2])
    if parts[0] != "tests":
        return parts[0]
    return "/".join(parts[:2]) + ("/*" if parts[1:2] == ["support"] and len(parts) > 2 else "")


def allowed(folder):
    if folder in MAY_INCLUDE:
        return MAY_INCLUDE[folder]
    if folder.startswith("tests/"):
        return TESTS_MAY_INCLUDE + [folder] * (folder not in TESTS_MAY_INCLUDE)
    return []


def wing_of(path):
    """The wing that a file of the library belongs to; None: the core, or no file of the library."""
    return next((wing for wing, folders in WINGS.items() if os.path.dirname(path) in folders), None)


def is_public(path):
    return path in ("berth.h", "berth.hpp") or path.startswith("berth/")


def broken_rule(root, path, quote, included):
    """The sentence of the rule that this include breaks, or None."""
    folder = folder_of(path)
    if is_public(included) and (included == "berth.h" or not is_public(path)):
        return None
    if quote == "<" and not os.path.exists(os.path.join(root, included)):
        for pattern, may, why in KEPT:
            if re.fullmatch(pattern, included) and not may(folder):
                return why
        return None
    if ".." in included.split("/") or "/" not in included:
        return "includes are written from the repository's root"
    if not os.path.exists(os.path.join(root, included)):
        return "there is no such file in the repository"
    if folder_of(included) in allowed(folder):
        if folder in ROOMS and wing_of(included) not in (None, wing_of(path)):
            return (f"another wing includes no file of the wing {wing_of(included)}" if wing_of(path) else
                    f"the core calls the wing {wing_of(included)} by a table (docs/decisions/rings.md)")
        return None
    if not allowed(folder):
        return "public headers include nothing but berth.h"
    return f"{folder}/ may include the public headers, " + ", ".join(f"{name}/" for name in allowed(folder))


def source_files(root):
    for top in ROOMS + ["tools", "examples", "adapters", "tests"]:
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders.sort()
            for name in sorted(names):
                if name.endswith(SOURCE):
                    yield os.path.relpath(os.path.join(folder, name), root)
    yield "berth.h"
    yield from (f"berth/{name}" for name in sorted(os.listdir(os.path.join(root, "berth"))))


def check(root):
    found = []
    for path in source_files(root):
        with open(os.path.join(root, path), encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                include = INCLUDE.match(line)
                rule = include and broken_rule(root, path, *include.groups())
                if rule:
                    found.append(f"{path}:{number}: {line.strip()}: {rule}")
    return found


if __name__ == "__main__":
    crossings = check(sys.argv[1] if len(sys.argv) > 1 else ".")
    print("\n".join(crossings) or "every include keeps to its layer")
    sys.exit(1 if crossings else 0)
