# SPDX-License-Identifier: BSD-3-Clause
"""Runs Python's unit tests, and ends with the line that tools/check counts: N passed, N failed.

Two processes take the classes in turn, in their order: what takes long stands first. A process that dies fails the
test that it was in; the other one goes on. Each test has a line when it begins and one when it ends: tools/check
reads there which ones a suite was in.
"""

import contextlib
import faulthandler
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

SLOW_SECONDS = 3
AT_ONCE = min(2, len(os.sched_getaffinity(0)))
NUMBER = struct.Struct("i")
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def build(variant, folder, *arguments):
    """As build of tools/setup.sh: the two processes here, and other parts of tools/check, wait for each other."""
    os.makedirs(f"{folder}/{variant}", exist_ok=True)
    lock = os.open(f"{folder}/{variant}", os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["scons", "-Q", "-s", f"VARIANT={variant}", f"BUILD={os.path.abspath(folder)}", *arguments],
                       check=True, stdin=subprocess.DEVNULL, cwd=ROOT)
    finally:
        os.close(lock)  # unlocks it


def load(modules, words=()):
    """All tests of these modules; only those that have one of the words in their names, if there are any."""
    tests = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromModule(module) for module in modules)
    return unittest.TestSuite(test for test in cases(tests)
                              if not words or any(word in test.id() for word in words))


def cases(tests):
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            yield from cases(test)
        else:
            yield test


def classes(tests):
    """A suite of each class: what it sets up is for all its tests."""
    suites = {}
    for test in cases(tests):
        suites.setdefault(type(test), unittest.TestSuite()).addTest(test)
    return list(suites.values())


def say(line):
    """In one piece: the other process writes there, too."""
    sys.stderr.flush()
    os.write(2, (line + "\n").encode(errors="replace"))


def processor_seconds():
    """Of this process, and of its children that have ended."""
    return sum(os.times()[:4])


class Told(unittest.TestResult):
    """Tells of each test when it begins and when it ends: a dict, as JSON can carry it."""

    def __init__(self, tell):
        super().__init__()
        self.tell = tell

    def startTest(self, test):
        super().startTest(test)
        self.began, self.processor = time.monotonic(), processor_seconds()
        self.tell({"began": str(test)})
        say(str(test))

    def stopTest(self, test):
        super().stopTest(test)
        seconds = time.monotonic() - self.began
        bad, skipped = self.take()
        end = "FAILED" if bad else f"skipped: {skipped[0][1]}" if skipped else "ok"
        processor = processor_seconds() - self.processor
        say(f"{test} ... {end}, {seconds:.1f} s, {processor:.1f} of a processor")
        self.tell({"test": str(test), "bad": bad, "skipped": skipped[:1], "seconds": seconds, "processor": processor})

    def take(self):
        """What has failed and what was skipped since the last time. A subtest counts for its test."""
        bad = [(str(test), text) for test, text in self.failures + self.errors]
        bad += [(str(test), "it passes, though it is expected to fail") for test in self.unexpectedSuccesses]
        skipped = [(str(test), why) for test, why in self.skipped]
        for each in (self.failures, self.errors, self.unexpectedSuccesses, self.skipped):
            each.clear()
        return bad, skipped

    def end_of_class(self):
        """What fails, or is skipped, before its tests or behind them."""
        bad, skipped = self.take()
        for test, text in bad:
            self.tell({"test": test, "bad": [(test, text)], "skipped": [], "seconds": 0})
        for test, why in skipped:
            self.tell({"test": test, "bad": [], "skipped": [(test, why)], "seconds": 0})


def work(suites, tell):
    result = Told(tell)
    for each in suites:
        each(result)
        result.end_of_class()
        sys.stdout.flush()


def taken(suites, numbers, parent):
    """The suites whose numbers this process gets from the pipe, as long as there is somebody who waits for it."""
    while (data := os.read(numbers, NUMBER.size)) and os.getppid() == parent:
        yield suites[NUMBER.unpack(data)[0]]


class Process:
    """One of several, forked: it works on what is in the pipe, and ends."""

    def __init__(self, suites, numbers):
        self.told = tempfile.TemporaryFile("w+", encoding="utf-8", buffering=1)
        self.trace = tempfile.TemporaryFile()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            faulthandler.register(signal.SIGTERM, self.trace, chain=True)
            work(taken(suites, numbers, parent), self.tell)
            self.tell({"began": None})
            sys.exit(0)  # as a process ends: its threads, what it has registered

    def tell(self, told):
        self.told.write(json.dumps(told) + "\n")

    def results(self):
        """What it has told of its tests; of the one that it died in, that."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.told.seek(0)
        where = "the beginning of a process"
        for line in self.told:
            told = json.loads(line)
            where = told.get("began", "a process between two tests")
            if "test" in told:
                yield told
        if code or where:
            name = where or "the end of a process"
            yield {"test": name, "bad": [(name, f"its process ended with {code}")], "skipped": [], "seconds": 0}

    def stop(self):
        """And writes where it was."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGTERM)
            os.waitpid(self.pid, 0)
        self.trace.seek(0)
        os.write(2, self.trace.read())


def side_by_side(suites, n):
    """What n processes tell of the tests. Only this one returns from here."""
    reading, writing = os.pipe()
    for number in range(len(suites)):
        os.write(writing, NUMBER.pack(number))
    os.close(writing)
    sys.stdout.flush()
    processes = [Process(suites, reading) for _ in range(n)]

    def end(number, _frame):
        for each in processes:
            each.stop()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, end)
    for each in processes:
        yield from each.results()
    for each in taken(suites, reading, os.getppid()):
        name = str(next(iter(each)))
        yield {"test": name, "bad": [(name, "not run: no process was left")], "skipped": [], "seconds": 0}


def run(tests):
    run_suites(classes(tests))


def run_suites(suites):
    """Each is called with something that has tell(); what has "passed" and "failed" counts as so many tests."""
    told = []
    sys.stdout.reconfigure(errors="backslashreplace")  # names of files, and texts, may have lone surrogates
    # tools/check's time limit ends with SIGTERM: which test it met
    if AT_ONCE > 1 and len(suites) > 1:
        told = list(side_by_side(suites, min(AT_ONCE, len(suites))))
    else:
        faulthandler.register(signal.SIGTERM, chain=True)
        work(suites, told.append)
    ended = [each for each in told if "test" in each]
    for each in ended:
        for test, text in each["bad"]:
            print(f"{'=' * 70}\nFAILED: {test}\n{'-' * 70}\n{text}")
    for each in ended:
        for test, why in each["skipped"]:
            print(f"skipped: {test}: {why}")
    for each in sorted(ended, key=lambda each: -each["seconds"]):
        if each["seconds"] >= SLOW_SECONDS:
            print(f"slow: {each['seconds']:.1f} s, {each['processor']:.1f} of a processor: {each['test']}")
    n_failed = sum(each.get("failed", bool(each["bad"])) for each in ended)
    n_passed = sum(each.get("passed", not each["bad"] and not each["skipped"]) for each in ended)
    print(f"{n_passed} passed, {n_failed} failed")
    sys.exit(1 if n_failed or not sum(each.get("passed", 1) for each in ended) else 0)
