# SPDX-License-Identifier: BSD-3-Clause
"""Saves and loads beside training, in workers, on full disks, without memory, and what they leave."""

import copy
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

import berth
import torch
from berth import _job
from pickles import PROTO, archive
from torch import nn

import jobs
import processes
import starter
from differential import MOST_MEMORY, UNDER_ASAN
from folder import Folder
from same import same

LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")
HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS = jobs.SECONDS


class Training:
    """A small model that learns; every run takes the same way."""

    def __init__(self):
        random = torch.Generator().manual_seed(1)
        self.inputs = torch.rand(32, 64, generator=random)
        self.model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1))
        for parameter in self.model.parameters():
            parameter.data = torch.rand(parameter.shape, generator=random) / 10
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self):
        self.optimizer.zero_grad()
        (self.model(self.inputs) - 1).square().mean().backward()
        self.optimizer.step()

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


class BesideTraining(Folder):
    def setUp(self):
        super().setUp()
        self.addCleanup(jobs.no_jobs)
        self.addCleanup(berth.config.reset)
        berth.config.save.durability = "none"

    def test_saves_and_loads_in_eight_threads(self):
        """1,000 of them, or 80; the trained model is that of a training alone."""
        rounds, failures = (125 if LONG else 10), []

        def work(number):
            try:
                for i in range(rounds):
                    self.one_round(self.path(f"{number}.pt"), number * 1000 + i)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        training, saved, n_steps = Training(), [], 0
        for thread in threads:
            thread.start()
        while n_steps < 50 or any(thread.is_alive() for thread in threads):
            training.step()
            n_steps += 1
            if n_steps % 10 == 0:
                saved.append(self.begin(training, len(saved) % 5, n_steps))
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.check(training, saved, n_steps)

    def one_round(self, path, number):
        value = {"a": torch.full((20_000,), float(number)), "b": [number, "text"]}
        if number % 2:
            berth.save(value, path)
        else:
            job = berth.save_async(value, path)
            value["a"].zero_()
            job.result(SECONDS)
        loaded = berth.load(path, mmap=number % 3 == 0)
        assert loaded["b"] == [number, "text"] and (loaded["a"] == number).all(), number

    def begin(self, training, slot, n_steps):
        return berth.save_async(training.state(), self.path(f"model{slot}.pt")), slot, n_steps

    def check(self, training, saved, n_steps):
        alone, states = Training(), {}
        for i in range(n_steps):
            alone.step()
            states[i + 1] = copy.deepcopy(alone.state()) if i + 1 > n_steps - 60 else None
        same(training.state(), alone.state())
        for job, _, _ in saved:
            job.result(SECONDS)
        slot, at = saved[-1][1:]
        same(berth.load(self.path(f"model{slot}.pt")), states[at], resizable=False)


class Rows(torch.utils.data.Dataset):
    """Rows by every way to read a file; what can be opened in the parent is."""

    def __init__(self, path):
        self.path, self.file, self.mapped = path, berth.open(path), berth.load(path, mmap=True)
        self.rows = self.file.slice("rows")

    def __len__(self):
        return 16

    def __getitem__(self, i):
        return torch.stack([
            berth.load(self.path)["rows"][i], berth.load(self.path, mmap=True)["rows"][i],
            self.mapped["rows"][i], self.file["rows"][i], self.rows[i].reshape(-1),
            torch.tensor(self.file.numpy("rows")[i])])


@unittest.skipIf("libasan" in os.environ.get("LD_PRELOAD", ""),
                 "gcc 12's address sanitizer keeps locks of its allocator taken in a forked child")
class Workers(jobs.Case):
    def test_of_a_data_loader(self):
        """They are forked while a job of the parent goes on and while other threads save."""
        rows = torch.arange(16_000.).reshape(16, 1000)
        torch.save({"rows": rows}, self.path("rows.pt"))
        gate, job = self.gated()
        stop = threading.Event()
        thread = threading.Thread(target=self.save_until, args=(stop,))
        thread.start()
        try:
            for _ in range(5 if LONG else 1):
                data = torch.utils.data.DataLoader(
                    Rows(self.path("rows.pt")), batch_size=4, num_workers=3, timeout=SECONDS,
                    multiprocessing_context="fork")
                batches = list(data)
                for way in range(6):
                    self.assertTrue(torch.equal(torch.cat(batches)[:, way], rows), way)
        finally:
            stop.set()
            thread.join()
        gate.open()
        self.assertIsNone(job.result(SECONDS))

    def save_until(self, stop):
        while not stop.is_set():
            berth.save_async(self.value, self.path("beside.pt")).result(SECONDS)


class FullDisk(jobs.Case):
    """The old file or the new one, nothing left behind, and no thread."""

    def mounted(self, *arguments):
        folder = tempfile.mkdtemp(prefix="berth-full-")
        self.addCleanup(shutil.rmtree, folder)
        done = subprocess.run(["mount", *arguments, folder], capture_output=True, check=False)
        if done.returncode:
            self.skipTest("no file system can be mounted: " + done.stderr.decode())
        self.addCleanup(subprocess.run, ["umount", folder], check=True)
        return folder

    def check_saves(self, folder):
        path = os.path.join(folder, "v.pt")
        large = [torch.ones(1 << 20) for _ in range(4)]
        berth.save("old", path)
        for save in (berth.save, self.save_async, lambda *both: self.save_async(*both, snapshot=False)):
            with self.assertRaises(OSError) as caught:
                save(large, path)
            self.assertEqual(caught.exception.errno, errno.ENOSPC)
            self.assertEqual((berth.load(path), os.listdir(folder)), ("old", ["v.pt"]))
            jobs.no_jobs()
            self.assertEqual(_job._live, set())
        os.mkdir(os.path.join(folder, "x"))
        for save in (berth.save, self.save_async):
            save("new", path)
            self.assertEqual(berth.load(path), "new")
        self.check_file_objects(os.path.join(folder, "x", "v.pt"), large)

    def save_async(self, value, path, snapshot=True):
        berth.save_async(value, path, snapshot=snapshot).result(SECONDS)

    def check_file_objects(self, path, large):
        for save in (berth.save, self.save_async):
            with open(path, "wb", buffering=0) as file:
                with self.assertRaises(OSError) as caught:
                    save(large, file)
                self.assertEqual(caught.exception.errno, errno.ENOSPC)
                self.assertEqual(file.tell(), os.path.getsize(path))  # what was written stays
                file.seek(0)
                file.truncate()
                save("small", file)
            self.assertEqual(berth.load(path), "small")
            with open(path, "wb", buffering=0) as file, self.assertRaises(OSError) as caught:
                save(large, Through(file))
            self.assertEqual(caught.exception.errno, errno.ENOSPC)

    def test_in_memory(self):
        self.check_saves(self.mounted("-t", "tmpfs", "-o", "size=2m", "tmpfs"))

    def test_that_cannot_reserve_space(self):
        """ext2: a save finds out when it writes, unless it asks before."""
        image = self.write("image", b"")
        os.truncate(image, 4 << 20)
        done = subprocess.run(["mkfs.ext2", "-q", "-F", image], capture_output=True, check=False)
        if done.returncode:
            self.skipTest("there is no mkfs.ext2")
        folder = self.mounted("-o", "loop", image)
        os.rmdir(os.path.join(folder, "lost+found"))
        self.check_saves(folder)

    def test_that_others_fill_meanwhile(self):
        folder = self.mounted("-t", "tmpfs", "-o", "size=4m", "tmpfs")
        with open(os.path.join(folder, "v.pt"), "wb", buffering=0) as file:
            gate = Through(file, waits=True)
            self.addCleanup(gate.open)
            job = berth.save_async(torch.ones(1 << 18), gate)
            with open(os.path.join(folder, "other"), "wb", buffering=0) as other:
                with self.assertRaises(OSError):
                    while True:
                        other.write(bytes(4096))
            gate.open()
            with self.assertRaises(OSError) as caught:
                job.result(SECONDS)
            self.assertEqual(caught.exception.errno, errno.ENOSPC)


class Through(jobs.Gate):
    """An object that passes on what it gets, as a compressing file would."""

    def __init__(self, file, waits=False):
        super().__init__()
        self.data = file
        if not waits:
            self.open()


class LeaksOfJobs(processes.Leaks):
    """The rounds of Leaks, with jobs: of 20 tensors, a text, a list, a Parameter."""

    test_saves = test_saves_that_fail = test_loads = test_files = test_loads_that_fail = None

    def few_rounds(self, function):
        before = self.counted()
        self.rounds(1000 if LONG else 100, function)
        jobs.no_jobs()
        self.assertEqual(self.counted(), before)

    def test_jobs(self):
        path = self.path("v.pt")
        for snapshot in (True, False):
            self.few_rounds(lambda: berth.save_async(self.value, path, snapshot=snapshot).result())

    def test_jobs_that_are_dropped_or_cancelled(self):
        path = self.path("v.pt")

        def use():
            berth.save_async(self.value, path)
            berth.save_async(self.value, path, snapshot=False).cancel()
            jobs.no_jobs()

        self.few_rounds(use)

    def test_jobs_that_fail(self):
        gate = jobs.Gate(ZeroDivisionError("of the writer"))
        gate.open()

        def fail():
            for error in (ZeroDivisionError, ZeroDivisionError):
                with self.assertRaises(error):
                    berth.save_async(self.value, gate).result()
            gate.error.__traceback__ = None  # it would grow with each round
            with self.assertRaises(TypeError):
                berth.save_async([self.value, threading.Lock()], self.path("v.pt"))
            with self.assertRaises(berth.Error):
                berth.save_async(self.value, os.path.join(self.folder, "none", "v.pt"))

        self.few_rounds(fail)


# The peak of a load: of which package, of which file.
PEAK = """
import berth, sys, torch
from watch import Watch
with Watch() as watch:
    {"berth": berth, "torch": torch}[sys.argv[1]].load(sys.argv[2])
print(watch.nbytes)
"""


class Memory(Folder):
    def script(self, name):
        with open(os.path.join(HERE, name), encoding="utf-8") as file:
            return file.read()

    def says_ok(self, name):
        status, out, err = starter.run(self.script(name), self.path(""))
        self.assertEqual((status, out.split("\n")[-2:]), (0, ["ok", ""]), out + err)

    def peak(self, package, path):
        status, out, err = starter.run(PEAK, package, path)
        self.assertEqual(status, 0, err)
        return int(out)

    @unittest.skipIf(UNDER_ASAN, "it keeps what is freed")
    def test_of_empty_values(self):
        """A byte of the file makes each: what is needed beside the values themselves (P3)."""
        for opcode in (b"]", b"}", b"\x8f"):
            data = archive(PROTO + b"](" + opcode * 500_000 + b"e.")
            path = self.write("v.pt", data)
            with self.subTest(opcode):
                theirs = self.peak("torch", path)
                self.assertGreater(theirs, 50 * len(data))
                self.assertLess(self.peak("berth", path) - theirs, MOST_MEMORY * len(data))

    def test_each_allocation_fails(self):
        try:
            import _testcapi  # noqa: F401
        except ImportError:
            self.skipTest("this Python has no module _testcapi")
        self.says_ok("no_memory.py")

    def test_references(self):
        self.says_ok("references.py")

    @unittest.skipUnless(LONG, "a debug build of CPython takes a minute: BERTH_LONG=1")
    def test_references_of_a_debug_build(self):
        """BERTH_DEBUG_PYTHON, or python3.11-dbg of Debian."""
        python = os.environ.get("BERTH_DEBUG_PYTHON") or shutil.which(
            f"python{sys.version_info[0]}.{sys.version_info[1]}-dbg")
        if not python:
            self.skipTest("there is no debug build of this CPython")
        packages = os.path.dirname(os.path.dirname(torch.__file__))
        environment = dict(os.environ, PYTHONPATH=os.environ["PYTHONPATH"] + ":" + packages)
        done = subprocess.run([python, os.path.join(HERE, "references.py"), self.folder], check=False,
                              env=environment, capture_output=True, text=True, timeout=1800)
        self.assertEqual((done.returncode, done.stdout.split("\n")[-2:]), (0, ["ok", ""]),
                         done.stdout + done.stderr)
