#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Every link of a page leads to a file that is there, and to a heading that this has."""
import glob
import os
import re
import sys

PAGES = ("*.md", "docs/**/*.md", "format/*.md", "tests/**/*.md")
LINK = re.compile(r"\[(?:[^][]|\[[^]]*\])*\]\(([^()\s]+)\)|^\[[^]]+\]: (\S+)", re.M)
USED = re.compile(r"\]\[([^]]+)\]")
DEFINED = re.compile(r"^\[([^]]+)\]: ", re.M)


def without_code(text):
    """Blocks and spans of code have no links."""
    return re.sub(r"`[^`\n]*`", "``", re.sub(r"^\s*```.*?^\s*```", "", text, flags=re.M | re.S))


def anchors(path):
    """As GitHub makes them of headings."""
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"^\s*```.*?^\s*```", "", file.read(), flags=re.M | re.S)
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", text, flags=re.M):
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor, n = re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-"), 0
        while anchor + (f"-{n}" if n else "") in found:
            n += 1
        found.add(anchor + (f"-{n}" if n else ""))
    return found


def check():
    told = []
    for page in sorted({page for each in PAGES for page in glob.glob(each, recursive=True)}):
        with open(page, encoding="utf-8") as file:
            text = without_code(file.read())
        told += [f"{page}: [{name}] is defined nowhere" for name in set(USED.findall(text)) - set(DEFINED.findall(text))]
        told += [f"{page}: [{name}] is used nowhere" for name in set(DEFINED.findall(text)) - set(USED.findall(text))]
        for link in (inside or behind for inside, behind in LINK.findall(text)):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if not os.path.exists(path):
                told.append(f"{page}: {link}: there is no {path}")
            elif anchor and anchor not in anchors(path):
                told.append(f"{page}: {link}: {path} has no such heading")
    return told


if __name__ == "__main__":
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else ".")
    broken = check()
    print("\n".join(broken) or "every link leads somewhere")
    sys.exit(1 if broken else 0)
