# SPDX-License-Identifier: BSD-3-Clause
"""berth.save_async: what a job promises, on every path that it can take."""

import asyncio
import concurrent.futures
import errno
import gc
import io
import os
import threading
import time
import weakref

import berth
import torch
from berth import _job
from saves import WRITES_ALL

from folder import Folder

SECONDS = 60  # no wait of a test takes longer
LARGE = 5_000_000  # floats: more than a save holds in its buffers


class Gate:
    """A file object whose write() waits until open() is called, and then may fail."""

    def __init__(self, error=None):
        self.data, self.error, self.flushed = io.BytesIO(), error, 0
        self.is_open, self.entered = threading.Event(), threading.Event()

    def write(self, data):
        self.entered.set()
        self.is_open.wait(SECONDS)
        if self.error:
            raise self.error
        return self.data.write(data)

    def flush(self):
        self.flushed += 1

    def open(self):
        self.is_open.set()


def no_jobs():
    """Waits until the threads of all jobs have ended."""
    end = time.monotonic() + SECONDS
    while _job._live and time.monotonic() < end:
        time.sleep(0.001)


def reported(caught):
    """Waits for a line of the log: a thread lets go of its job behind its end."""
    end = time.monotonic() + SECONDS
    while not caught.output and time.monotonic() < end:
        time.sleep(0.001)


class Case(Folder):
    def setUp(self):
        super().setUp()
        self.addCleanup(no_jobs)
        self.value = self.value_of(100_000)

    def value_of(self, n):
        return {"a": torch.arange(float(n)), "b": [1, "two"]}

    def expected(self, name="archive"):
        save = torch.save if WRITES_ALL else berth.save
        save(self.value, self.path(f"torch/{name}.pt"))
        return self.read(self.path(f"torch/{name}.pt"))

    def gated(self, snapshot=True, error=None):
        gate = Gate(error)
        self.addCleanup(gate.open)
        return gate, berth.save_async(self.value, gate, snapshot=snapshot)


class Jobs(Case):
    def test_the_bytes_are_those_of_torch(self):
        for snapshot in (True, False):
            job = berth.save_async(self.value, self.path("v.pt"), snapshot=snapshot)
            self.assertIsNone(job.result(SECONDS))
            self.assertTrue(job.done() and job.staged(0))
            self.assertEqual(self.read(self.path("v.pt")), self.expected("v"))

    def test_tensors_may_change(self):
        """With a snapshot at once; without one when it is staged."""
        for snapshot in (True, False):
            self.value = self.value_of(LARGE)
            job = berth.save_async(self.value, self.path("v.pt"), snapshot=snapshot)
            if not snapshot:
                self.assertTrue(job.staged(SECONDS))
            self.value["a"].zero_()
            self.value["b"].append("later")
            job.result(SECONDS)
            loaded = berth.load(self.path("v.pt"))
            self.assertTrue(torch.equal(loaded["a"], torch.arange(float(LARGE))), snapshot)
            self.assertEqual(loaded["b"], [1, "two"])

    def test_events(self):
        self.value = self.value_of(LARGE)
        for snapshot in (True, False):
            gate, job = self.gated(snapshot)
            self.assertTrue(gate.entered.wait(SECONDS))
            self.assertEqual([job.staged(0), job.staged(0.01)], [snapshot] * 2)
            self.assertFalse(job.done())
            for late in (0, 0.01):
                with self.assertRaises(TimeoutError):
                    job.result(late)
            done_nbytes, total_nbytes = job.progress
            self.assertLess(done_nbytes, total_nbytes)
            self.assertIn(f"of {total_nbytes} bytes", repr(job))
            gate.open()
            self.assertTrue(job.staged())
            self.assertIsNone(job.result())
            self.assertEqual(gate.data.getvalue(), self.expected())
            self.assertEqual(job.progress, (total_nbytes, total_nbytes))
            self.assertEqual((total_nbytes, gate.flushed), (len(gate.data.getvalue()), 1))
            self.assertIn("done", repr(job))

    def test_a_cancelled_job(self):
        for snapshot in (True, False):
            gate, job = self.gated(snapshot)
            self.assertTrue(gate.entered.wait(SECONDS))
            self.assertEqual([job.cancel(), job.cancel()], [True, True])
            self.assertFalse(job.done())
            gate.open()
            for _ in range(2):
                with self.assertRaises(berth.CancelledError) as caught:
                    job.result(SECONDS)
            self.assertIsInstance(caught.exception, (berth.Error, concurrent.futures.CancelledError))
            self.assertEqual(caught.exception.status, "BERTH_E_CANCELLED")
            self.assertEqual(gate.flushed, 0)
        job = berth.save_async(self.value, self.path("v.pt"))
        job.result(SECONDS)
        self.assertFalse(job.cancel())

    def test_a_cancelled_job_keeps_the_old_file(self):
        """Or it was too late; cancel() knows."""
        path, value = self.path("v.pt"), torch.ones(1 << 23)
        for snapshot in (True, False) * 3:
            berth.save("old", path)
            job = berth.save_async(value, path, snapshot=snapshot)
            if job.cancel():
                with self.assertRaises(berth.CancelledError):
                    job.result(SECONDS)
                self.assertEqual(berth.load(path), "old")
            else:
                job.result(SECONDS)
                self.assertTrue(torch.equal(berth.load(path), value))
            self.assertEqual(os.listdir(self.folder), ["v.pt"])

    def test_what_fails_before_it_begins(self):
        before = berth.counters()
        with self.assertRaisesRegex(TypeError, "cannot pickle"):
            berth.save_async([1, threading.Lock()], self.path("v.pt"))
        with self.assertRaises(berth.Error):
            berth.save_async(self.value, os.path.join(self.folder, "none", "v.pt"))
        with self.assertRaises(AttributeError):
            berth.save_async(self.value, 5)
        with berth.config.patch("io.memory_nbytes=64KiB"), self.assertRaises(MemoryError):
            berth.save_async(torch.ones(1 << 20), self.path("v.pt"))
        after = berth.counters()
        self.assertEqual(_job._live, set())
        self.assertEqual(os.listdir(self.folder), [])
        self.assertEqual(after["save"], before["save"])

    def test_what_fails_later(self):
        self.value, error = self.value_of(LARGE), ZeroDivisionError("of the writer")
        gate, job = self.gated(snapshot=False, error=error)
        gate.open()
        for ask in (job.staged, job.result, job.result, lambda: job.result(0)):
            with self.assertRaises(ZeroDivisionError) as caught:
                ask()
            self.assertIs(caught.exception, error)
        self.assertTrue(job.done() and job.cancel())  # there is no new file
        gate, job = self.gated(snapshot=True, error=error)
        self.assertTrue(job.staged(0))  # it was, and its copies are its own
        gate.open()
        with self.assertRaises(ZeroDivisionError):
            job.result(SECONDS)

    def test_a_flush_that_fails(self):
        gate, job = self.gated()
        gate.flush = lambda: 1 / 0
        gate.open()
        with self.assertRaises(ZeroDivisionError):
            job.result(SECONDS)

    def test_saves_are_counted_when_they_end(self):
        before = berth.counters()["save"]["values"]
        gate, job = self.gated()
        self.assertEqual(berth.counters()["save"]["values"], before)
        gate.open()
        job.result(SECONDS)
        self.assertEqual(berth.counters()["save"]["values"], before + 1)

    def test_options_are_those_of_the_thread_that_began(self):
        with berth.config.patch("save.storage_alignment=4096"):
            job = berth.save_async(self.value, self.path("v.pt"))
        job.result(SECONDS)
        with berth.open(self.path("v.pt")) as file:
            self.assertEqual(file.info["storage_alignment"], 4096)

    def test_several_at_once_on_one_path(self):
        values = [torch.full((300_000,), float(i)) for i in range(6)]
        jobs = [berth.save_async(value, self.path("v.pt")) for value in values]
        for job in jobs:
            job.result(SECONDS)
        loaded = berth.load(self.path("v.pt"))
        self.assertTrue(any(torch.equal(loaded, value) for value in values))
        self.assertEqual(os.listdir(self.folder), ["v.pt"])


class Callbacks(Case):
    def test_they_are_called_once_with_the_job(self):
        for error in (None, ZeroDivisionError()):
            gate, job = self.gated(error=error)
            calls, called = [], threading.Event()
            job.add_done_callback(lambda *got: calls.append((got, threading.get_ident())))
            job.add_done_callback(lambda _: called.set())
            self.assertEqual(calls, [])
            gate.open()
            self.assertTrue(called.wait(SECONDS))
            job.add_done_callback(lambda *got: calls.append((got, threading.get_ident())))
            self.assertEqual([got for got, _ in calls], [(job,), (job,)])
            here = threading.get_ident()
            self.assertEqual([thread == here for _, thread in calls], [False, True])
            self.assertIsInstance(self.outcome(job), type(error))

    def outcome(self, job):
        try:
            return job.result(SECONDS)
        except ZeroDivisionError as error:
            return error

    def test_one_that_fails_is_logged_and_the_others_are_called(self):
        gate, job = self.gated()
        called = threading.Event()
        job.add_done_callback(lambda _: 1 / 0)
        job.add_done_callback(lambda _: called.set())
        with self.assertLogs("berth") as caught:
            gate.open()
            self.assertTrue(called.wait(SECONDS))
        self.assertIn("ZeroDivisionError", caught.output[0])
        self.assertIsNone(job.result(SECONDS))


class Asyncio(Case):
    def test_a_job_is_awaited(self):
        async def main():
            gate, job = self.gated()
            asyncio.get_running_loop().call_later(0.01, gate.open)
            return await job, await job, await asyncio.gather(job, job)

        self.assertEqual(asyncio.run(main()), (None, None, [None, None]))

    def test_the_loop_runs_meanwhile(self):
        async def main():
            gate, job = self.gated()
            waiter, turns = asyncio.ensure_future(job), 0
            while not waiter.done():
                turns += 1
                if turns == 100:
                    gate.open()
                await asyncio.sleep(0.0001)
            return turns

        self.assertGreaterEqual(asyncio.run(main()), 100)

    def test_a_failure_is_raised(self):
        async def main():
            gate, job = self.gated(error=ZeroDivisionError("of the writer"))
            gate.open()
            for _ in range(2):
                with self.assertRaisesRegex(ZeroDivisionError, "of the writer"):
                    await job

        asyncio.run(main())

    def test_a_wait_that_is_cancelled_leaves_the_job_alone(self):
        gates = []

        async def main():
            gate, job = self.gated()
            gates.append(gate)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(job, 0.01)
            other, ended = self.gated()
            asyncio.get_running_loop().set_exception_handler(lambda _, what: said.append(what))
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(ended, 0.01)
            other.open()
            await ended  # behind what wakes the one before
            return job

        said = []
        job = asyncio.run(main())
        self.assertEqual((job.done(), said), (False, []))
        gates[0].open()  # the loop is closed
        self.assertIsNone(job.result(SECONDS))
        self.assertEqual(gates[0].data.getvalue(), self.expected())


class Reports(Case):
    """A failure is reported once if nobody asks."""

    def failed(self, error=None):
        gate, job = self.gated(error=error or ZeroDivisionError("of the writer"))
        gate.open()
        no_jobs()
        return job

    def test_of_a_job_that_is_dropped(self):
        gc.disable()
        self.addCleanup(gc.enable)
        with self.assertLogs("berth") as caught:
            gate, job = self.gated(error=ZeroDivisionError("of the writer"))
            job.add_done_callback(lambda _: None)
            gate.open()
            no_jobs()
            self.assertEqual(caught.output, [])
            del job
            reported(caught)
            self.assertEqual(len(caught.output), 1)
        self.assertRegex(caught.output[0], "(?s)save to an object of <class 'jobs.Gate'> failed.*"
                                           "nobody asked.*ZeroDivisionError: of the writer")

    def test_of_a_job_that_is_dropped_before_it_fails(self):
        with self.assertLogs("berth") as caught:
            gate, job = self.gated(error=ZeroDivisionError())
            del job
            gc.collect()
            gate.open()
            reported(caught)
        self.assertEqual(len(caught.output), 1)

    def test_of_no_other(self):
        with self.assertNoLogs("berth"):
            with self.assertRaises(ZeroDivisionError):
                self.failed().result()
            with self.assertRaises(ZeroDivisionError):
                asyncio.run(self.awaited(self.failed()))
            gate, job = self.gated()
            job.cancel()
            gate.open()
            no_jobs()
            del job
            gate, job = self.gated()
            gate.open()
            no_jobs()
            del job
            gc.collect()

    async def awaited(self, job):
        await job

    def test_a_late_question_is_none(self):
        with self.assertLogs("berth"):
            gate, job = self.gated(error=ZeroDivisionError())
            with self.assertRaises(TimeoutError):
                job.result(0.01)
            gate.open()
            no_jobs()
            del job
            gc.collect()


class References(Case):
    def test_a_dropped_job_goes_on(self):
        gate, job = self.gated()
        gone = weakref.ref(job)
        del job
        self.assertIsNone(gone())
        gate.open()
        no_jobs()
        self.assertEqual(gate.data.getvalue(), self.expected())

    def test_tensors_are_held_until_the_job_is_staged(self):
        """With a snapshot not at all; without one to the last byte, not until the job is dropped."""
        gc.disable()
        self.addCleanup(gc.enable)
        for snapshot in (True, False):
            self.value = self.value_of(LARGE)
            gate, job = self.gated(snapshot)
            expected, gone = self.expected(), weakref.ref(self.value["a"])
            self.value = None
            self.assertTrue(gate.entered.wait(SECONDS))
            self.assertEqual(gone() is None, snapshot)
            gate.open()
            job.result(SECONDS)
            self.assertIsNone(gone())
            self.assertEqual(gate.data.getvalue(), expected)

    def test_tensors_are_not_held_longer_if_nobody_asks(self):
        """A small value is copied into buffers before it is written: the job is staged."""
        gone = weakref.ref(self.value["a"])
        gate, job = self.gated(snapshot=False)
        self.value, end = None, time.monotonic() + SECONDS
        while gone() is not None and time.monotonic() < end:
            time.sleep(0.001)
        self.assertIsNone(gone())
        self.assertFalse(job.done())

    def test_a_file_is_not_held_by_its_error(self):
        gc.disable()
        self.addCleanup(gc.enable)
        file = io.FileIO(self.write("v.pt", b""), "r")
        gone, job = weakref.ref(file), berth.save_async(self.value, file)
        try:  # assertRaises would clear the frames of the traceback
            job.result(SECONDS)
        except berth.FileError as error:
            caught = error
        no_jobs()
        file.close()
        del file
        self.assertIsNone(gone())
        self.assertEqual(caught.errno, errno.EBADF)

    def test_the_file_object_is_not_held_when_the_job_is_done(self):
        gc.disable()
        self.addCleanup(gc.enable)
        for error in (None, ZeroDivisionError()):
            gate, job = self.gated(error=error)
            gone = weakref.ref(gate)
            gate.open()
            no_jobs()
            self._cleanups.pop()  # gate.open
            if error:
                with self.assertRaises(ZeroDivisionError):
                    job.result()
                error.__traceback__ = None  # frames of write()
            del gate
            self.assertIsNone(gone(), error)

    def test_a_file_object_that_holds_its_job(self):
        gate, job = self.gated()
        gate.job = job
        gone = weakref.ref(job)
        gate.open()
        no_jobs()
        self._cleanups.pop()
        del gate, job
        gc.collect()
        self.assertIsNone(gone())


class FileObjects(Case):
    def test_files_at_their_position(self):
        for mode, buffering in (("wb", -1), ("wb", 0), ("w+b", -1), ("r+b", -1)):
            with self.subTest(mode=mode, buffering=buffering):
                path = self.write("v.pt", b"0123456789" * 2)
                with open(path, mode, buffering=buffering) as file:
                    file.write(b"before")
                    berth.save_async(self.value, file).result(SECONDS)
                    self.assertEqual(file.tell(), 6 + len(self.expected()))
                    file.write(b"after")
                self.assertEqual(self.read(path), b"before" + self.expected() + b"after")

    def test_a_file_that_is_closed_meanwhile(self):
        """Its bytes go where they belong, not to whoever has the descriptor's number now."""
        ends = os.pipe()
        with os.fdopen(ends[0], "rb") as read:
            self.value["a"] = torch.arange(1_000_000.)  # more than the pipe holds
            with os.fdopen(ends[1], "wb") as write:
                job = berth.save_async(self.value, write)
            other = os.open(self.path("other"), os.O_WRONLY | os.O_CREAT)
            self.assertEqual(other, ends[1])
            self.assertFalse(job.done())
            data = read.read()
            job.result(SECONDS)
            os.close(other)
        self.assertEqual(data, self.expected())
        self.assertEqual(self.read(self.path("other")), b"")

    def test_a_real_file_that_is_closed_meanwhile(self):
        with open(self.path("v.pt"), "wb") as file:
            job = berth.save_async(self.value, file)
        job.result(SECONDS)
        self.assertEqual(self.read(self.path("v.pt")), self.expected())

    def test_bytes_io(self):
        buffer = io.BytesIO(b"before")
        buffer.seek(6)
        berth.save_async(self.value, buffer).result(SECONDS)
        self.assertEqual(buffer.getvalue(), b"before" + self.expected())

    def test_descriptors_are_closed(self):
        def use():
            with open(self.path("v.pt"), "wb") as file:
                berth.save(self.value, file)
                berth.save_async(self.value, file).result(SECONDS)
            with open(self.path("v.pt"), "rb") as file:
                for save in (berth.save, lambda *both: berth.save_async(*both).result(SECONDS)):
                    with self.assertRaises(Exception):
                        save(self.value, file)
                    with self.assertRaises(TypeError):
                        save(threading.Lock(), self.path("v.pt"))

        use()
        before = self.open_files()
        for _ in range(10):
            use()
        self.assertEqual(self.open_files(), before)


class Forks(Case):
    def in_child(self, function):
        """function() in a forked child: its exit code is 0 if it returns true."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if function() else 2
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def test_a_child_cannot_use_its_parents_jobs(self):
        gate, running = self.gated()
        ended = berth.save_async(self.value, self.path("v.pt"))
        ended.result(SECONDS)
        jobs = [running, ended]

        def refused():
            for job in jobs:
                for use in (job.staged, job.done, job.result, job.cancel, lambda: job.progress, lambda: job.shared,
                            lambda: job.add_done_callback(print), lambda: asyncio.run(self.wait(job))):
                    with self.assertRaisesRegex(berth.Error, f"belongs to process {os.getppid()}"):
                        use()
                repr(job)
            jobs.clear()
            return True

        self.assertEqual(self.in_child(refused), 0)
        running = ended = None
        self.assertEqual(self.in_child(lambda: jobs.clear() or gc.collect() >= 0), 0)
        gate.open()
        self.assertIsNone(jobs[0].result(SECONDS))

    async def wait(self, job):
        await job

    def test_a_child_has_jobs_of_its_own(self):
        gate, job = self.gated()
        path = self.path("child.pt")
        self.assertEqual(self.in_child(
            lambda: berth.save_async(self.value, path).result(SECONDS) is None), 0)
        self.assertEqual(self.read(path), self.expected("child"))
        gate.open()
        self.assertIsNone(job.result(SECONDS))

    def test_a_lock_that_another_thread_has_at_the_fork(self):
        from berth import _counters

        held, leave = threading.Event(), threading.Event()

        def hold():
            with _counters._lock.held:
                held.set()
                leave.wait(SECONDS)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(SECONDS)
        try:
            pid = os.fork()
            if pid == 0:
                import signal

                signal.alarm(10)
                berth.save(1, self.path("v.pt"))
                os._exit(0)
        finally:
            leave.set()
            thread.join()
        self.assertEqual(os.waitpid(pid, 0)[1], 0)


