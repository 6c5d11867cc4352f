#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""suite.py on tests that pass, fail, skip, die and hang. Ends with "N passed, N failed"."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import suite

HERE = os.path.dirname(os.path.abspath(__file__))
HEAD = """
import os, signal, sys, time, unittest
import suite
class Case(unittest.TestCase):
    def meets(self, mine, other):
        open(mine, "w").close()
        end = time.monotonic() + 20
        while not os.path.exists(other):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.001)
"""
END = "\nsuite.run(suite.load([sys.modules['__main__']]))\n"
PAIR = """
class A(Case):
    def test_a(self):
        self.meets("a", "b")
        {}
class B(Case):
    def test_b(self):
        self.meets("b", "a")
        {}
"""
# What stands in the middle of a program -> its last line, and others that it says.
CASES = {
    "each end": ("""
class A(Case):
    def test_passes(self):
        pass
    def test_fails(self):
        self.assertEqual(1, 2)
    def test_raises(self):
        1 / 0
    def test_subtests(self):
        for n in range(4):
            with self.subTest(n):
                self.assertEqual(n % 2, 0)
    def test_skipped(self):
        self.skipTest("why not")
    @unittest.expectedFailure
    def test_unexpected(self):
        pass
""", "1 passed, 4 failed", ["FAILED: test_fails (__main__.A.test_fails)", "AssertionError: 1 != 2", "ZeroDivisionError",
                            "FAILED: test_subtests (__main__.A.test_subtests) [3]", "it passes, though",
                            "skipped: test_skipped (__main__.A.test_skipped): why not"]),
    "before the tests of a class": ("""
class A(Case):
    @classmethod
    def setUpClass(cls):
        1 / 0
    def test_one(self):
        pass
class B(Case):
    @classmethod
    def setUpClass(cls):
        raise unittest.SkipTest("not here")
    def test_one(self):
        pass
class C(Case):
    def test_one(self):
        pass
""", "1 passed, 1 failed", ["FAILED: setUpClass (__main__.A)", "skipped: setUpClass (__main__.B): not here"]),
    "a text that no encoding has": ("""
class A(Case):
    def test_fails(self):
        self.fail("\\ud800")
""", "0 passed, 1 failed", [r"AssertionError: \ud800"]),
    "no test": ("", "0 passed, 0 failed", []),
    "two at once": (PAIR.format("", ""), "2 passed, 0 failed", []),
    "one dies, the other goes on": (
        PAIR.format("os.kill(os.getpid(), signal.SIGKILL)", "") + """
class C(Case):
    def test_c(self):
        pass
""", "2 passed, 1 failed", ["FAILED: test_a (__main__.A.test_a)", "its process ended with -9"]),
    "one ends as if all were well": (PAIR.format("os._exit(0)", ""), "1 passed, 1 failed", ["its process ended with 0"]),
    "both die": (PAIR.format("os._exit(3)", "os._exit(4)") + """
class C(Case):
    def test_c(self):
        pass
""", "0 passed, 3 failed", ["its process ended with 3", "its process ended with 4",
                            "FAILED: test_c (__main__.C.test_c)", "not run: no process was left"]),
}


class Suites(unittest.TestCase):
    def begin(self, text):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return subprocess.Popen([sys.executable, "-c", HEAD + text + END], cwd=folder.name, text=True, encoding="utf-8",
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": HERE})

    def check(self, name):
        text, last, others = CASES[name]
        with self.begin(text) as process:
            out, err = process.communicate(timeout=600)
        self.assertEqual(out.splitlines()[-1], last, out + err)
        for each in others:
            self.assertIn(each, out)
        self.assertEqual(process.returncode, 0 if last == "2 passed, 0 failed" else 1)

    @unittest.skipIf(suite.AT_ONCE == 1, "there is one processor")
    def test_a_limit(self):
        """All processes end, and each says what it was at, in lines and in its frames."""
        with self.begin(PAIR.format("open('ra', 'w'); time.sleep(1000)", "open('rb', 'w'); time.sleep(1000)")) as process:
            said = [process.stderr.readline() for _ in range(2)]
            while not {"ra", "rb"} <= set(os.listdir(f"/proc/{process.pid}/cwd")):
                self.assertIsNone(process.poll())
                time.sleep(0.001)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=600)
        self.assertEqual(sorted(said), [f"test_{x} (__main__.{x.upper()}.test_{x})\n" for x in "ab"])
        for each in "ab":
            self.assertRegex(err, rf"(?m)^  File .* in test_{each}$")
        self.assertEqual(process.returncode, -signal.SIGTERM)


def add_tests():
    for name, (text, *_) in CASES.items():
        def test(self, name=name):
            self.check(name)

        if text.startswith(PAIR[:10]):
            test = unittest.skipIf(suite.AT_ONCE == 1, "there is one processor")(test)
        setattr(Suites, "test_" + name.replace(" ", "_").replace(",", ""), test)


add_tests()
if __name__ == "__main__":
    suite.run(suite.load([sys.modules[__name__]]))
