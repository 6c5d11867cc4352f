#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs what proves the promises about hostile files, and writes what it printed to tests/README.md.

usage: scoreboard.py BUILD [--kept] [STEP...]     BUILD: the folder of all builds

Steps: see STEPS; without any, all. Each is built, run, and its output kept in BUILD/scoreboard; the
table is made of the lines that are printed there, each with the day and form of its run; what was
never run there stays as the page has it. Fuzzing is recorded in tests/fuzz/README.md, and taken from
there. --kept: runs nothing. BERTH_LONG=1: the long forms. Fails if a step fails or a line is missing.
"""
import datetime
import os
import platform
import re
import subprocess
import sys

PAGE = "tests/README.md"
NOT_YET = "not measured yet"
LONG = os.environ.get("BERTH_LONG", "0") != "0"

# Name: what is built (variant, targets), and what is run, in the root folder.
STEPS = {
    "coverage": (("coverage", ["tests"]), ["tests/proof/coverage.py {build}/coverage"]),
    "mutation": (None, ["tests/proof/mutation.py {build}" + (" --long" if LONG else "")]),
    "costs": (("release", ["{build}/release/tests/proof/all"]),
              ["{build}/release/tests/proof/all --jobs=1"]),
    "hostile": (("debug", ["command"] + ["{build}/debug/tests/hostile/" + name
                                         for name in ("all", "heap.so")]),
                ["{build}/debug/tests/hostile/all --jobs=1", "tests/hostile/run"]),
    "faults": (("debug", ["command", "tests"]),
               ["{build}/debug/tests/faults/all --jobs=1", "tests/faults/run"]),
    "fuzz": (("debug", ["command"]), ["tests/fuzz/run --record"]),
}
FUZZ_PAGE = "tests/fuzz/README.md"

# Promise, step, pattern (all matches; of fuzzing, which counts), how the numbers are told, aim.
ROWS = [
    ("nothing that a fuzzer makes crashes, hangs, leaks or is read in two ways: in one long run",
     "fuzz", "long", "{} executions", "4 x 10^7"),
    ("and in all recorded runs", "fuzz", "all", "{} executions; fewest of {}: {}",
     "10^8 of each target"),
    ("one reading: a file that readers take for two things is refused, or read in one way",
     "hostile", r"ambiguity variants: (\d+) of (\d+) kinds, (\d+) refused, of these (\d+) only from "
     r"load.check=headers or data on .*, (\d+) read in one way",
     "{} variants of {} kinds: {} refused, of these {} only from `load.check=headers` or `data` on, "
     "{} read in one way", ""),
    ("no bit of a header, descriptor, directory or pickle changes unnoticed", "hostile",
     r"bit flips: ([\d,]+) detected, ([\d,]+) unchanged", "{} flips detected, {} change nothing",
     ""),
    ("bombs below 1 KiB cost no more in any command", "hostile",
     r"pickle bombs below 1 KiB: (.*)", "{}", "10 ms, 1 MiB"),
    ("after any single fault: the old file or the new one, or a clean error", "faults",
     r"fault points (W\d+): (\d+)", "", ""),
    ("memory is linear in the input (P3)", "costs",
     r"worst bytes per input byte: ([\d.]+) \((.*)\)", "at most {} bytes a byte ({})", "64"),
    ("time is linear in the input (P3)", "costs",
     r"worst nanoseconds per input byte: ([\d.]+) \((.*)\)", "at most {} ns a byte ({})", "1,000"),
    ("neither grows with the input (P3): an input 8 times as long needs, a byte", "costs",
     r"worst growth of memory a byte, of inputs 8 times as long: ([\d.]+) \((.*)\)",
     "at most {} times the memory ({})", "1.25"),
    ("and takes, a byte", "costs",
     r"worst growth of time a byte, of inputs 8 times as long: ([\d.]+) \((.*)\)",
     "at most {} times the time ({})", "1.6; of keys 3, by caches"),
    ("nothing recurses on what a file says (P3)", "costs",
     r"peak stack of the parsers: (\d+) bytes \((.*)\)", "at most {} bytes of stack ({})", ""),
    ("every line of format/ and of opening is run by a test", "coverage",
     r"coverage: \d+ of (\d+) lines \(([\d.]+) %\)", "{1} % of {0} lines", "100 %"),
    ("and every decision, both ways", "coverage",
     r"coverage: .*, \d+ of (\d+) branches \(([\d.]+) %\)", "{1} % of {0} branches", "95 %"),
    ("no check can be taken away or turned round without a test that fails", "mutation",
     r"mutation score: ([\d.]+) % \((\d+) of (\d+) mutants tried, of (\d+)",
     "{0} %: {1} of {2} tried, of {3}", "90 %"),
]


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = re.search(r"model name\s*:\s*(.*)", file.read())
    return (f"{os.cpu_count()} × {model[1] if model else platform.machine()}, "
            f"{platform.system()} {platform.release()}")


def log_of(build, step):
    return os.path.join(build, "scoreboard", step + ".log")


def run_step(build, step):
    """True if all went well; the output is kept, with colours taken out."""
    built, commands = STEPS[step]
    environment = {**os.environ, "BERTH_BUILD": f"{build}/debug", "LC_ALL": "C.UTF-8"}
    lines = []
    form = "long" if LONG else "short"
    if built:
        variant, targets = built
        lines.append(f"scons -Q -s -j{os.cpu_count()} VARIANT={variant} BUILD={build} " +
                     " ".join(targets))
    lines += commands
    good = True
    with open(log_of(build, step), "w", encoding="utf-8") as log:
        log.write(f"run: {datetime.date.today()}, {form}\n")
        for line in lines:
            words = line.format(build=build).split()
            done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, env=environment, check=False)
            log.write(re.sub(r"\x1b\[[0-9;]*m", "", done.stdout.decode(errors="replace")))
            good = good and done.returncode == 0
    return good


def tell(row, text):
    """What a row says, or None."""
    _, step, pattern, how, _ = row
    found = re.findall(pattern, text, re.MULTILINE)
    if not found:
        return None
    if step == "faults":
        return f"{sum(int(n) for _, n in found):,} fault points"
    last = found[-1] if isinstance(found[-1], tuple) else (found[-1],)
    return how.format(*last)


def tell_fuzzing(row):
    """What a row says of the recorded counts, and when they were; None: nothing is recorded."""
    _, _, which, how, _ = row
    with open(FUZZ_PAGE, encoding="utf-8") as file:
        parts = dict(re.findall(r"<!-- (short|long|all) -->\n(.*?)\n<!-- end", file.read(), re.DOTALL))
    # Each form's part begins: day, machine, how it ended.
    runs = {form: re.match(r"([\d-]{10}),[^:\n]*?(, ended[^:\n]*)?:\n", parts.get(form, ""))
            for form in ("short", "long")}
    counts = dict(re.findall(r"^\| ([\w ]+) \| ([\d,]+) \|", parts.get(which, ""), re.MULTILINE))
    in_all = counts.pop("in all", None)
    if not in_all or not any(runs.values()) or not runs.get(which, True):
        return None, ""
    if which != "all":
        return how.format(in_all) + (runs[which][2] or ""), f"{runs[which][1]}, {which}"
    fewest = min(counts, key=lambda target: int(counts[target].replace(",", "")))
    return how.format(in_all, fewest, counts[fewest]), max(run[1] for run in runs.values() if run)


def tell_run(build, row):
    """The same of a step that was run in this folder."""
    path = log_of(build, row[1])
    if not os.path.exists(path):
        return None, ""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    run = re.match(r"run: (.*)\n", text)
    return (tell(row, text), run[1]) if run else (None, "")


def rows_of_page():
    """{promise: [measured, aim, run]}, as the page has them."""
    with open(PAGE, encoding="utf-8") as file:
        cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in file]
    return {row[0]: row[1:] for row in cells if len(row) == 4 and row[1] != NOT_YET}


def table(build):
    before = rows_of_page()
    lines = ["| promise | measured | aim | run |", "|---|---|---|---|"]
    missing = []
    for row in ROWS:
        said, day = tell_fuzzing(row) if row[1] == "fuzz" else tell_run(build, row)
        if said is None:
            said, _, day = before.get(row[0], [None, "", ""])
        if said is None:
            missing.append(row[0])
            said, day = NOT_YET, ""
        lines.append(f"| {row[0]} | {said} | {row[4]} | {day} |")
    return "\n".join(lines), missing


def write(text, is_run):
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    # Of what is kept nobody knows another machine than the page does.
    page = re.sub(r"<!-- scoreboard -->\n(.*?)\n.*<!-- end of scoreboard -->",
                  lambda was: f"<!-- scoreboard -->\n{machine() if is_run else was[1]}\n\n{text}\n"
                  "<!-- end of scoreboard -->", page, flags=re.DOTALL)
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page)


def main():
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        print(__doc__)
        sys.exit(sys.argv[1:2] != ["--help"])
    build = os.path.abspath(sys.argv[1])
    asked = [word for word in sys.argv[2:] if word in STEPS] or list(STEPS)
    os.makedirs(os.path.join(build, "scoreboard"), exist_ok=True)
    bad = []
    is_run = "--kept" not in sys.argv
    for step in asked if is_run else []:
        good = run_step(build, step)
        print(f"{step}: {'done' if good else 'FAILED, see ' + log_of(build, step)}", flush=True)
        bad += [] if good else [step]
    text, missing = table(build)
    write(text, is_run)
    print(text)
    bad += missing
    print(f"{len(ROWS) - len(missing)} passed, {len(bad)} failed")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
