#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Names that are a tensor's own in the PyTorch of this Python: setattr does not make an attribute.

usage: PYTHON tests/peers/attribute_names.py            prints the names, one a line
       PYTHON tests/peers/attribute_names.py TABLE      prints the table with this PyTorch added

TABLE is format/values/tensor_attributes.def: the union over all versions that were tried. Names like
__this__ are Python's and all refused, so they are not listed.
"""

import re
import sys

import torch

ROW = re.compile(r'^ATTRIBUTE\("(\w+)", "([^"]*)"\)$', re.MULTILINE)
TRIED = re.compile(r"^ \* Versions tried: (.*)\.$", re.MULTILINE)


def own_names():
    """Where a class of a Parameter or a tensor has what decides about setting."""
    return {name for kind in torch.nn.Parameter.__mro__ for name, value in vars(kind).items()
            if hasattr(type(value), "__set__") or hasattr(type(value), "__delete__")}


def is_magic(name):
    return name.startswith("__") and name.endswith("__")


def listed_names():
    return sorted(name for name in own_names() if not is_magic(name))


def version():
    return ".".join(torch.__version__.split(".")[:2])


def by_number(versions):
    return sorted(set(versions), key=lambda text: [int(part) for part in text.split(".")])


def added(table):
    """The text of the table, with this version in the rows that it has."""
    rows = {name: versions.split() for name, versions in ROW.findall(table)}
    for name in listed_names():
        rows.setdefault(name, []).append(version())
    tried = by_number(TRIED.search(table)[1].split(", ") + [version()])
    head = table[:ROW.search(table).start()]
    head = TRIED.sub(lambda _: f" * Versions tried: {', '.join(tried)}.", head)
    return head + "".join(f'ATTRIBUTE("{name}", "{" ".join(by_number(versions))}")\n'
                          for name, versions in sorted(rows.items()))


def main():
    if len(sys.argv) > 1:
        with open(sys.argv[1], encoding="utf-8") as file:
            sys.stdout.write(added(file.read()))
    else:
        print("\n".join(listed_names()))


if __name__ == "__main__":
    main()
