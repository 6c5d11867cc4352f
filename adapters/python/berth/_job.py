# SPDX-License-Identifier: BSD-3-Clause
"""berth.save_async: saves that go on while the program does.

Each job has a thread that sleeps until the save has ended, and then sets the outcome. The thread,
not the Job, keeps the save: a Job that is dropped goes on.

There are no locks of Python's, and no threading.Thread, Event or Future, which have some: ^C in the
moment between taking such a lock and its `with` block would leave it taken, and all others waiting.
What threads share here is set, appended and popped by one step each, which the GIL makes whole.
"""

import atexit
import contextlib
import functools
import logging
import os
import threading
import time
import weakref
from _thread import start_new_thread

from berth._counters import count
from berth._errors import CancelledError, make
from berth._save import begin, begin_safetensors, is_safetensors
from berth._source import from_caller, is_path, name_of

SECONDS_BETWEEN_SIGNALS = 0.05  # ^C is looked for
NO_LIMIT = -1.0

_log = logging.getLogger("berth")
_live = set()  # the States of jobs whose threads have not ended


class State:
    """What a Job and its thread share."""

    def __init__(self, native, way, end, name):
        self.native, self.way, self.end, self.name = native, way, end, name
        self.outcome = None  # then: (exception or None, its report or None)
        self.callbacks = []  # functions without arguments

    def add_callback(self, function):
        self.callbacks.append(function)
        if self.outcome:
            self.call_back()

    def call_back(self):
        """Each is popped, and so called, once: by the job's thread or by whoever adds it."""
        while self.callbacks:
            try:
                function = self.callbacks.pop(0)
            except IndexError:
                return
            try:
                function()
            except Exception:
                _log.exception("a callback of an asynchronous save failed")


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

    def __init__(self, state):
        self._state, self._native, self._pid = state, state.native, os.getpid()

    def __repr__(self):
        if self._pid != os.getpid():
            return f"<berth.Job: a save to {self._state.name} of another process>"
        done_nbytes, total_nbytes = self._native.progress()
        state = "done" if self._state.outcome else f"{done_nbytes} of {total_nbytes} bytes"
        return f"<berth.Job: a save to {self._state.name}, {state}>"

    def staged(self, timeout=None):
        """Waits until the save needs nothing of the program's: the tensors may change then.

        timeout: seconds; 0: does not wait; None: no limit.
        Returns: whether it is staged; False: not within this time.
        Raises: what the save raised, if it failed before it was staged; the tensors may change
        then, too. KeyboardInterrupt: the save goes on.
        """
        self._check_process()
        end = _end_of(timeout)
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
        return self._state.outcome is not None

    def result(self, timeout=None):
        """Waits until the save has ended: the file is as durable as berth.config.save.durability says.

        timeout: seconds; None: no limit.
        Returns: None.
        Raises: what the save raised: see berth.save. berth.CancelledError: it was cancelled.
        TimeoutError: it has not ended within this time, and goes on. KeyboardInterrupt: it goes on.
        """
        self._check_process()
        end = _end_of(timeout)
        while not self._native.closed(NO_LIMIT if end is None else max(0, end - time.monotonic())):
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"the save to {self._state.name} has not ended within {timeout} s")
        try:
            _answer(self._state.outcome)
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

    @property
    def shared(self):
        """(bytes that the file shares with its base, why no more or None), when it is done; before, (0, None)."""
        self._check_process()
        return self._native.placed()[2:] if self._state.outcome else (0, None)

    def add_done_callback(self, function):
        """Calls function(job) when the save has ended; at once if it has.

        It is called on the job's thread, or on this one. What it raises is logged. The end of the
        interpreter waits for it.
        """
        self._check_process()
        if not callable(function):
            raise TypeError(f"a callback is a function of one argument, not {type(function).__name__}")
        self._state.add_callback(functools.partial(function, self))

    def __await__(self):
        import asyncio

        self._check_process()
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._state.add_callback(functools.partial(_wake, loop, waiter))
        yield from waiter
        try:
            _answer(self._state.outcome)
        finally:
            self = None

    def _check_process(self):
        """A child has none of the threads, and maybe a lock that one of them held."""
        if self._pid != os.getpid():
            raise make("BERTH_E_ARGUMENT", f"this job belongs to process {self._pid}: wait for it "
                       "there; a forked child can begin jobs of its own", 0, None, "")


def _end_of(timeout):
    """Of a wait, by the monotonic clock; None: it has no limit."""
    if timeout is None:
        return None
    if not isinstance(timeout, (int, float)):
        raise TypeError(f"a timeout is a number of seconds, or None, not {type(timeout).__name__}")
    return time.monotonic() + timeout


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


def _wake(loop, waiter):
    """A task of asyncio; not if its loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: waiter.done() or waiter.set_result(None))


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


def _follow(state):
    error = _save(state.native, state.way, state.end)
    # It reports when nobody can ask any more, or at the end of the interpreter.
    report = (None if error is None
              else weakref.finalize(state, _report, error, state.name, os.getpid()))
    state.end = _nothing  # it holds the file object
    state.outcome = error, report
    state.native.close()
    try:
        state.call_back()
    finally:  # a callback may raise SystemExit: the interpreter's end would wait for ever
        _live.discard(state)
    del state, error, report  # as above


def _nothing(is_saved):
    pass


def _finish():
    """Waits for all jobs, and for their callbacks."""
    for state in list(_live):
        while not state.native.closed(NO_LIMIT):
            pass
    while _live:
        time.sleep(0.001)


# Before the functions of atexit, as for threads; and after them, for jobs that they begin.
getattr(threading, "_register_atexit", atexit.register)(_finish)
atexit.register(_finish)
os.register_at_fork(after_in_child=_live.clear)


# ---- beginning ----


def save_async(obj, f, *, snapshot=True, base=None):
    """Begins what berth.save(obj, f) does, and returns while it goes on.

    obj, f: as of berth.save. Containers may change as soon as this returns.
    snapshot: True: the tensors may change as soon as this returns; they are copied first, by several
        threads, which takes as much memory as the file has bytes, until the job is done. False: they
        must not change before job.staged(), which is when the last byte is written; no copy is made.
    base: as of berth.save; job.shared tells what came of it. That the disk is too small for the rest, the job raises.

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
    f = from_caller(f)
    native, way, end = (begin_safetensors if is_safetensors(f) else begin)(obj, f, snapshot=snapshot, base=base)
    name = repr(name_of(f)) if is_path(f) else f"an object of {type(f)}"
    return _start(State(native, way, end, name))


def _start(state):
    try:
        _live.add(state)
        start_new_thread(_follow, (state,))
    except RuntimeError:  # at the end of the interpreter there are no new threads
        _follow(state)
    except BaseException:  # ^C, before the thread has begun or later
        state.native.cancel()
        _save(state.native, state.way, state.end)
        _live.discard(state)
        raise
    return Job(state)
