#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Switches off the checks of format/, load/ and save/, one at a time: some test must fail each time.

usage: mutation.py BUILD [--long] [--quick] [--only TEXT] [--again] [--sample N] [--seed N]

A copy of the sources in BUILD/mutation, every check rewritten (mutants.py), is built once with the
tests in C of the quick tier. Every test runs once, which tells the mutants that would change a value
in it; then each mutant is tried against these tests, the most particular first. One that would change
none in any test survives at once. What survives is tried again under the address sanitizer, as the
quick tier runs them. Tried is a sample of SAMPLE mutants, or of as many as --sample says; with --long
all that stand in what reads files (READS); --only, once or more, takes those whose line ("file:line:
kind: text") holds TEXT; --again those that survived the run before, and tells of both together.
--quick: only the most particular tests, and no sanitizer, so that some survive which others would
find: for --again.
Fails below MIN_SCORE. What was tried is kept in BUILD/mutation/told.json, with its cost in seconds. A
seed draws the same mutants as long as these are there, whatever else changes.

mutation_exceptions.txt lists mutants that change nothing that could be seen, each with the reason;
they are not tried.
"""
import collections
import concurrent.futures
import glob
import hashlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

import mutants

FILES = ["format/**/*.[ch]", "load/**/*.[ch]", "save/**/*.[ch]"]
READS = ("format/", "load/open/", "load/archive.c")
TESTS = [f"tests/{folder}/all" for folder in ("format", "load", "save", "api", "hostile", "faults")]
TESTS += sorted(path[:-2] for path in glob.glob("tests/fuzz/*.c"))  # a program each
CODE = [f"{top}/**/*.[ch]" for top in
        ("base", "config", "format", "io", "save", "load", "tools", "tests", "adapters/curl")]
SOURCES = CODE + ["SConstruct", "berth.h", "berth/*.h", "packaging/*.in", "[!b]*/**/*.def", "tests/data/**",
                  "tests/hostile/**", "tests/fuzz/found/**"]
SAMPLE = 100
MAX_OF_QUICK = 120
MAX_OF_FILTER = 48  # names; Criterion ends at once for a filter of 5 KB
N_LIKELY = 3  # suites that have found most of the mutants of a file
MIN_SCORE = 90.0
HERE = os.path.dirname(os.path.abspath(__file__))
EXCEPTIONS = os.path.join(HERE, "mutation_exceptions.txt")
SWITCH = """
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "base/error.h"
static unsigned char unasked[%d];
int berth_mutant = -1;
unsigned char *berth_mutants_met = unasked;
__attribute__((constructor)) static void choose(void)
{
    const char *active = getenv("BERTH_MUTANT"), *met = getenv("BERTH_MUTANTS_MET");
    if (active)
        berth_mutant = atoi(active);
    if (met) {
        void *map = mmap(0, sizeof unasked, PROT_READ | PROT_WRITE, MAP_SHARED,
                         open(met, O_RDWR), 0);
        berth_mutants_met = map == MAP_FAILED ? unasked : map;
    }
}
int berth_mutant_overlooks(void *error)
{
    if (error)
        bth_error_clear(error);
    return 0;
}
"""


def copy_sources(folder):
    """The tree in `folder`, checks rewritten; returns the mutants, and a digest of each file."""
    rewriter = mutants.Rewriter()
    rewritten = {path for pattern in FILES for path in glob.glob(pattern, recursive=True)}
    contents = {}
    for path in sorted(path for pattern in SOURCES for path in glob.glob(pattern, recursive=True)
                       if os.path.isfile(path)):
        with open(path, "rb") as file:
            contents[path] = file.read()
        if path in rewritten:
            contents[path] = rewriter.rewrite(path, contents[path].decode()).encode()
    contents["config/mutant.c"] = (SWITCH % len(rewriter.mutants)).encode()
    for path, content in contents.items():
        there = os.path.join(folder, path)
        os.makedirs(os.path.dirname(there), exist_ok=True)
        if not os.path.exists(there) or open(there, "rb").read() != content:
            with open(there, "wb") as file:
                file.write(content)
    for pattern in CODE:
        for there in glob.glob(os.path.join(folder, pattern), recursive=True):
            if os.path.relpath(there, folder) not in contents:
                os.remove(there)
    del contents["config/mutant.c"]  # changes with the number of mutants
    return rewriter.mutants, {path: hashlib.sha256(content).hexdigest()[:16]
                              for path, content in contents.items()}


class Programs:
    """The test programs of one variant of the rewritten tree."""

    def __init__(self, folder, variant):
        self.folder, self.variant = folder, variant
        programs = [f"build/{variant}/{name}" for name in TESTS]
        header = os.path.join(HERE, "mutant.h")
        with open(header, "rb") as file:  # scons does not see that a compiler's option names a file
            version = hashlib.sha256(file.read()).hexdigest()[:8]
        subprocess.run(["scons", "-Q", "-s", f"-j{os.cpu_count()}", f"VARIANT={variant}",
                        f"CC=gcc -w -DMUTANT_H=0x{version} -include {header}"] + programs,
                       cwd=folder, check=True, stdin=subprocess.DEVNULL)
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("BERTH_", "TORCH_"))}
        self.environment.update(ASAN_OPTIONS="abort_on_error=1:detect_leaks=1:"
                                "allocator_may_return_null=1", LC_ALL="C.UTF-8")

    def run(self, name, tests, limit, **environment):
        """None: all pass. Else how it failed: "fails: SUITE::TEST", "takes too long"."""
        command = [f"build/{self.variant}/{name}", "--jobs=1", "--fail-fast",
                   f"--filter=@({'|'.join(tests)})"]

        def bound():
            if self.variant != "asan":
                resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL,
                                       stdout=said, stderr=said, start_new_session=True,
                                       preexec_fn=bound, env={**self.environment, **environment})
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                return "takes too long"
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
            said.seek(0)
            text = re.sub(r"\x1b\[[0-9;]*m", "", said.read().decode(errors="replace"))
        tested = re.search(r"Synthesis: Tested: (\d+) \| Passing: (\d+)", text)
        if not tested:
            raise RuntimeError(f"{name} does not run: {text[-500:]}")
        if code or tested[1] != tested[2]:
            first = re.search(r"\[ *FAIL *\] *(\w+::\w+)", text)
            return f"fails: {first[1]}" if first else "fails"
        return None

    def list_tests(self, name):
        text = subprocess.run([f"build/{self.variant}/{name}", "--list"], cwd=self.folder,
                              capture_output=True, text=True, check=True).stdout
        suite, names = None, []
        for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
            if line[:1] not in " |`\t" and ":" in line:
                suite = line.split(":")[0].strip()
            elif found := re.search(r"(\w+)\s*$", line):
                names.append(f"{suite}/{found[1]}")
        return names


class Test:
    def __init__(self, program, name, seconds, met):
        self.program, self.name, self.seconds, self.met = program, name, seconds, met
        self.suite = name.split("/")[0]


def meet(programs, n_mutants, wanted):
    """Each of these tests (program, name), run alone: how long it takes and which mutants would change
    a value in it."""
    def one(program, name):
        with tempfile.NamedTemporaryFile() as met:
            met.write(bytes(n_mutants))
            met.flush()
            begin = time.monotonic()
            failed = programs.run(program, [name], 300, BERTH_MUTANTS_MET=met.name)
            seconds = time.monotonic() - begin
            with open(met.name, "rb") as file:
                bits = file.read()
        if failed:
            print(f"{program}: {name} {failed} without a mutant")
            return None
        return Test(program, name, seconds, {i for i, bit in enumerate(bits) if bit})

    with concurrent.futures.ThreadPoolExecutor(workers()) as pool:
        tests = list(pool.map(lambda each: one(*each), wanted))
    return [test for test in tests if test]


class Kept:
    """What meet told, in met.json. Of a test it stays until its own source changes, or a file that it
    meets mutants in; all goes when one changes that is neither a test nor has mutants."""

    def __init__(self, folder, found, digests):
        self.path, self.found, self.digests = os.path.join(folder, "met.json"), found, digests
        own = tuple({f"{os.path.dirname(program)}/" for program in TESTS})
        mutated = {mutant.path for mutant in found}
        self.common = self.digest(path for path in digests if path not in mutated and not path.startswith(own))
        self.sources = collections.defaultdict(list)  # of each test
        for path in digests:
            if path.startswith(own) and path.endswith(".c"):
                with open(path, encoding="utf-8") as file:
                    for suite, name in re.findall(r"Test\((\w+),\s*(\w+)", file.read()):
                        self.sources[f"{suite}/{name}"].append(path)

    def digest(self, paths):
        return hashlib.sha256(repr([self.digests.get(path) for path in sorted(paths)]).encode()).hexdigest()[:16]

    def state(self, test):
        return self.digest({self.found[number].path for number in test.met} | set(self.sources[test.name]))

    def read(self):
        """{(program, name): Test} of what is still so."""
        if not os.path.exists(self.path):
            return {}
        with open(self.path, encoding="utf-8") as file:
            common, keys, listed = json.load(file)
        numbers = {mutant.key(): mutant.number for mutant in self.found}
        tests = {}
        for program, name, seconds, met, state in listed if common == self.common else []:
            test = Test(program, name, seconds, {numbers.get(keys[i]) for i in met})
            if None not in test.met and self.state(test) == state:
                tests[program, name] = test
        return tests

    def write(self, tests):
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump([self.common, [mutant.key() for mutant in self.found],
                       [[test.program, test.name, test.seconds, sorted(test.met), self.state(test)]
                        for test in tests]], file)


def meet_once(programs, found, digests):
    """All tests and what they meet; run are those of which it isn't known. Returns their number, too."""
    kept = Kept(programs.folder, found, digests)
    known, every = kept.read(), [(program, name) for program in TESTS for name in programs.list_tests(program)]
    wanted = [each for each in every if each not in known]
    tests = [known[each] for each in every if each in known] + meet(programs, len(found), wanted)
    kept.write(tests)
    return tests, len(wanted)


def workers():
    return int(os.environ.get("BERTH_JOBS", os.cpu_count()))


def batches(tests, finders):
    """The most particular tests first, few at a time; then those of the likely finders; slow ones last."""
    ordered = sorted(tests, key=lambda test: (test.seconds > 1, len(test.met)))
    if "--quick" in sys.argv:
        ordered = [test for test in ordered if test.seconds <= 1][:MAX_OF_QUICK]
    likely = {suite for suite, _ in finders.most_common(N_LIKELY)}
    rest = sorted(ordered[24:], key=lambda test: test.suite not in likely)
    n_likely = sum(test.suite in likely for test in rest)
    for some in (ordered[:4], ordered[4:24], rest[:n_likely], rest[n_likely:][:96], rest[n_likely:][96:]):
        by_program = {}
        for test in some:
            by_program.setdefault(test.program, []).append(test)
        for program, its in by_program.items():
            yield from ((program, its[i:i + MAX_OF_FILTER]) for i in range(0, len(its), MAX_OF_FILTER))


def attempt(programs, tests, mutant, finders):
    """How the mutant was found, or None; and the seconds that it took. What fails must fail twice: on a
    busy machine a test may fail by chance. finders: counts for each file of mutants which suites
    found them."""
    begin = time.monotonic()
    reaching = [test for test in tests if mutant.number in test.met]
    own = finders[mutant.key().split(":")[0]]
    for program, some in batches(reaching, own):
        slow = 20 if programs.variant == "asan" else 5
        limit = 10 + slow * sum(test.seconds for test in some)
        names = [test.name for test in some]
        found = programs.run(program, names, limit, BERTH_MUTANT=str(mutant.number))
        if found and "::" in found:
            names = [found.split()[-1].replace("::", "/")]
        if found and programs.run(program, names, limit, BERTH_MUTANT=str(mutant.number)):
            own[found.split()[-1].split("::")[0]] += 1
            return f"{program} {found}", time.monotonic() - begin
    return None, time.monotonic() - begin


def read_exceptions():
    with open(EXCEPTIONS, encoding="utf-8") as lines:
        return dict(line.rstrip("\n").split(" ## ") for line in lines
                    if line.strip() and not line.startswith("#"))


def read_told(folder):
    """What the run before tried: {key of a mutant: (how it was found or None, seconds, text)}."""
    path = os.path.join(folder, "told.json")
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def keep(folder, told):
    with open(os.path.join(folder, "told.json"), "w", encoding="utf-8") as file:
        json.dump(told, file, indent=1)


def try_all(programs, tests, chosen, told):
    """Tries mutants, and returns the survivors."""
    survivors, finders = [], collections.defaultdict(collections.Counter)
    with concurrent.futures.ThreadPoolExecutor(workers()) as pool:
        jobs = {pool.submit(attempt, programs, tests, each, finders): each
                for each in chosen}
        for done, job in enumerate(concurrent.futures.as_completed(jobs), 1):
            how, seconds = job.result()
            told[jobs[job].key()] = how, round(seconds, 2), str(jobs[job])
            if not how:
                survivors.append(jobs[job])
                print(f"not found by {programs.variant}: {jobs[job]}", flush=True)
            keep(programs.folder, told)
            if done % 100 == 0:
                print(f"{done} of {len(chosen)} tried, {len(survivors)} survive", flush=True)
    return sorted(survivors, key=lambda each: each.number)


def value_of(option, arguments, default=None):
    return arguments[arguments.index(option) + 1] if option in arguments else default


def choose(found, excepted, survived, arguments):
    chosen = [each for each in found if each.key() not in excepted]
    wanted = [text for option, text in zip(arguments, arguments[1:]) if option == "--only"]
    if wanted:
        chosen = [each for each in chosen if any(text in str(each) for text in wanted)]
    if "--again" in arguments:
        return [each for each in chosen if each.key() in survived]
    if wanted:
        return chosen
    n = int(value_of("--sample", arguments, SAMPLE))
    if "--long" not in arguments and len(chosen) > n:
        seed = str(value_of("--seed", arguments, random.randrange(10 ** 6)))
        print(f"a sample of {n}, seed {seed}")
        chosen = sorted(chosen, key=lambda each: hashlib.sha256(f"{seed} {each.key()}".encode()).digest())[:n]
    return chosen


def report(found, tried, survivors, excepted):
    for kind in ("removed", "inverted", "left out"):
        n = sum(each.kind == kind for each in tried)
        alive = sum(each.kind == kind for each in survivors)
        print(f"{kind}: {n - alive} of {n} found")
    for each in survivors:
        print(f"survives: {each}")
    score = 100 * (len(tried) - len(survivors)) / max(len(tried), 1)
    print(f"mutation score: {score:.1f} % ({len(tried) - len(survivors)} of {len(tried)} mutants "
          f"tried, of {len(found)}; {sum(each.key() in excepted for each in found)} that change nothing)")
    return score


def main():
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        print(__doc__)
        sys.exit(sys.argv[1:2] != ["--help"])
    folder = os.path.join(os.path.abspath(sys.argv[1]), "mutation")
    excepted = read_exceptions()
    found, digests = copy_sources(folder)
    unknown = set(excepted) - {each.key() for each in found}
    for key in sorted(unknown):
        print(f"{key}: there is no such mutant; take it off the exceptions")
    programs = Programs(folder, "debug")
    begin = time.monotonic()
    tests, n_met = meet_once(programs, found, digests)
    print(f"{len(found)} mutants, {len(tests)} tests, {n_met} of them met in "
          f"{time.monotonic() - begin:.0f} s", flush=True)
    if "--long" in sys.argv:
        found = [each for each in found if each.path.startswith(READS)]
    told = read_told(folder) if "--again" in sys.argv else {}
    chosen = choose(found, excepted, {key for key, each in told.items() if not each[0]}, sys.argv)
    survivors = try_all(programs, tests, chosen, told)
    if survivors and "--quick" not in sys.argv:
        survivors = try_all(Programs(folder, "asan"), tests, survivors, told)
    tried = [each for each in found if each.key() in told and each.key() not in excepted]
    score = report(found, tried, survivors, excepted)
    good = score >= MIN_SCORE and not unknown and bool(tried)
    print(f"{int(good)} passed, {int(not good)} failed")
    sys.exit(not good)


if __name__ == "__main__":
    main()
