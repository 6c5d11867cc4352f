#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Who calls whom inside the library, and what its names say.

usage: check_graph.py OBJECTS [ROOT]

OBJECTS is a folder that the library was built in (build/release): what a source takes from another
is what nm says of its object. Prints, and fails on:
- a cycle of calls among more than three sources of a room;
- a cycle of calls between the sub-rooms of a room;
- a base name that two folders of the library have;
- a public name (berth_, BERTH_) inside the library that no public header has;
- a private name (bth_, BTH_) in a public header, the command, or the tests of the public interface.
"""
import glob
import os
import re
import subprocess
import sys

from check_includes import ROOMS, SOURCE

MAX_IN_CYCLE = 3
PUBLIC = re.compile(r"\b(?:berth|BERTH)_\w+")
PRIVATE = re.compile(r"\b(?:bth|BTH)_\w+")
NOT_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
MADE_BY_THE_BUILD = {"BERTH_HAS_CUDA"}
OUTSIDE = ["berth.h", "berth", "tools", "tests/api"]


def names_of(path):
    """(defined, weak ones of them, taken) names of an object file that other objects can see."""
    lines = subprocess.run(["nm", path], check=True, capture_output=True, text=True).stdout
    words = [line.split()[-2:] for line in lines.splitlines()]
    return tuple({name for kind, name in words if kind in kinds} for kinds in ("TDBRCVW", "VW", "U"))


def calls(objects, room, root):
    """{source: {source it calls: names}} within a room."""
    built = {os.path.relpath(path, objects)[:-len(".o")] + ".c": path
             for path in glob.glob(f"{objects}/{room}/**/*.o", recursive=True)}
    # An object may be older than the removal of its source.
    seen = {source: names_of(path) for source, path in built.items()
            if os.path.exists(os.path.join(root, source))}
    owner = {name: source for source, (defined, _, _) in seen.items() for name in defined}
    # A table that a wing fills is the core's, which has it without the wing, too.
    owner.update((name, source) for source, (_, weak, _) in seen.items() for name in weak)
    graph = {source: {} for source in seen}
    for source, (_, _, taken) in seen.items():
        for name in taken:
            if owner.get(name, source) != source:
                graph[source].setdefault(owner[name], set()).add(name)
    return graph


def reached(graph, start):
    """All nodes that calls lead to from `start`, which is one only where they lead back."""
    found, left = set(), [start]
    while left:
        for node in graph[left.pop()]:
            if node not in found:
                found.add(node)
                left.append(node)
    return found


def cycles(graph):
    """The largest sets of nodes each of which reaches all others."""
    reach = {node: reached(graph, node) for node in graph}
    together = {frozenset(other for other in reach[node] if node in reach[other])
                for node in graph if node in reach[node]}
    return sorted(together, key=sorted)


def between(graph, cycle):
    return [f"  {source} takes {', '.join(sorted(names))} from {other}"
            for source in sorted(cycle) for other, names in sorted(graph[source].items())
            if other in cycle]


def folded(graph):
    """The same between sub-rooms; what lies in the room itself belongs to none."""
    folders = {}
    for source, others in graph.items():
        here = os.path.dirname(source)
        for other, names in others.items():
            there = os.path.dirname(other)
            if "/" in here and "/" in there and here != there:
                folders.setdefault(here, {}).setdefault(there, set()).update(names)
                folders.setdefault(there, {})
    return folders


def check_calls(objects, root):
    told = []
    for room in ROOMS:
        graph = calls(objects, room, root)
        if not graph:
            told.append(f"{room}: no objects in {objects}")
        for cycle in cycles(graph):
            if len(cycle) > MAX_IN_CYCLE:
                told += [f"{room}: a cycle of calls among {len(cycle)} sources, at most "
                         f"{MAX_IN_CYCLE} may be:"] + between(graph, cycle)
        folders = folded(graph)
        for cycle in cycles(folders):
            told += [f"{room}: a cycle of calls between sub-rooms:"] + between(folders, cycle)
    return told


def sources(root, tops):
    """Paths below `root`, sorted."""
    found = []
    for top in tops:
        if os.path.isfile(os.path.join(root, top)):
            found.append(top)
        for folder, _, names in os.walk(os.path.join(root, top)):
            found += [os.path.relpath(os.path.join(folder, name), root) for name in names
                      if name.endswith(SOURCE)]
    return sorted(found)


def code_of(root, path):
    """The text with comments and strings blanked, lines kept."""
    with open(os.path.join(root, path), encoding="utf-8") as text:
        return NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text.read())


def check_base_names(root):
    places = {}
    for path in sources(root, ROOMS):
        folder, name = os.path.split(path)
        places.setdefault(os.path.splitext(name)[0], set()).add(folder)
    return [f"{name}: a base name in {' and '.join(sorted(folders))}"
            for name, folders in sorted(places.items()) if len(folders) > 1]


def public_names(root):
    """Also those that the public headers put together by macros."""
    headers = sources(root, ["berth.h", "berth"])
    expanded = subprocess.run(["gcc", "-E", "-P", "-I", root, *(os.path.join(root, each) for each in headers)],
                              check=True, capture_output=True, text=True).stdout
    return set(PUBLIC.findall("".join(code_of(root, each) for each in headers) + expanded)) | MADE_BY_THE_BUILD


def is_pasted(name, allowed):
    """The first part of public names, to which a macro adds the second."""
    return name.endswith("_") and any(each.startswith(name) for each in allowed)


def check_names(root):
    public = public_names(root)
    told = []
    for tops, pattern, allowed, rule in (
            (ROOMS, PUBLIC, public, "is public by its name, and in no public header: bth_, BTH_"),
            (OUTSIDE, PRIVATE, set(), "is private: only the library may use it")):
        for path in sources(root, tops):
            for number, line in enumerate(code_of(root, path).splitlines(), 1):
                told += [f"{path}:{number}: {name} {rule}"
                         for name in sorted(set(pattern.findall(line)) - allowed)
                         if not is_pasted(name, allowed)]
    return told


def check(objects, root="."):
    return check_calls(objects, root) + check_base_names(root) + check_names(root)


if __name__ == "__main__":
    broken = check(*sys.argv[1:3])
    print("\n".join(broken) or "no large cycle of calls, every base name once, names say what is public")
    sys.exit(1 if broken else 0)
