# SPDX-License-Identifier: BSD-3-Clause
"""Runs Python's unit tests, and ends with the line that tools/check counts: N passed, N failed."""
import faulthandler
import signal
import sys
import time
import unittest

SLOW_SECONDS = 3


def load(modules):
    """All tests of these modules."""
    tests = unittest.defaultTestLoader.loadTestsFromModule
    return unittest.TestSuite(tests(module) for module in modules)


def tests_of(results):
    """A subtest counts for its test; what fails before the tests of a class, for itself."""
    return {getattr(test, "test_case", test) for test, _ in results}


class Timed(unittest.TextTestResult):
    """Knows how long each test took."""

    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        self.seconds = {}

    def startTest(self, test):
        self.seconds[test] = -time.monotonic()
        super().startTest(test)

    def stopTest(self, test):
        super().stopTest(test)
        self.seconds[test] += time.monotonic()


def run(suite):
    faulthandler.register(signal.SIGTERM, chain=True)  # tools/check's time limit: which test it met
    # One line for each test, which tells tools/check where it is, unless somebody looks on.
    result = unittest.TextTestRunner(verbosity=1 if sys.stderr.isatty() else 2, resultclass=Timed).run(suite)
    bad, skipped = tests_of(result.failures + result.errors), tests_of(result.skipped)
    for test, why in result.skipped:
        print(f"skipped: {test}: {why}")
    for test, seconds in sorted(result.seconds.items(), key=lambda each: -each[1]):
        if seconds >= SLOW_SECONDS:
            print(f"slow: {seconds:.1f} s: {test}")
    sys.stdout.flush()
    begun = [test for test in bad | skipped if isinstance(test, unittest.TestCase)]
    print(f"{result.testsRun - len(begun)} passed, {len(bad)} failed")
    sys.exit(1 if bad or not result.testsRun else 0)
