# SPDX-License-Identifier: BSD-3-Clause
"""Threads, forks, signals, and what a thousand rounds leave behind."""

import gc
import io
import os
import resource
import signal
import sys
import threading
import time
import unittest

import berth
import torch
from berth import _native
from berth._errors import Declined

import starter
from folder import Folder


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Leaks(Folder):
    def rounds(self, n, function):
        """Objects, descriptors and memory after n rounds are those after the first tenth."""
        if "libasan" in os.environ.get("LD_PRELOAD", ""):
            n //= 10
        for _ in range(n // 10):
            function()
        gc.collect()
        objects, descriptors, nbytes = len(gc.get_objects()), len(os.listdir("/proc/self/fd")), resident()
        for _ in range(n):
            function()
        gc.collect()
        self.assertLess(len(gc.get_objects()) - objects, 100)
        self.assertEqual(len(os.listdir("/proc/self/fd")), descriptors)
        if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # which keeps what was freed
            self.assertLess(resident() - nbytes, 8 << 20)

    def setUp(self):
        super().setUp()
        self.addCleanup(berth.config.reset)
        berth.config.save.durability = "none"
        self.text, self.items = "a text of its own" * 2, [1]
        self.value = {"t": [torch.ones(3000) for _ in range(20)], self.text: self.items,
                      "p": torch.nn.Parameter(torch.ones(3)), "z": 1 + 2j, "big": 2**80}

    def counted(self):
        everything = [self.text, self.items, self.value, *self.value["t"]]
        everything += [tensor.untyped_storage() for tensor in self.value["t"]]
        return [sys.getrefcount(each) for each in everything]

    def test_saves(self):
        path, before = self.path("v.pt"), self.counted()
        self.rounds(1000, lambda: berth.save(self.value, path))
        self.assertEqual(self.counted(), before)

    def test_saves_that_fail(self):
        before = self.counted()
        self.value["bad"] = threading.Lock()
        refused = os.path.join(self.folder, "none", "v.pt")

        def fail():
            with self.assertRaises(TypeError):
                berth.save(self.value, self.path("v.pt"))
            with self.assertRaises(berth.Error):
                berth.save(self.items, refused)

        self.rounds(500, fail)
        del self.value["bad"]
        gc.collect()
        self.assertEqual(self.counted(), before)

    def test_loads(self):
        path = self.path("v.pt")
        self.value["q"] = torch.quantize_per_tensor(torch.ones(3), 0.5, 1, torch.qint8)
        self.value["s"] = torch.eye(3).to_sparse()
        self.value["view"] = self.value["t"][0][2:]
        torch.save(self.value, path)
        for mmap in (False, True):
            self.rounds(1000, lambda: berth.load(path, mmap=mmap))
        self.rounds(200, lambda: berth.load(path, lambda storage, location: storage))

    def test_files(self):
        path = self.path("v.pt")
        torch.save(self.value, path)

        def use():
            with berth.open(path) as file:
                file["t.1"], file.numpy("t.2"), file.slice("t.3")[1:5], file.keys()
            berth.verify(path)

        self.rounds(500, use)

    def test_loads_that_fail(self):
        torch.save([torch.nn.Linear(1, 1)], self.path("v.pt"))
        torch.save([torch.ones(3000), "x"], self.path("w.pt"))

        def refuse(storage, location):
            raise ZeroDivisionError

        def fail():
            with self.assertRaises(berth.UnsafeFileError):
                berth.load(self.path("v.pt"))
            with self.assertRaises(ZeroDivisionError):
                berth.load(self.path("w.pt"), refuse)

        self.rounds(500, fail)


class Written:
    """A file object; each write() appends what a function says to a list."""

    def __init__(self, said, function):
        self.said, self.function = said, function

    def write(self, data):
        self.said.append(self.function())
        return len(data)


class Threads(Folder):
    def test_eight_threads(self):
        berth.config.save.durability = "none"
        self.addCleanup(berth.config.reset)
        value = {"a": [torch.full((1000,), float(i)) for i in range(50)], "b": list(range(100))}
        failures = []

        def work(number):
            path = self.path(f"{number}.pt")
            try:
                for i in range(30):
                    berth.save(value, path)
                    loaded = berth.load(path, mmap=i % 2 == 1)
                    assert all(map(torch.equal, loaded["a"], value["a"])) and loaded["b"] == value["b"]
                    with berth.open(path) as file:
                        assert file.slice("a.7")[3:5].tolist() == [7, 7]
            except BaseException as error:
                failures.append(repr(error))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def ticks_during(self, work):
        """How often another thread runs meanwhile. work(ticks): may look at them."""
        ticks, stop = [], threading.Event()

        def tick():
            while not stop.wait(0.001):
                ticks.append(1)

        thread = threading.Thread(target=tick)
        thread.start()
        try:
            work(ticks)
            return len(ticks)
        finally:
            stop.set()
            thread.join()

    def test_others_run_while_bytes_are_written_and_read(self):
        value, path = torch.ones(1 << 26), self.path("v.pt")
        self.assertGreater(self.ticks_during(lambda _: berth.save(value, path)), 3)
        self.assertGreater(self.ticks_during(lambda _: berth.load(path)), 3)

    def test_others_run_while_values_are_walked(self):
        """Between the first and the last value: ints need no table that grows without the GIL."""
        marks, interval = [], sys.getswitchinterval()
        self.assertGreater(interval, 0.001)  # saves before this test have restored it
        ints = [1] * 2_000_000

        def save(ticks):
            class Shown(type):  # the walk ends here, and names the type
                def __repr__(cls):
                    marks.append(len(ticks))
                    return "shown"

            class Last(metaclass=Shown):
                pass

            marks.append(len(ticks))
            with self.assertRaises(Declined):
                _native.save_begin([ints, Last()], os.fsencode(self.path("v.pt")), None, False)

        def load(ticks):
            def mark(storage, _location):
                marks.append(len(ticks))
                return storage

            berth.load(self.path("v.pt"), mark)

        berth.save([torch.ones(1), ints, torch.ones(2)], self.path("v.pt"))
        for work in (save, load):
            marks.clear()
            self.ticks_during(work)
            self.assertGreater(marks[-1] - marks[0], 5, work.__name__)
            self.assertEqual(sys.getswitchinterval(), interval)

    def test_the_interval_of_the_program_stays(self):
        """Any that sys.getswitchinterval() rounds; a shorter one, and one that is set meanwhile, too."""
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        for seconds in (0.05, 0.0021, 0.0002, 0.00001):
            sys.setswitchinterval(seconds)
            told, during = sys.getswitchinterval(), []
            berth.save([1], Written(during, sys.getswitchinterval))
            self.assertEqual(sys.getswitchinterval(), told)
            self.assertLess(max(during), 0.0003)
        sys.setswitchinterval(0.05)
        berth.save([1], Written([], lambda: sys.setswitchinterval(0.03)))
        self.assertAlmostEqual(sys.getswitchinterval(), 0.03)

    def test_the_collector_of_the_program_stays(self):
        """It is off during a walk."""
        self.addCleanup(gc.enable)
        for change, is_on in ((gc.disable, False), (gc.enable, True)):
            change()
            berth.save([1], self.path("v.pt"))
            berth.load(self.path("v.pt"))
            self.assertEqual(gc.isenabled(), is_on)

    def test_a_fork_while_another_thread_walks(self):
        values = [[i] for i in range(100_000)]

        def walk():
            with self.assertRaises(Declined):
                _native.save_begin([values, object()], os.fsencode(self.path("v.pt")), None, False)

        in_walks, _ = self.fork_beside(walk)
        self.assertGreater(in_walks, 5)

    def test_a_fork_while_another_thread_waits_for_its_save(self):
        """Its wait takes the GIL in turns, which are short for a while."""
        class Slow:
            def write(self, data):
                time.sleep(0.002)
                return len(data)

        value = torch.ones(1 << 20)
        _, in_hurries = self.fork_beside(lambda: berth.save(value, Slow()))
        self.assertGreater(in_hurries, 5)

    def fork_beside(self, work):
        """Forks 40 times; each child collects garbage, and has the interval of before.

        Returns: how often the collector was off, and the interval short, at the fork."""
        stop = threading.Event()

        def repeat():
            while not stop.is_set():
                work()

        expected, in_walks, in_hurries, codes = sys.getswitchinterval(), 0, 0, []
        thread = threading.Thread(target=repeat)
        thread.start()
        try:
            for _ in range(40):
                time.sleep(0.005)
                in_walks += not gc.isenabled()
                in_hurries += sys.getswitchinterval() != expected
                pid = os.fork()
                if pid == 0:
                    os._exit(0 if gc.isenabled() and sys.getswitchinterval() == expected else 1)
                codes.append(os.waitpid(pid, 0)[1])
        finally:
            stop.set()
            thread.join()
        self.assertEqual(codes, [0] * 40)
        self.assertEqual((gc.isenabled(), sys.getswitchinterval()), (True, expected))
        return in_walks, in_hurries

    def test_a_dict_that_changes_meanwhile(self):
        """The file is not written; or the change came before or after the walk."""
        path, value, stop = self.path("v.pt"), {i: [str(i)] for i in range(50_000)}, threading.Event()

        def change():
            while not stop.wait(0.001):
                value[-1] = []
                stop.wait(0.001)
                del value[-1]

        thread = threading.Thread(target=change)
        thread.start()
        refused = 0
        try:
            for _ in range(10):
                try:
                    berth.save(value, path)
                    self.assertIn(len(berth.load(path)), (50_000, 50_001))
                except RuntimeError as error:
                    self.assertRegex(str(error), "changed size")
                    refused += 1
        finally:
            stop.set()
            thread.join()
        self.assertGreater(refused, 0)

    def test_a_mapped_tensor_dies_on_another_thread(self):
        torch.save([torch.ones(5000)], self.path("v.pt"))
        values = [berth.load(self.path("v.pt"), mmap=True) for _ in range(50)]
        thread = threading.Thread(target=values.clear)
        thread.start()
        thread.join()


class Processes(Folder):
    def test_a_fork_uses_everything(self):
        value, path = {"a": torch.arange(3000.), "b": "x"}, self.path("v.pt")
        berth.save(value, path)
        mapped, file = berth.load(path, mmap=True), berth.open(path)
        child = os.fork()
        if child == 0:
            good = (torch.equal(mapped["a"], value["a"]) and torch.equal(file["a"], value["a"])
                    and torch.equal(berth.load(path)["a"], value["a"]))
            berth.save(mapped, self.path("child.pt"))
            signal.alarm(60)
            berth.save(value, io.BytesIO())  # by a thread that needs the GIL
            del mapped, file
            os._exit(0 if good else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(berth.load(self.path("child.pt"))["b"], "x")
        file.close()

    def test_workers_of_a_data_loader(self):
        torch.save([torch.full((100,), float(i)) for i in range(8)], self.path("v.pt"))
        path = self.path("v.pt")

        class Rows(torch.utils.data.Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, i):
                return berth.load(path, mmap=True)[i]

        loader = torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=2,
                                             multiprocessing_context="fork")
        self.assertEqual([batch[:, 0].tolist() for batch in loader],
                         [[0, 1], [2, 3], [4, 5], [6, 7]])

    def interrupted(self, code):
        """Runs code with SIGINT after 0.3 s of `work`; it must say KeyboardInterrupt."""
        code = ("import os, signal, sys, threading, time, berth, torch\n"
                "path = sys.argv[1]\n"
                "def interrupt(seconds=0.3):\n"
                "    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it\n"
                "    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()\n" + code)
        status, out, err = starter.run(code, self.path("v.pt"))
        self.assertEqual((status, out), (0, "interrupted\n"), err)

    def test_an_interrupt_cancels_a_save(self):
        """A sink that never ends: only the signal ends it. The path has its old file."""
        self.interrupted(
            "class Slow:\n"
            "    def write(self, data):\n"
            "        time.sleep(0.05)\n"
            "        return min(len(data), 1000)\n"
            "value = torch.ones(1 << 20)\n"
            "interrupt()\n"
            "began = time.monotonic()\n"
            "try:\n"
            "    berth.save(value, Slow())\n"
            "except KeyboardInterrupt:\n"
            "    assert time.monotonic() - began < 60\n"
            "    print('interrupted')\n")

    def test_an_interrupt_keeps_the_old_file(self):
        self.interrupted(
            "berth.save('old', path)\n"
            "value = [torch.ones(1 << 18) for _ in range(400)]\n"
            "interrupt(0.1)\n"
            "try:\n"
            "    while True:\n"
            "        berth.save(value, path)\n"
            "except KeyboardInterrupt:\n"
            "    got = berth.load(path)\n"
            "    assert got == 'old' or len(got) == 400\n"
            "    assert os.listdir(os.path.dirname(path)) == ['v.pt'], os.listdir(os.path.dirname(path))\n"
            "    print('interrupted')\n")

    def test_an_interrupt_ends_a_load(self):
        self.interrupted(
            "berth.save([torch.ones(1 << 18) for _ in range(200)], path)\n"
            "interrupt(0.1)\n"
            "try:\n"
            "    while True:\n"
            "        berth.load(path)\n"
            "except KeyboardInterrupt:\n"
            "    print('interrupted')\n")

    def test_the_end_of_the_interpreter(self):
        code = ("import sys, io, berth, torch\n"
                "path = sys.argv[1]\n"
                "berth.save([torch.ones(3000)] , path)\n"
                "kept = [berth.load(path, mmap=True), berth.open(path)['0'],\n"
                "        berth.open(io.BytesIO(open(path, 'rb').read()))['0'], berth.open(path)]\n"
                "sys.kept = kept\n")
        status, _, err = starter.run(code, self.path("v.pt"), whole_end=True)
        self.assertEqual((status, err), (0, ""))

    @unittest.skipUnless(hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), "this PyTorch is older")
    def test_values_without_the_table_of_dlpack(self):
        status, out, _ = starter.run("import tests; tests.main()", "--old-dlpack", "saves.Bytes", "loads.Values",
                                     "Leaks.test_loads")
        self.assertEqual(status, 0, out[-2000:])

    def test_signals_of_others_do_not_disturb(self):
        calls = []
        old = signal.signal(signal.SIGALRM, lambda *_: calls.append(1))
        self.addCleanup(signal.signal, signal.SIGALRM, old)
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        try:
            for _ in range(20):
                berth.save(torch.ones(1 << 18), self.path("v.pt"))
                berth.load(self.path("v.pt"))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.assertTrue(calls)
