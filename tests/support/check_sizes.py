#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""No file above 900 lines, berth.h at most 800, nine of ten functions on a screen, none above two.

Counts on the committed format: a function's braces stand alone in the first column.
"""
import os
import sys

from check_includes import source_files

MAX_LINES = 900
MAX_OF = {"berth.h": 800, "berth/more.h": 1200}  # nobody reads the second one from end to end
MAX_NINE_OF_TEN = 55
MAX_FUNCTION = 120


def functions(path):
    """(length, line) of each function of a .c file."""
    start = None
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line == "{\n":
                start = number
            elif line == "}\n" and start:
                yield number - start + 1, f"{path}:{start}"
                start = None


def check(root):
    told = []
    os.chdir(root)
    paths = list(source_files("."))
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            n_lines = sum(1 for _ in lines)
        most = MAX_OF.get(os.path.normpath(path), MAX_LINES)
        if n_lines > most:
            told.append(f"{path}: {n_lines} lines, more than {most}")
    found = sorted(each for path in paths if path.endswith(".c") for each in functions(path))
    lengths = [length for length, _ in found] or [0]
    if lengths[len(lengths) * 9 // 10] > MAX_NINE_OF_TEN:
        told.append(f"functions: more than one of ten has above {MAX_NINE_OF_TEN} lines")
    told += [f"{place}: a function of {length} lines, more than {MAX_FUNCTION}"
             for length, place in found if length > MAX_FUNCTION]
    return told


if __name__ == "__main__":
    too_large = check(sys.argv[1] if len(sys.argv) > 1 else ".")
    print("\n".join(too_large) or "every file and function is small enough")
    sys.exit(1 if too_large else 0)
