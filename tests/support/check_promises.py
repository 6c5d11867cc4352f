#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Every promise of SAFETY.md is cited by the code that keeps it and by a test that proves it."""
import glob
import os
import re
import sys

LABEL = re.compile(r"\b([ZPTSEDFWXYJU][1-9][0-9]?)\b")
NOT_YET = "Kept by design, not yet proven by a test:"


def cited(folders):
    labels = set()
    for top in folders:
        for folder, folders_below, names in os.walk(top):
            if folder == "tests":
                folders_below.remove("support")
            for name in names:
                if name.endswith((".c", ".h", ".def", ".py", ".sh", ".txt")) or name == "run":
                    with open(os.path.join(folder, name), encoding="utf-8") as text:
                        labels.update(LABEL.findall(text.read()))
    return labels


def check():
    with open("SAFETY.md", encoding="utf-8") as text:
        lines = text.read().splitlines()
    promised = [line.split()[1] for line in lines if re.match(r"- [ZPTSEDFWXYJU][0-9]+ ", line)]
    later = {label for line in lines if line.startswith(NOT_YET) for label in LABEL.findall(line)}
    code = cited(["base", "config", "format", "io", "save", "load", "adapters"])
    code |= {label for label in cited(["tools"]) if label.startswith(("D", "F6"))}  # the command alone keeps them
    tests = cited(["tests"])
    # F2 and F5 are promises of the manual as well, X12 is the build's.
    for name in ["berth.h", "SConstruct", *sorted(glob.glob("berth/*.h"))]:
        with open(name, encoding="utf-8") as text:
            code.update(LABEL.findall(text.read()))
    told = [f"{label}: cited nowhere in the code" for label in promised if label not in code | later]
    told += [f"{label}: cited by no test" for label in promised if label not in tests | later]
    return told if promised else ["SAFETY.md: no promise found"]


if __name__ == "__main__":
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else ".")
    broken = check()
    print("\n".join(broken) or "every promise is cited by code and test")
    sys.exit(1 if broken else 0)
