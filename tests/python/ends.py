# SPDX-License-Identifier: BSD-3-Clause
"""Asynchronous saves in processes that end, and that are interrupted."""

import os
import signal
import subprocess
import sys

import berth
import torch

from folder import Folder
from starter import Starter

HEAD = """
import atexit, os, signal, sys, threading, time, berth, torch
path = sys.argv[1]
class Slow:
    def __init__(self, seconds, fails=False):
        self.file, self.seconds, self.fails = open(path, "wb", buffering=0), seconds, fails
    def write(self, data):
        time.sleep(self.seconds)
        if self.fails:
            raise ZeroDivisionError("of the writer")
        return self.file.write(data[:100_000])
    def flush(self):
        self.file.close()
def interrupt(seconds):
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
value = {"a": torch.arange(LENGTH), "b": "text"}
"""


class Ends(Folder):
    @classmethod
    def setUpClass(cls):
        cls.starter = Starter()
        cls.addClassCleanup(cls.starter.close)

    def run_code(self, code, length=1000., status=0):
        """stdout and stderr of a process that ends with this exit code."""
        code = HEAD.replace("LENGTH", str(length)) + code
        got, out, err = self.starter.run(code, self.path("v.pt"))
        self.assertEqual(got, status, err)
        return out, err

    def saved(self, code, length=1000.):
        """The process says "False" to job.done() and ends; the file is whole, and nothing else is there."""
        self.assertEqual(self.run_code(code, length), ("False\n", ""))
        loaded = berth.load(self.path("v.pt"))
        self.assertTrue(torch.equal(loaded["a"], torch.arange(length)))
        self.assertEqual(os.listdir(self.folder), ["v.pt"])

    # ---- the end of the interpreter ----

    def test_in_the_middle_of_a_large_save(self):
        for snapshot in (True, False):
            self.saved(f"print(berth.save_async(value, path, snapshot={snapshot}).done())\n",
                       length=50_000_000.)

    def test_in_a_process_of_its_own(self):
        """Not of the starter's."""
        code = (HEAD.replace("LENGTH", "300_000.")
                + "print(berth.save_async(value, Slow(0.02)).done())\n")
        done = subprocess.run([sys.executable, "-c", code, self.path("v.pt")], capture_output=True,
                              text=True, check=False, timeout=120)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "False\n", ""))
        self.assertEqual(berth.load(self.path("v.pt"))["a"][-1], 299_999)

    def test_in_the_middle_of_a_save_to_a_slow_object(self):
        """Its write() is called until the end, and flush() too."""
        self.saved("print(berth.save_async(value, Slow(0.02)).done())\n", length=300_000.)

    def test_by_an_exception_and_by_sys_exit(self):
        self.saved("job = berth.save_async(value, Slow(0.1))\nprint(job.done())\nsys.exit(0)\n")
        _, log = self.run_code("berth.save_async(value, Slow(0.1)).done()\nnone\n", status=1)
        self.assertIn("NameError", log)
        self.assertEqual(berth.load(self.path("v.pt"))["b"], "text")

    def test_jobs_of_other_threads(self):
        """Of a daemon, too, which the interpreter does not wait for."""
        for daemon in (True, False):
            self.saved("def work():\n"
                       "    print(berth.save_async(value, Slow(0.1)).done(), flush=True)\n"
                       "    time.sleep(0.5)\n"
                       f"thread = threading.Thread(target=work, daemon={daemon})\n"
                       "thread.start()\n"
                       "time.sleep(0.25)\n")

    def test_jobs_that_begin_at_the_end(self):
        """By then the interpreter has waited for threads, and may make no new ones."""
        self.saved("@atexit.register\n"
                   "def last():\n"
                   "    job = berth.save_async(value, Slow(0.1))\n"
                   "    print(False)\n")

    def test_callbacks_are_called_before_the_end(self):
        self.saved("job = berth.save_async(value, Slow(0.1))\n"
                   "job.add_done_callback(lambda job: print(not job.done()))\n")

    def test_a_failure_is_reported_at_the_end(self):
        """Once: of a job that is kept, of one that is dropped, not of one that was asked."""
        for code in ("sys.kept = berth.save_async(value, Slow(0.05, fails=True))\n",
                     "sys.kept = berth.save_async(value, Slow(0, fails=True))\ntime.sleep(0.3)\n",
                     "berth.save_async(value, Slow(0.05, fails=True))\n"):
            _, log = self.run_code(code)
            self.assertEqual(log.count("nobody asked for its result"), 1, log)
            self.assertEqual(log.count("ZeroDivisionError: of the writer"), 1, log)
        _, log = self.run_code("job = berth.save_async(value, Slow(0, fails=True))\n"
                               "try:\n"
                               "    job.result()\n"
                               "except ZeroDivisionError:\n"
                               "    pass\n")
        self.assertEqual(log, "")

    def test_a_child_ends_without_its_parents_jobs(self):
        """It neither waits for them nor reports them."""
        self.saved("job = berth.save_async(value, Slow(0.05))\n"
                   "pid = os.fork()\n"
                   "if pid == 0:\n"
                   "    sys.exit(0)\n"
                   "assert os.waitpid(pid, 0)[1] == 0\n"
                   "print(job.done())\n", length=1_000_000.)

    def test_a_killed_process_leaves_the_old_file(self):
        """And a temporary, which the next save removes."""
        berth.save({"b": "old"}, self.path("v.pt"))
        self.run_code("berth.save_async(value, path)\nos.kill(os.getpid(), signal.SIGKILL)\n",
                      length=50_000_000., status=-signal.SIGKILL)
        self.assertEqual(berth.load(self.path("v.pt"))["b"], "old")
        berth.save({"b": "new"}, self.path("v.pt"))
        self.assertEqual(os.listdir(self.folder), ["v.pt"])

    # ---- interrupts ----

    def interrupted(self, wait):
        """^C in a wait raises KeyboardInterrupt in time; the job goes on."""
        self.saved("job = berth.save_async(value, Slow(0.02), snapshot=False)\n"
                   "interrupt(0.2)\n"
                   "began = time.monotonic()\n"
                   "try:\n"
                   f"    {wait}\n"
                   "except KeyboardInterrupt:\n"
                   "    assert time.monotonic() - began < 10\n"
                   "    print(job.done())\n", length=1_000_000.)

    def test_in_result(self):
        self.interrupted("job.result()")

    def test_in_staged(self):
        self.saved("job = berth.save_async(value, Slow(0.02), snapshot=False)\n"
                   "interrupt(0.2)\n"
                   "try:\n"
                   "    job.staged()\n"
                   "    time.sleep(1)\n"
                   "except KeyboardInterrupt:\n"
                   "    print(job.done())\n", length=1_000_000.)

    def test_in_await(self):
        self.interrupted("import asyncio\n"
                         "    async def main():\n"
                         "        await job\n"
                         "    asyncio.run(main())")

    def test_a_user_who_cancels_then(self):
        out, log = self.run_code("job = berth.save_async(value, Slow(0.02))\n"
                                 "interrupt(0.2)\n"
                                 "try:\n"
                                 "    job.result()\n"
                                 "except KeyboardInterrupt:\n"
                                 "    print(job.cancel())\n"
                                 "    try:\n"
                                 "        job.result()\n"
                                 "    except berth.CancelledError:\n"
                                 "        print('cancelled')\n", length=1_000_000.)
        self.assertEqual((out, log), ("True\ncancelled\n", ""))

    def test_anywhere(self):
        """Interrupts at all places of beginning and waiting: a whole file, no temporary, no hang."""
        out, log = self.run_code(
            "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
            "berth.config.save.durability = 'none'\n"
            "berth.save(value, path)\n"
            "calls, random = 0, torch.Generator().manual_seed(1)\n"
            "while calls < 100:\n"
            "    seconds = torch.rand(1, generator=random).item() * 0.004 + 0.0001\n"
            "    try:\n"
            "        signal.setitimer(signal.ITIMER_REAL, seconds)\n"
            "        while True:\n"
            "            berth.save_async(value, path, snapshot=calls % 2 == 0).result()\n"
            "    except KeyboardInterrupt:\n"
            "        calls += 1\n"
            "    assert berth.load(path)['b'] == 'text'\n"
            "for thread in threading.enumerate():\n"
            "    if thread.name == 'berth-job' and thread.is_alive():\n"
            "        thread.join()\n"
            "print(os.listdir(os.path.dirname(path)))\n", length=100_000.)
        self.assertEqual((out, log), ("['v.pt']\n", ""))
