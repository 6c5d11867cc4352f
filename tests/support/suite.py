# SPDX-License-Identifier: BSD-3-Clause
"""Runs Python's unit tests, and ends with the line that tools/check counts: N passed, N failed."""
import faulthandler
import signal
import sys
import unittest


def load(modules):
    """All tests of these modules."""
    tests = unittest.defaultTestLoader.loadTestsFromModule
    return unittest.TestSuite(tests(module) for module in modules)


def tests_of(results):
    """A subtest counts for its test; what fails before the tests of a class, for itself."""
    return {getattr(test, "test_case", test) for test, _ in results}


def run(suite):
    faulthandler.register(signal.SIGTERM, chain=True)  # tools/check's time limit: which test it met
    result = unittest.TextTestRunner(verbosity=1 if sys.stderr.isatty() else 2).run(suite)
    bad, skipped = tests_of(result.failures + result.errors), tests_of(result.skipped)
    for test, why in result.skipped:
        print(f"skipped: {test}: {why}")
    sys.stdout.flush()
    begun = [test for test in bad | skipped if isinstance(test, unittest.TestCase)]
    print(f"{result.testsRun - len(begun)} passed, {len(bad)} failed")
    sys.exit(1 if bad or not result.testsRun else 0)
