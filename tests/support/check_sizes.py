#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""No file above 900 lines (but berth.h, the manual), nine of ten functions on a screen, none above two.

Counts on the committed format: a function's braces stand alone in the first column.
"""
import os
import sys

from check_includes import source_files

MAX_LINES = 900
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
    paths = [path for path in source_files(".") if path != "berth.h"]
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            n_lines = sum(1 for _ in lines)
        if n_lines > MAX_LINES:
            told.append(f"{path}: {n_lines} lines, more than {MAX_LINES}")
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
