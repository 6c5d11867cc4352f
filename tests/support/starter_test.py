#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""starter.py, with modules of Python's instead of PyTorch. Ends with "N passed, N failed"."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import starter
import suite

HANGS = "import time\ndef hanging():\n    print('here', flush=True)\n    time.sleep(1000)\nhanging()"
# A code, its exit code or minus a signal, and what it says on stdout and at the end of stderr.
ENDS = [
    ("pass", 0, "", ""),
    ("import sys; print(1); print(2, file=sys.stderr)", 0, "1\n", "2\n"),
    ("import sys; sys.exit(3)", 3, "", ""),
    ("import sys; sys.exit('why')", 1, "", "why\n"),
    ("import os; os._exit(7)", 7, "", ""),
    ("1 / 0", 1, "", "ZeroDivisionError: division by zero\n"),
    ("raise KeyboardInterrupt", -signal.SIGINT, "", "KeyboardInterrupt\n"),
    ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, "", ""),
    ("import atexit; atexit.register(print, 'end')", 0, "end\n", ""),
    ("import threading, time\nthreading.Thread(target=lambda: print(time.sleep(0.1))).start()", 0, "None\n", ""),
    ("import gc, sys; print(gc.get_freeze_count() > 0, 'colorsys' in sys.modules)", 0, "True True\n", ""),
    ("import sys; print(sys.stdin.read(), sys.argv[1:])", 0, " ['a', 'b c']\n", ""),
]


def in_time(is_so):
    end = time.monotonic() + 60
    while not (so := is_so()) and time.monotonic() < end:
        time.sleep(0.001)
    return so


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Starter(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.realpath(folder.name)

    def run_program(self, *words, **more):
        """stdout of the small program, which ends well."""
        done = subprocess.run([os.environ["BERTH_PYTHON"], *words], capture_output=True, text=True, timeout=600,
                              check=False, **more)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def begin(self, code, **more):
        """A child that a small program has asked for, when it has said its process id."""
        process = subprocess.Popen([os.environ["BERTH_PYTHON"], "-c", "import os, signal\n" + code], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)
        return process, int(process.stdout.readline())

    def test_ends(self):
        for code, status, out, err in ENDS:
            done = subprocess.run([os.environ["BERTH_PYTHON"], "-c", code, "a", "b c"], stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=600, check=False)
            for got in (starter.run(code, "a", "b c"), (done.returncode, done.stdout, done.stderr)):
                with self.subTest(code):
                    self.assertEqual((got[0], got[1]), (status, out), got[2])
                    self.assertTrue(got[2].endswith(err) if err else not got[2], got[2])

    def test_what_the_caller_has(self):
        code = "import os, sys; print(os.environ['X'], os.getcwd(), oct(os.umask(0)), sys.path[:2], sys.stdin.read())"
        with open(os.path.join(self.folder, "in"), "w+", encoding="utf-8") as file:
            file.write("given")
            file.seek(0)
            said = self.run_program("-c", code, env=dict(os.environ, X="é", PYTHONPATH="/there"), cwd=self.folder,
                                    umask=0o27, stdin=file)
        self.assertEqual(said, f"é {self.folder} 0o27 ['', '/there'] given\n")

    def test_a_script(self):
        path = os.path.join(self.folder, "script.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write("import sys; print(__name__, __file__, sys.argv, sys.path[0], sys.executable)")
        self.assertEqual(self.run_program(path, "-x"),
                         f"__main__ {path} {[path, '-x']} {self.folder} {os.environ['BERTH_PYTHON']}\n")

    def test_what_the_real_one_runs(self):
        code = "import gc; print(gc.get_freeze_count())"
        self.assertEqual(self.run_program("-I", "-c", code), "0\n")
        self.assertEqual(self.run_program("-c", code, env={**os.environ, "LD_PRELOAD": "libc.so.6"}), "0\n")
        self.assertEqual(self.run_program(input=code), "0\n")

    def test_signals_are_passed_on(self):
        for number in starter.PASSED_ON:
            process, _ = self.begin("print(os.getpid(), flush=True)\nsignal.pause()")
            process.send_signal(number)
            process.communicate(timeout=600)
            self.assertEqual(process.returncode, -number)
        process, _ = self.begin("signal.signal(2, lambda *_: exit(print('caught')))\nprint(os.getpid(), flush=True)\n"
                                "signal.pause()")
        process.send_signal(signal.SIGINT)
        self.assertEqual((process.communicate(timeout=600)[0], process.returncode), ("caught\n", 0))

    def test_what_the_caller_ignores_is_ignored(self):
        said = subprocess.run(["bash", "-c", "trap '' INT; exec \"$BERTH_PYTHON\" -c \"$0\"",
                               "import signal; print(*map(int, map(signal.getsignal, (1, 2, 15))))"],
                              capture_output=True, text=True, timeout=600, check=False)
        self.assertEqual(said.stdout, "0 1 0\n", said.stderr)

    def test_one_that_hangs_tells_where(self):
        status, out, err = starter.run(HANGS, seconds=0.5)
        self.assertEqual((status, out), (-signal.SIGQUIT, "here\n"))
        self.assertIn(", line 4 in hanging\n", err)

    def test_nobody_waits_for_it(self):
        child = starter.Child(HANGS)
        self.assertTrue(in_time(child.printed))
        pid = child.pid
        del child
        self.assertTrue(in_time(lambda: not is_alive(pid)))
        process, pid = self.begin("print(os.getpid(), flush=True)\nsignal.pause()")
        process.kill()
        process.communicate(timeout=600)
        self.assertTrue(in_time(lambda: not is_alive(pid)))

    def test_the_server_ends_with_its_process(self):
        code = ("import os, sys, starter\nos.environ['BERTH_PYTHON'] = sys.executable\nstarter.start()\n"
                "print(starter.run('print(5)')[1], starter.start.server.pid, os.environ['BERTH_PYTHON'])")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False,
                              env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__))})
        five, pid, program = done.stdout.split()
        self.assertEqual(five, "5", done.stderr)
        self.assertTrue(in_time(lambda: not is_alive(int(pid)) and not os.path.exists(os.path.dirname(program))))


if __name__ == "__main__":
    os.environ["BERTH_PYTHON"] = sys.executable
    starter.start(["colorsys"])
    suite.run(suite.load([sys.modules[__name__]]))
