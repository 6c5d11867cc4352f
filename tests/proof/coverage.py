#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""How much of the checks of a file the tests run: lines and branches of format/ and of opening; and
lines of the rest of load/ and save/.

usage: coverage.py BUILD [--again]     BUILD: the folder of the variant "coverage", built with its command

Runs the Criterion programs of FOLDERS, and SCRIPTS, asks gcov, prints lines and branches of each
file and what is not covered. Fails below MIN_LINES and MIN_BRANCHES, and of what is not covered
without being named, with its reason, in coverage_exceptions.txt; what is named there and is covered
fails, too. Lines that are named count as run, branches as not taken; those of assert() do not
count. Of the rest, lines that are never run are told; it fails below MIN_REST.
--again: of the run before, runs nothing.
"""
import glob
import json
import os
import re
import subprocess
import sys

FOLDERS = ["format", "load", "hostile", "api", "save", "core", "faults"]
# With real users and mounts. Whether they pass does not count: a process that is counted writes its counts.
SCRIPTS = ["places", "owners.CarriedTest", "owners.WithoutAclTest", "owners.NamespaceTest"]  # tests/faults
# format/, and what of load/ reads a file's structure: who opens it, and by what checks.
FILES = re.compile(r"format/[\w/]+\.[ch]|load/(open/\w+|archive)\.c")
REST = re.compile(r"(load|save)/[\w/]+\.[ch]")
MIN_LINES = 100.0
MIN_REST = 99.0
MIN_BRANCHES = 95.0
EXCEPTIONS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "coverage_exceptions.txt")


def run_tests(build):
    """Runs all programs, counters at zero before; returns those that failed."""
    for path in glob.glob(f"{build}/**/*.gcda", recursive=True):
        os.remove(path)
    failed = []
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("BERTH_", "TORCH_"))}
    for folder in FOLDERS:
        for _ in range(2):  # some tests measure time, and this variant is slow
            done = subprocess.run([f"{build}/tests/{folder}/all", "--jobs=1"], timeout=3600,
                                  stdin=subprocess.DEVNULL, capture_output=True, check=False,
                                  env=environment)
            if done.returncode == 0:
                break
        else:
            sys.stdout.write((done.stdout + done.stderr).decode(errors="replace")[-4000:])
            failed.append(f"tests/{folder}")
    for path in glob.glob(f"{build}/**/*.gcda", recursive=True):
        os.chmod(path, 0o666)  # other users count, too
    for script in SCRIPTS:
        subprocess.run([sys.executable, "-m", "unittest", script], cwd="tests/faults", timeout=3600,
                       stdin=subprocess.DEVNULL, capture_output=True, check=False,
                       env={**environment, "BERTH_BUILD": build})
    return failed


def ask_gcov(build):
    """{file: {line: [count, [branch counts]]}}, added up over all objects."""
    files = {}
    objects = [path for room in ("base", "format", "load", "save", "io", "config")
               for path in glob.glob(f"{build}/{room}/**/*.gcda", recursive=True)]
    text = subprocess.run(["gcov", "-b", "-t", "--json-format"] + objects, check=True,
                          capture_output=True).stdout.decode()
    for each in text.splitlines():
        for file in json.loads(each)["files"]:
            if FILES.fullmatch(file["file"]) or REST.fullmatch(file["file"]):
                add_lines(files.setdefault(file["file"], {}), file["lines"])
    return files


def add_lines(lines, more):
    # A line is told once for each function made from it: inline ones, macros.
    for line in more:
        kept = lines.setdefault(line["line_number"], [0, []])
        kept[0] += line["count"]
        counts = [branch["count"] for branch in line["branches"]]
        if len(counts) == len(kept[1]):
            kept[1] = [a + b for a, b in zip(kept[1], counts)]
        elif len(counts) > len(kept[1]):
            kept[1] = counts


def read_exceptions():
    """[file, text of a line, reason], from lines "file: text ## reason"."""
    made = []
    with open(EXCEPTIONS, encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                place, reason = line.rstrip("\n").split(" ## ")
                file, text = place.split(": ", 1)
                made.append([file, text.strip(), reason])
    return made


def guards(source, number):
    """A line's own text, and that of the line above that it is indented under."""
    def indent(line):
        return len(line) - len(line.lstrip())

    line = source[number]
    above = [other for other in source[:number] if other.strip() and indent(other) < indent(line)]
    return line.strip(), above[-1].strip() if above else ""


class Report:
    def __init__(self, files, exceptions):
        self.exceptions = exceptions
        self.used = set()
        self.wrong = []
        self.rest = self.rest_run = 0
        self.lines = self.lines_run = self.branches = self.branches_taken = 0
        for path in sorted(files):
            (self.add_file if FILES.fullmatch(path) else self.add_rest)(path, files[path])
        self.wrong += [f"{file}: {text}: is covered, or is not there; take it off the exceptions"
                       for i, (file, text, _) in enumerate(exceptions) if i not in self.used]

    def excepted(self, path, texts):
        for i, (file, wanted, _) in enumerate(self.exceptions):
            if file == path and wanted in texts:
                self.used.add(i)
                return True
        return False

    @staticmethod
    def source_of(path):
        with open(path, encoding="utf-8") as text:
            return [""] + text.read().split("\n")

    def add_rest(self, path, lines):
        source = self.source_of(path)
        counted = {number: count for number, (count, _) in sorted(lines.items())
                   if count or not self.excepted(path, guards(source, number))}
        self.rest += len(counted)
        self.rest_run += sum(count > 0 for count in counted.values())
        for number, count in counted.items():
            if not count:
                print(f"{path}:{number}: never run: {source[number].strip()}")

    def add_file(self, path, lines):
        source = self.source_of(path)
        n = run = n_branches = taken = 0
        for number, (count, branches) in sorted(lines.items()):
            if not count and self.excepted(path, guards(source, number)):
                continue
            if source[number].strip().startswith("assert("):
                branches = []  # a contract: no test can break it
            n += 1
            run += count > 0
            n_branches += len(branches)
            taken += sum(branch > 0 for branch in branches)
            if not count:
                self.wrong.append(f"{path}:{number}: never run: {source[number].strip()}")
            elif 0 in branches and not self.excepted(path, [source[number].strip()]):
                which = ",".join(str(i) for i, branch in enumerate(branches) if not branch)
                self.wrong.append(f"{path}:{number}: branch {which} of {len(branches)}: "
                                  f"{source[number].strip()}")
        print(f"{path:32} {run:5} of {n:5} lines {taken:5} of {n_branches:5} branches")
        self.lines += n
        self.lines_run += run
        self.branches += n_branches
        self.branches_taken += taken


def main():
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        print(__doc__)
        sys.exit(sys.argv[1:2] != ["--help"])
    build = os.path.abspath(sys.argv[1])
    failed = [] if "--again" in sys.argv else run_tests(build)
    report = Report(ask_gcov(build), read_exceptions())
    lines = 100 * report.lines_run / max(report.lines, 1)
    branches = 100 * report.branches_taken / max(report.branches, 1)
    told = [f"{source}: fails" for source in failed] + report.wrong
    if branches < MIN_BRANCHES:
        told.append(f"{branches:.2f} % of branches are fewer than {MIN_BRANCHES} %")
    rest = 100 * report.rest_run / max(report.rest, 1)
    if rest < MIN_REST:
        told.append(f"{rest:.2f} % of the lines of the rest are fewer than {MIN_REST} %")
    print("\n".join(told))
    print(f"the rest of load/ and save/: {report.rest_run} of {report.rest} lines ({rest:.2f} %)")
    print(f"coverage: {report.lines_run} of {report.lines} lines ({lines:.2f} %), "
          f"{report.branches_taken} of {report.branches} branches ({branches:.2f} %), "
          f"{len(report.exceptions)} exceptions")
    good = not told and lines >= MIN_LINES
    print(f"{int(good)} passed, {int(not good)} failed")
    sys.exit(not good)


if __name__ == "__main__":
    main()
