# SPDX-License-Identifier: BSD-3-Clause
"""Asynchronous saves in processes that end, and that are interrupted."""

import os
import signal
import subprocess
import sys
import unittest

import berth
import torch

import starter
from folder import Folder

ASAN = "libasan" in os.environ.get("LD_PRELOAD", "")
LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")
HEAD = """
import atexit, os, signal, sys, threading, time, berth, torch
path = sys.argv[1]
gate = threading.Event()
class Held:
    # A file object that writes, slowly, when may_write() allows it; and then may fail.
    def __init__(self, may_write=gate.is_set, fails=False):
        self.file, self.may_write, self.fails = open(path, "wb", buffering=0), may_write, fails
    def write(self, data):
        while not self.may_write():
            time.sleep(0.001)
        time.sleep(0.02)
        if self.fails:
            raise ZeroDivisionError("of the writer")
        return self.file.write(data[:100_000])
    def flush(self):
        self.file.close()
def interrupt(seconds):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" leaves it ignored
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
value = {"a": torch.arange(LENGTH), "b": "text"}
"""


class Running(Folder):
    whole_end = False

    def run_code(self, code, length=1000., status=0):
        """stdout and stderr of a process that ends with this exit code."""
        code = HEAD.replace("LENGTH", str(length)) + code
        got, out, err = starter.run(code, self.path("v.pt"), whole_end=self.whole_end)
        self.assertEqual(got, status, err)
        return out, err

    def saved(self, code, length=1000.):
        """The process says "False" to job.done(), opens the gate and ends; the file is whole, and alone."""
        self.assertEqual(self.run_code(code + "gate.set()\n", length), ("False\n", ""))
        self.check(length)

    def check(self, length):
        loaded = berth.load(self.path("v.pt"))
        self.assertTrue(torch.equal(loaded["a"], torch.arange(length)))
        self.assertEqual(os.listdir(self.folder), ["v.pt"])


class Ends(Running):
    """Of the interpreter."""

    whole_end = True

    def test_in_the_middle_of_a_large_save(self):
        """200 MB."""
        for snapshot in (True, False):
            self.run_code(f"berth.save_async(value, path, snapshot={snapshot})\n", length=50_000_000.)
            self.check(length=50_000_000.)

    def test_in_the_middle_of_a_save_to_a_slow_object(self):
        """Its write() and its flush() are called after the program's last line."""
        self.saved("print(berth.save_async(value, Held()).done())\n", length=300_000.)

    def test_in_a_process_of_its_own(self):
        """Not of the starter's."""
        code = (HEAD.replace("LENGTH", "300_000.")
                + "print(berth.save_async(value, Held()).done())\ngate.set()\n")
        done = subprocess.run([sys.executable, "-c", code, self.path("v.pt")], capture_output=True,
                              text=True, check=False, timeout=600)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "False\n", ""))
        self.check(length=300_000.)

    def test_by_an_exception_and_by_sys_exit(self):
        self.saved("job = berth.save_async(value, Held())\nprint(job.done())\n"
                   "gate.set()\nsys.exit(0)\n")
        _, log = self.run_code("berth.save_async(value, Held())\ngate.set()\nnone\n", status=1)
        self.assertIn("NameError", log)
        self.check(length=1000.)

    def test_jobs_are_done_before_handlers_of_the_end_run(self):
        self.saved("job = berth.save_async(value, Held())\n"
                   "atexit.register(lambda: print(not job.done()))\n")

    def test_jobs_of_other_threads(self):
        """Of a daemon, too, which the interpreter does not wait for."""
        for daemon in (True, False):
            self.saved("def work():\n"
                       "    print(berth.save_async(value, Held()).done(), flush=True)\n"
                       "    begun.set()\n"
                       f"    time.sleep({1000 * daemon})\n"
                       "begun = threading.Event()\n"
                       f"threading.Thread(target=work, daemon={daemon}).start()\n"
                       "begun.wait()\n")

    def test_jobs_that_begin_at_the_end(self):
        """By then the interpreter has waited for threads, and may make no new ones."""
        self.saved("@atexit.register\n"
                   "def last():\n"
                   "    began = time.monotonic()\n"
                   "    job = berth.save_async(value, Held(lambda: time.monotonic() > began + 0.1))\n"
                   "    print(False)\n")

    def test_callbacks_are_called_before_the_end(self):
        self.saved("job = berth.save_async(value, Held())\n"
                   "job.add_done_callback(lambda job: (time.sleep(1), print(not job.done())))\n")

    def test_a_callback_that_exits(self):
        """Its thread ends, and nobody waits for it."""
        self.saved("job = berth.save_async(value, Held())\n"
                   "job.add_done_callback(lambda job: sys.exit(print(False)))\n")

    def test_a_failure_is_reported_at_the_end(self):
        """Once: of a job that is kept, of one that is dropped, not of one that was asked."""
        for code in ("sys.kept = berth.save_async(value, Held(fails=True))\n",
                     "job = sys.kept = berth.save_async(value, Held(lambda: True, fails=True))\n"
                     "while not job.done():\n"
                     "    time.sleep(0.001)\n",
                     "berth.save_async(value, Held(fails=True))\n"):
            _, log = self.run_code(code + "gate.set()\n")
            self.assertEqual(log.count("nobody asked for its result"), 1, log)
            self.assertEqual(log.count("ZeroDivisionError: of the writer"), 1, log)
        _, log = self.run_code("job = berth.save_async(value, Held(lambda: True, fails=True))\n"
                               "try:\n"
                               "    job.result()\n"
                               "except ZeroDivisionError:\n"
                               "    pass\n")
        self.assertEqual(log, "")

    @unittest.skipIf(ASAN, "gcc 12's address sanitizer keeps locks of its allocator taken in a forked child")
    def test_a_child_ends_without_its_parents_jobs(self):
        """It neither waits for them nor reports them."""
        out, log = self.run_code("ended = berth.save_async(value, Held(lambda: True, fails=True))\n"
                                 "while not ended.done():\n"
                                 "    time.sleep(0.001)\n"
                                 "job = berth.save_async(value, Held(gate.is_set))\n"
                                 "pid = os.fork()\n"
                                 "if pid == 0:\n"
                                 "    sys.exit(0)\n"
                                 "assert os.waitpid(pid, 0)[1] == 0\n"
                                 "print(job.done())\n"
                                 "gate.set()\n")
        self.assertEqual((out, log.count("nobody asked")), ("False\n", 1))
        self.check(length=1000.)

    def test_a_killed_process_leaves_the_old_file(self):
        """And a temporary, which the next save removes."""
        berth.save({"b": "old"}, self.path("v.pt"))
        self.run_code("berth.save_async(value, path)\nos.kill(os.getpid(), signal.SIGKILL)\n",
                      length=50_000_000., status=-signal.SIGKILL)
        self.assertEqual(berth.load(self.path("v.pt"))["b"], "old")
        berth.save({"b": "new"}, self.path("v.pt"))
        self.assertEqual(os.listdir(self.folder), ["v.pt"])


class Interrupts(Running):
    def interrupted(self, wait):
        """^C in a wait raises KeyboardInterrupt in time; the job goes on."""
        self.saved("job = berth.save_async(value, Held(gate.is_set), snapshot=False)\n"
                   "interrupt(0.2)\n"
                   "try:\n"
                   f"    {wait}\n"
                   "except KeyboardInterrupt:\n"
                   "    print(job.done())\n"
                   "    gate.set()\n", length=5_000_000.)

    def test_in_result(self):
        self.interrupted("job.result()")

    def test_in_staged(self):
        self.interrupted("job.staged()")

    def test_in_await(self):
        self.interrupted("import asyncio\n"
                         "    async def main():\n"
                         "        await job\n"
                         "    asyncio.run(main())")

    def test_a_user_who_cancels_then(self):
        out, log = self.run_code("job = berth.save_async(value, Held(gate.is_set))\n"
                                 "interrupt(0.2)\n"
                                 "try:\n"
                                 "    job.result()\n"
                                 "except KeyboardInterrupt:\n"
                                 "    print(job.cancel())\n"
                                 "    gate.set()\n"
                                 "    try:\n"
                                 "        job.result()\n"
                                 "    except berth.CancelledError:\n"
                                 "        print('cancelled')\n")
        self.assertEqual((out, log), ("True\ncancelled\n", ""))

    def test_when_the_thread_starts(self):
        """Before and after: nothing goes on, the path has a whole file, there is no temporary."""
        for event in ("c_call", "c_return"):
            self.assertEqual(self.run_code(
                "import _thread\n"
                "berth.save(value, path)\n"
                "def profile(frame, event, argument):\n"
                f"    if event == {event!r} and argument is _thread.start_new_thread:\n"
                "        sys.setprofile(None)\n"
                "        raise KeyboardInterrupt\n"
                "sys.setprofile(profile)\n"
                "try:\n"
                "    berth.save_async(value, path)\n"
                "except KeyboardInterrupt:\n"
                "    print(os.listdir(os.path.dirname(path)))\n", length=3_000_000.),
                ("['v.pt']\n", ""))
            self.check(length=3_000_000.)

    def test_when_constants_of_torch_are_looked_up(self):
        """By the first save of a process; the next one looks them up again, and misses none."""
        self.assertEqual(self.run_code(
            "known, others = torch.uint1, torch.__getattr__\n"
            "def interrupted(name):\n"
            "    torch.uint1, torch.__getattr__ = known, others\n"
            "    raise KeyboardInterrupt\n"
            "del torch.uint1\n"
            "torch.__getattr__ = interrupted\n"
            "try:\n"
            "    berth.save(1, path)\n"
            "except KeyboardInterrupt:\n"
            "    berth.save([known], path)\n"
            "    print(berth.counters()['save']['values'])\n"), ("1\n", ""))

    def test_anywhere(self):
        """Interrupts at all places: a whole file, no temporary, no hang, nothing left switched."""
        for what in ("berth.save_async(value, path, snapshot=calls % 2 == 0).result()",
                     "berth.save(value, path)",
                     "berth.save(Dict(value), path)",  # PyTorch pickles it
                     "berth.load(path, mmap=calls % 2 == 0)",
                     "berth.load(path, lambda storage, location: storage)",
                     "berth.load(path, weights_only=False)"):
            with self.subTest(what):
                self.interrupt_often(what, 5000 if LONG else 50)

    def interrupt_often(self, what, n):
        out, log = self.run_code(
            "import copyreg, gc, traceback\n"
            "class Dict(dict):\n"
            "    pass\n"
            "def stop(number, frame):\n"
            "    if frame.f_code is copyreg._slotnames.__code__:  # it catches whatever is raised\n"
            "        signal.setitimer(signal.ITIMER_REAL, 0.0001)\n"
            "    else:\n"
            "        stopped.append(traceback.format_stack(frame))\n"
            "        raise KeyboardInterrupt\n"
            "def state():\n"
            "    return (gc.isenabled(), sys.getswitchinterval(), len(os.listdir('/proc/self/fd')),\n"
            "            threading.active_count(), os.listdir(os.path.dirname(path)))\n"
            "def settled():\n"  # while a job's thread walks, the collector is off and the interval short
            "    while berth._job._live:\n"
            "        time.sleep(0.001)\n"
            "    return state()\n"
            "signal.signal(signal.SIGALRM, stop)\n"
            "berth.config.save.durability = 'none'\n"
            "berth.save(value, path)\n"
            "calls, stopped, random = 0, [], torch.Generator().manual_seed(1)\n"
            f"{what}\n"
            "before = settled()\n"
            f"while calls < {n}:\n"
            "    seconds = torch.rand(1, generator=random).item() * 0.004 + 0.0001\n"
            "    try:\n"
            "        signal.setitimer(signal.ITIMER_REAL, seconds)\n"
            "        while not stopped:\n"
            f"            {what}\n"
            "        sys.exit('nobody heard of an interrupt here: ' + ''.join(stopped[0]))\n"
            "    except KeyboardInterrupt:\n"
            "        calls += 1\n"
            "    stopped.clear()\n"
            "    assert berth.load(path, weights_only=False)['b'] == 'text'\n"
            "after = settled()\n"
            "print(after == before or (before, after))\n", length=100_000.)
        self.assertEqual((out, log), ("True\n", ""))
