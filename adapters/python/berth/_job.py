# SPDX-License-Identifier: BSD-3-Clause
"""berth.save_async: saves that go on while the program does.

Each job has a thread that sleeps until the save has ended, and then gives the outcome to a Future.
The thread, not the Job, keeps the save: a Job that is dropped goes on. The outcome is the exception
or None, always as the Future's result, so that neither it nor asyncio reports an exception itself.
"""

import atexit
import concurrent.futures
import logging
import os
import threading
import time
import weakref

from berth._counters import count
from berth._errors import CancelledError, make
from berth._save import begin
from berth._source import is_path

SECONDS_BETWEEN_SIGNALS = 0.05  # ^C is looked for
NO_LIMIT = -1.0

_log = logging.getLogger("berth")


class Job:
    """A save that goes on on a thread of its own; made by berth.save_async.

    It goes on to its end if this object is dropped, if a wait for it ends early (a time limit, ^C, a
    cancelled task of asyncio), and at the end of the interpreter: only cancel() ends it. A failure
    that nobody has asked for is reported once, to the logger "berth": when the object is dropped, or
    at the end of the interpreter.

        job = berth.save_async(state, "model.pt")
        ...                                    # train on
        job.result()                           # or, with asyncio: await job

    Threads: any; several may wait for one job. In a forked child everything here raises berth.Error:
    the job belongs to the parent.
    """

    def __init__(self, native, future, name):
        self._native, self._future, self._name, self._pid = native, future, name, os.getpid()

    def __repr__(self):
        if self._pid != os.getpid():
            return f"<berth.Job: a save to {self._name} of another process>"
        done_nbytes, total_nbytes = self._native.progress()
        state = "done" if self._future.done() else f"{done_nbytes} of {total_nbytes} bytes"
        return f"<berth.Job: a save to {self._name}, {state}>"

    def staged(self, timeout=None):
        """Waits until the save needs nothing of the program's: the tensors may change then.

        timeout: seconds; 0: does not wait; None: no limit.
        Returns: whether it is staged; False: not within this time.
        Raises: what the save raised, if it failed before it was staged; the tensors may change
        then, too. KeyboardInterrupt: the save goes on.
        """
        self._check_process()
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = SECONDS_BETWEEN_SIGNALS if end is None else max(0, end - time.monotonic())
            staged = self._native.staged(min(left, SECONDS_BETWEEN_SIGNALS))
            if staged is None:
                self.result()
            if staged or left == 0:
                return bool(staged)

    def done(self):
        """Whether the save has ended, well or not: result() does not wait any more."""
        self._check_process()
        return self._future.done()

    def result(self, timeout=None):
        """Waits until the save has ended: the file is as durable as berth.config.save.durability says.

        timeout: seconds; None: no limit.
        Returns: None.
        Raises: what the save raised: see berth.save. berth.CancelledError: it was cancelled.
        TimeoutError: it has not ended within this time, and goes on. KeyboardInterrupt: it goes on.
        """
        self._check_process()
        try:
            _answer(self._future.result(timeout))
        finally:
            self = None  # the exception's traceback holds this frame

    def cancel(self):
        """Asks the save to stop, and returns at once.

        Returns: True: the path keeps its old file; result() raises berth.CancelledError, or what the
        save raised before. False: too late: the new file takes its place, or all is written. What
        was written to a file object stays there.
        """
        self._check_process()
        return self._native.cancel()

    @property
    def progress(self):
        """(bytes written, bytes of the whole file); counted about ten times a second."""
        self._check_process()
        return self._native.progress()

    def add_done_callback(self, function):
        """Calls function(job) when the save has ended; at once if it has.

        It is called on the job's thread, or on this one. What it raises is logged. The end of the
        interpreter waits for it.
        """
        self._check_process()
        # Emptied by the call: what is held no longer cannot hold the job.
        pair = [function, self]
        self._future.add_done_callback(lambda _: _call(pair))

    def __await__(self):
        import asyncio

        self._check_process()
        try:
            _answer((yield from asyncio.wrap_future(self._future).__await__()))
        finally:
            self = None

    def _check_process(self):
        """A child has none of the threads, and maybe a lock that one of them held."""
        if self._pid != os.getpid():
            raise make("BERTH_E_ARGUMENT", f"this job belongs to process {self._pid}: wait for it "
                       "there; a forked child can begin jobs of its own", 0, None, "")


def _answer(outcome):
    """Gives an outcome to whoever asked."""
    error, report = outcome
    if error is None:
        return
    report.detach()
    try:
        raise error
    finally:
        del error, outcome


def _call(pair):
    function, job = pair
    pair.clear()
    function(job)


# ---- on the job's thread ----


def _save(native, way, end):
    """Until it has ended. Returns: its exception, or None."""
    try:
        is_saved = False
        try:
            native.staged(NO_LIMIT)  # what it kept goes now
            native.wait()
            is_saved = True
        finally:
            end(is_saved)
        count("save", way)
        return None
    except BaseException as error:
        return error
    finally:
        del native, end  # the exception's traceback holds this frame


def _report(error, name, pid):
    if pid == os.getpid() and not isinstance(error, CancelledError):
        _log.error("an asynchronous save to %s failed, and nobody asked for its result", name,
                   exc_info=error)


class Follower(threading.Thread):
    """The thread of a job. The interpreter's end waits for it."""

    def __init__(self, *work):
        super().__init__(name="berth-job", daemon=False)
        self.work = work

    def run(self):
        work, self.work = self.work, None
        if not work:
            return
        native, way, end, future, name = work
        error = _save(native, way, end)
        # It reports when nobody can ask any more, or at the end of the interpreter.
        report = (None if error is None
                  else weakref.finalize(future, _report, error, name, os.getpid()))
        future.set_result((error, report))
        del work, native, end, future, error, report  # as above


def _finish():
    """Jobs that began while the interpreter ended: by then it has waited for threads."""
    for thread in threading.enumerate():
        if isinstance(thread, Follower) and thread.is_alive():
            thread.join()


atexit.register(_finish)


# ---- beginning ----


def save_async(obj, f, *, snapshot=True):
    """Begins what berth.save(obj, f) does, and returns while it goes on.

    obj, f: as of berth.save. Containers may change as soon as this returns.
    snapshot: True: the tensors may change as soon as this returns; they are copied first, by several
        threads, which takes as much memory as the file has bytes, until the job is done. False: they
        must not change before job.staged(), which is when the last byte is written; no copy is made.

    A file object is the job's until it is done. A real file may be closed meanwhile; the position of
    one that is open follows when the job is done. Any other object's write() is called on the job's
    threads, one call at a time, and its flush() at the end.

    Returns: a Job.
    Raises, before a byte is written: what pickling raises; what berth.save raises if the target cannot be
    opened or the disk is too small; berth.OutOfMemoryError: no memory for the snapshot.
    KeyboardInterrupt: nothing goes on. What fails later, the job raises.
    Threads: any; several jobs may run at once, also to one path: each file is whole, and the last
    job to end wins.
    """
    native, way, end = begin(obj, f, snapshot=snapshot)
    return _start(native, way, end, repr(os.fsdecode(f)) if is_path(f) else f"an object of {type(f)}")


def _start(native, way, end, name):
    future = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # so that nobody but the job can cancel it
    follower = Follower(native, way, end, future, name)
    try:
        follower.start()
    except RuntimeError:  # at the end of the interpreter there are no new threads
        follower.run()
    except BaseException:  # ^C, before the thread has begun or later
        follower.work = None
        native.cancel()
        _save(native, way, end)
        raise
    return Job(native, future, name)
