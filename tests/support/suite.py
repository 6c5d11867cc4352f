# SPDX-License-Identifier: BSD-3-Clause
"""Runs Python's unit tests, and ends with the line that tools/check counts: N passed, N failed."""
import sys
import unittest


def load(modules):
    """All tests of these modules."""
    tests = unittest.defaultTestLoader.loadTestsFromModule
    return unittest.TestSuite(tests(module) for module in modules)


def run(suite):
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    # A subtest counts for its test.
    bad = len({getattr(test, "test_case", test).id()
               for test, _ in result.failures + result.errors})
    for test, why in result.skipped:
        print(f"skipped: {test}: {why}")
    sys.stdout.flush()
    print(f"{result.testsRun - bad - len(result.skipped)} passed, {bad} failed")
    sys.exit(1 if bad or not result.testsRun else 0)
