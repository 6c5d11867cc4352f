# SPDX-License-Identifier: BSD-3-Clause
"""Every public function, and what can come between: one table (Y8).

Its columns: another thread closes what the call uses; the cyclic collector runs a finalizer that closes it; what
the caller gave raises; ^C; a fork. `raising.py`, `ends.py` and `processes.py` look closer at single functions.
"""

import contextlib
import copy
import faulthandler
import gc
import inspect
import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import unittest

import berth
import numpy
import torch
from berth import _dcp_save, _job

import jobs
from folder import Folder

LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")
ASAN = "libasan" in os.environ.get("LD_PRELOAD", "")
INTERVAL = sys.getswitchinterval()  # while no save shortens it
SECONDS = 60  # no child and no wait takes longer
STUCK_SECONDS = 15 * SECONDS  # no row of the table takes longer, on a loaded machine, in the long form


class Scene:
    """What calls use, made when it is first asked for; close() ends all of it."""

    def __init__(self, folder, source, number=0):
        self.folder, self.source = folder, source
        self.target = os.path.join(folder, f"target{number}.pt")
        self.made = []

    def _make(self, name, value, close):
        self.made.append(close)
        setattr(self, name, value)
        return value

    def __getattr__(self, name):
        if name == "file":
            file = berth.open(self.source)
            return self._make(name, file, file.close)
        if name == "slice":
            return self._make(name, self.file.slice("emb"), lambda: None)
        if name == "rows":
            rows = berth.rows(16 << 10, scratch_nbytes=16 << 10)
            return self._make(name, rows, rows.close)
        if name == "table":
            return self._make(name, self.rows.add(self.file, "emb"), lambda: None)
        if name == "ticket":
            ticket = self.rows.prefetch(self.table, IDS)
            return self._make(name, ticket, ticket.release)
        if name == "job":
            job = berth.save_async(VALUE, self.target)
            return self._make(name, job, job.cancel)
        raise AttributeError(name)

    def close(self):
        for close in self.made:
            close()

    def end(self):
        self.close()
        jobs.no_jobs()


VALUE = {"emb": torch.arange(2000.).reshape(100, 20), "deep": torch.ones(1, 2, 1, 1, 2, 1, 3), "list": [1, "two", {"x": torch.ones(3)}], "n": 2**80}
IDS = torch.tensor([3, 1, 99, 3])


def saved(scene, save):
    save(scene.target)
    return berth.load(scene.target)


def opened(make):
    """What a function that opens gives, closed again."""
    with make() as made:
        return type(made).__name__


def use_config():
    config = berth.config
    before = config.describe("load.check")["value"]
    with config.patch("load.check=data"):
        inside = config.load.check
    return before, inside, config.load.check, len(config.names()), len(repr(config)), dir(config)


def waited(job):
    job.result(SECONDS)
    return job.done(), job.staged(0), job.progress[0] == job.progress[1], job.shared


def awaited(job):
    import asyncio

    async def wait():
        await job

    asyncio.run(wait())


def copied(file):
    with copy.copy(file) as other:
        return other.keys()


def called_back(job):
    called = threading.Lock()  # in an Event, ^C can leave its lock taken: the job's thread would wait for it for ever
    called.acquire()
    job.add_done_callback(lambda _: called.release())
    assert called.acquire(timeout=SECONDS)


def installed():
    with berth.installed():
        return torch.save is not torch.serialization.save


def install():
    berth.install()
    try:
        return torch.load.__name__
    finally:
        berth.uninstall()


def saved_by_ranks(scene, save):
    save(scene.target)
    state = {"emb": torch.zeros(100, 20), "n": 0}
    keys = berth.dcp.load(state, scene.target, strict=False)
    return state, tuple(keys)


# What is called -> a function (scene) -> a value, the same each time.
TABLE = {
    "save": lambda s: saved(s, lambda path: berth.save(VALUE, path)),
    "save, a file object": lambda s: berth.save(VALUE, io.BytesIO()),
    "save, by PyTorch": lambda s: berth.save(Subclass(VALUE), io.BytesIO()),
    "save_async": lambda s: saved(s, lambda path: berth.save_async(VALUE, path).result(SECONDS)),
    "save_async, a file object": lambda s: berth.save_async(VALUE, io.BytesIO()).result(SECONDS),
    "load": lambda s: berth.load(s.source),
    "load, mapped": lambda s: berth.load(s.source, mmap=True),
    "load, memory": lambda s: berth.load(io.BytesIO(s.data)),
    "load, a function": lambda s: berth.load(s.source, lambda storage, location: storage),
    "load, trusted": lambda s: berth.load(s.source, weights_only=False),
    "open": lambda s: opened(lambda: berth.open(s.source)),
    "verify": lambda s: len(berth.verify(s.source).records),
    "rows": lambda s: opened(lambda: berth.rows(16 << 10)),
    "installed": lambda s: installed(),
    "install, uninstall": lambda s: install(),
    "counters": lambda s: sorted(berth.counters()),
    "config": lambda s: use_config(),
    "File.keys": lambda s: s.file.keys(),
    "File.__iter__": lambda s: list(s.file),
    "File.__len__": lambda s: len(s.file),
    "File.__contains__": lambda s: ("emb" in s.file, "none" in s.file),
    "File.__getitem__": lambda s: (s.file["emb"], s.file["list"], s.file["n"]),
    "File.items": lambda s: [name for name, _ in s.file.items()],
    "File.values": lambda s: list(s.file.values()),
    "File.get": lambda s: (s.file.get("n"), s.file.get("none", 3)),
    "File.__repr__": lambda s: repr(s.file)[:11],
    "File.__reduce_ex__": lambda s: copied(s.file),
    "File.slice": lambda s: s.file.slice("deep").shape,
    "File.numpy": lambda s: s.file.numpy("emb"),
    "File.verify": lambda s: bool(s.file.verify()),
    "File.info": lambda s: s.file.info,
    "File.metadata": lambda s: s.file.metadata,
    "File.close": lambda s: s.file.close(),
    "Slice.__getitem__": lambda s: s.slice[3:50, 2],
    "Slice.__len__": lambda s: len(s.slice),
    "Slice.__repr__": lambda s: repr(s.slice),
    "Rows.add": lambda s: repr(s.rows.add(s.file, "emb")),
    "Rows.gather": lambda s: s.rows.gather(s.table, IDS),
    "Rows.gather_many": lambda s: s.rows.gather_many([(s.table, IDS), (s.table, IDS[:2])]),
    "Rows.estimate": lambda s: s.rows.estimate([(s.table, IDS)])["output_nbytes"],
    "Rows.prefetch": lambda s: opened(lambda: s.rows.prefetch(s.table, IDS)),
    "Rows.stats": lambda s: sorted(s.rows.stats()),
    "Rows.close": lambda s: s.rows.close(),
    "Table.__len__": lambda s: len(s.table),
    "Table.__repr__": lambda s: repr(s.table),
    "Ticket.wait": lambda s: s.ticket.wait(),
    "Ticket.gather": lambda s: s.ticket.gather(),
    "Ticket.release": lambda s: s.ticket.release(),
    "Job.result": lambda s: waited(s.job),
    "Job.cancel": lambda s: type(s.job.cancel()),
    "Job.__repr__": lambda s: repr(s.job)[:10],
    "Job.add_done_callback": lambda s: called_back(s.job),
    "Job.__await__": lambda s: awaited(s.job),
    "dcp.save, dcp.load": lambda s: saved_by_ranks(s, lambda path: berth.dcp.save(VALUE, path)),
    "dcp.async_save": lambda s: saved_by_ranks(s, lambda path: berth.dcp.async_save(VALUE, path).result()),
}
# Named by a row above of another name, or only classes and values.
COVERED = {"Job.staged", "Job.done", "Job.shared", "Job.progress", "File.__enter__", "File.__exit__", "Rows.__enter__",
           "Rows.__exit__", "Ticket.__enter__", "Ticket.__exit__", "install", "uninstall", "dcp.save",
           "dcp.load"}


class Subclass(dict):
    """PyTorch pickles it."""


Scene.data = property(lambda self: open_and_read(self.source))


def open_and_read(path):
    with open(path, "rb") as file:
        return file.read()


def plain(value):
    """A form that == compares."""
    if isinstance(value, (torch.Tensor, numpy.ndarray)):
        return [value.shape, value.tolist()]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def state():
    """What a call may not change."""
    return (gc.isenabled(), sys.getswitchinterval(), threading.active_count(), len(_job._live),
            torch.save is torch.serialization.save, berth.config.load.check)


def settled():
    """
    state(), when no thread of a save goes on: while one walks, the collector is off and the interval short. That of
    dcp.async_save frees what it saved when its result is known, before it begins anything else.
    """
    jobs.no_jobs()
    for worker in _dcp_save._workers.values():
        worker.submit(int).result(SECONDS)
    return state()


def in_time(is_so):
    """Whether it becomes so: threads of jobs free what they have when their results are known."""
    end = time.monotonic() + SECONDS
    while not is_so() and time.monotonic() < end:
        time.sleep(0.001)
    return is_so()


class Refused(Exception):
    """What a caller's own code raises."""


def watch():
    """If a test is stuck from here on, the stacks of all threads are told, and its process ends."""
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)


class Calls(Folder):
    def setUp(self):
        super().setUp()
        faulthandler.enable()  # for children
        watch()
        self.addCleanup(faulthandler.cancel_dump_traceback_later)
        self.addCleanup(berth.config.reset)
        berth.config.save.durability = "none"
        self.source = self.path("source.pt")
        berth.save(VALUE, self.source)
        self.expected = {}
        for name, call in TABLE.items():
            with contextlib.closing(self.scene()) as scene:
                self.expected[name] = plain(call(scene))
        jobs.no_jobs()
        gc.collect()

    def scene(self, number=0):
        return Scene(self.folder, self.source, number)

    def rows(self):
        for name, call in TABLE.items():
            before = settled()
            watch()
            with self.subTest(name):
                yield name, call
                self.unchanged(before)

    def unchanged(self, before):
        self.assertTrue(in_time(lambda: settled() == before), (state(), before))

    def ends(self, name, call, scene):
        """It gives what it always gives; or it says that what it uses was closed."""
        try:
            value = call(scene)
        except (ValueError, berth.CancelledError) as error:
            self.assertRegex(str(error), "closed|released|cancelled")
            return False
        self.assertEqual(plain(value), self.expected[name])
        return True

    def test_the_table_has_every_public_function(self):
        public = {name for name in berth.__all__ if inspect.isfunction(getattr(berth, name))}
        public |= {f"dcp.{name}" for name in ("save", "load", "async_save")}
        for kind in (berth.File, berth.Slice, berth.Rows, berth.Table, berth.Ticket, berth.Job):
            public |= {f"{kind.__name__}.{name}" for name, value in vars(kind).items()
                       if name != "__init__" and (not name.startswith("_") or name.endswith("__"))
                       and (inspect.isfunction(value) or isinstance(value, property))}
        rows = {each.split(",")[0] for each in TABLE}
        self.assertEqual(public - rows - COVERED, set())

    # ---- another thread, and a finalizer, close what the call uses ----

    def test_another_thread_closes(self):
        self.addCleanup(sys.setswitchinterval, INTERVAL)
        sys.setswitchinterval(1e-6)
        for name, call in self.rows():
            for i in range(400 if LONG else 20):
                self.close_beside(name, call, i)

    def close_beside(self, name, call, number):
        scene, begun = self.scene(), threading.Event()
        if number:  # else what it uses is made in the call
            for each in USES.get(name, ()):
                getattr(scene, each)

        def close():
            begun.wait()
            time.sleep(number % 10 * 2e-5)
            scene.close()

        thread = threading.Thread(target=close)
        thread.start()
        begun.set()
        try:
            self.ends(name, call, scene)
        finally:
            thread.join()
            scene.end()

    def test_the_collector_closes(self):
        """At each allocation in turn that counts for it."""
        self.addCleanup(gc.set_threshold, *gc.get_threshold())
        kept = [[tuple(range(n)) for _ in range(2100)] for n in range(1, 20)], [[] for _ in range(200)]
        gc.collect()
        gc.freeze()  # Python's free lists of tuples and lists are empty now: each is an allocation
        for name, call in self.rows():
            for at in range(1, 60 if LONG else 30):
                kept[1].append(self.close_at(name, call, at))

    def close_at(self, name, call, at):
        scene = self.scene()
        for each in USES.get(name, ()):
            getattr(scene, each)
        trash = Trash(scene.close)
        del trash
        gc.set_threshold(at, 1000, 1000)
        try:
            return self.ends(name, call, scene)
        finally:
            gc.set_threshold(700, 10, 10)
            scene.end()

    def test_what_arguments_run_closes(self):
        """Below the public functions, which give the native module plain ints."""
        for name in ("slice", "read_slice"):
            file = berth.open(self.source)._file
            memory = torch.zeros(20)
            more = (memory.data_ptr(), memory.nbytes) if name == "read_slice" else ()
            getattr(file, name)("emb", [Index(file.close), 0], [1, 20], *more)
            with self.assertRaisesRegex(ValueError, "closed"):
                getattr(file, name)("emb", [0, 0], [1, 20], *more)

    def test_another_thread_closes_while_torch_is_imported(self):
        """By the first tensor of a process."""
        code = ("import sys, threading, time, berth\n"
                "file = berth.open(sys.argv[1])\n"
                "def close():\n"
                "    while 'torch' not in sys.modules:\n"
                "        time.sleep(0.001)\n"
                "    file.close()\n"
                "thread = threading.Thread(target=close)\n"
                "thread.start()\n"
                "print(file['emb'].sum().item())\n")
        done = subprocess.run([sys.executable, "-c", code, self.source], capture_output=True, text=True,
                              check=False, timeout=SECONDS)
        self.assertEqual((done.returncode, done.stdout), (0, "1999000.0\n"), done.stderr)

    # ---- what the caller gave raises ----

    def test_what_the_caller_gave_raises(self):
        """It arrives as it is, and nothing is left."""
        for name, call in RAISING.items():
            before = settled()
            for error in (Refused("of the caller"), KeyboardInterrupt("of the caller")):
                with self.subTest(name, error=error), contextlib.closing(self.scene()) as scene:
                    with self.assertRaises(type(error)) as caught:
                        call(scene, Given(error))
                    self.assertIs(caught.exception, error)
                    error.__traceback__ = caught.exception = None
            self.unchanged(before)

    # ---- ^C ----

    def test_interrupts(self):
        """At any place: it is raised, or the call was done; nothing is left switched."""
        self.addCleanup(signal.signal, signal.SIGALRM, signal.getsignal(signal.SIGALRM))
        for name, call in self.rows():
            if name not in NOT_INTERRUPTED:
                for i in range(1000 if LONG else 15):
                    self.interrupt_in(name, call, i)

    def interrupt_in(self, name, call, number):
        scene = self.scene()
        for each in USES.get(name, ()):
            getattr(scene, each)
        signal.signal(signal.SIGALRM, interrupt)
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + number % 30 * 2e-5)
                self.ends(name, call, scene)
            finally:
                # Another thread, one that waits for a processor, may have the signal: it counts no more.
                signal.signal(signal.SIGALRM, signal.SIG_IGN)
        except KeyboardInterrupt:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            torch.set_grad_enabled(True)  # ^C in the beginning of a torch.no_grad() leaves it off, in PyTorch, too
            scene.end()

    # ---- forks ----

    @unittest.skipIf(ASAN, "gcc 12's address sanitizer keeps locks of its allocator taken in a forked child")
    def test_forks(self):
        """Beside a thread that is in the call, and four busy loops: the child can do the same (X11)."""
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4 if LONG else 0)]
        try:
            for name, call in self.rows():
                self.fork_beside(name, call, 20_000 // len(TABLE) if LONG else 6)
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()

    def fork_beside(self, name, call, n):
        stop, failures = threading.Event(), []

        def repeat():
            while not stop.is_set():
                scene = self.scene(1)
                try:
                    self.ends(name, call, scene)
                except BaseException as error:
                    failures.append(error)
                scene.close()

        thread = threading.Thread(target=repeat)
        thread.start()
        try:
            for i in range(n):
                time.sleep(i % 5 * 0.0005)
                self.assertEqual(in_a_child(lambda: self.ends(name, call, self.scene(2))), 0)
        finally:
            stop.set()
            thread.join()
        self.assertEqual(failures, [])

    @unittest.skipIf(ASAN, "as above")
    def test_forks_beside_writes_of_file_objects(self):
        """
        Their threads are not Python's, and take the GIL for each write. CPython 3.11 took a lock for that which
        stayed taken in the child: os.fork() did not return there (adapters/python/native/gil.c).
        """
        stop = threading.Event()
        value = torch.ones(1 << 16)  # small: many writes a fork

        def repeat():
            while not stop.is_set():
                berth.save(value, Counted())

        threads = [threading.Thread(target=repeat) for _ in range(2)]
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4 if LONG else 0)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20_000 if LONG else 200):
                self.assertEqual(in_a_child(gc.isenabled), 0)
        finally:
            stop.set()
            for loop in loops:
                loop.kill()
                loop.wait()
            for thread in threads:
                thread.join()


class Counted:
    """A file object that takes all, and keeps nothing."""

    def write(self, data):
        return len(data)


def in_a_child(function):
    """The exit code of a child that calls it: 0: it returned True. One that hangs is killed; its stacks are told."""
    watch()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if function() else 2
        finally:
            os._exit(code)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        got, status = os.waitpid(pid, os.WNOHANG)
        if got:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    os.kill(pid, signal.SIGABRT)
    os.waitpid(pid, 0)
    return "it hangs"


def interrupt(number, frame):
    raise KeyboardInterrupt


class Index:
    """An int whose __index__ calls a function."""

    def __init__(self, function):
        self.function = function

    def __index__(self):
        self.function()
        return 0


class Given:
    """What a caller may give: a path, an index, a function, a file; each of its methods raises."""

    def __init__(self, error):
        self.error = error

    def fail(self, *_arguments, **_named):
        raise self.error

    __fspath__ = __index__ = __iter__ = __call__ = fail
    path = property(lambda self: Path(self.error))
    file = property(lambda self: FileObject(self.error))


class Path:
    def __init__(self, error):
        self.error = error

    def __fspath__(self):
        raise self.error


class FileObject:
    def __init__(self, error):
        self.error = error

    def fail(self, *_arguments):
        raise self.error

    read = readinto = write = seek = tell = fail


class Trash:
    """A cycle: only the collector frees it."""

    def __init__(self, close):
        self.close, self.me = close, self

    def __del__(self):
        self.close()


# What is made before the call, and closed in it.
USES = {name: {"File": ("file",), "Slice": ("slice",), "Rows": ("table",), "Table": ("table",),
               "Ticket": ("ticket",), "Job": ("job",)}.get(name.split(".")[0], ()) for name in TABLE}

# What is called with something of the caller's that raises.
RAISING = {
    "save, path": lambda s, given: berth.save(VALUE, given.path),
    "save, file": lambda s, given: berth.save(VALUE, given.file),
    "save_async, path": lambda s, given: berth.save_async(VALUE, given.path),
    "save_async, file": lambda s, given: berth.save_async(VALUE, given.file).result(SECONDS),
    "load, path": lambda s, given: berth.load(given.path),
    "load, file": lambda s, given: berth.load(given.file),
    "load, map_location": lambda s, given: berth.load(s.source, given.fail),
    "open, path": lambda s, given: berth.open(given.path),
    "open, file": lambda s, given: berth.open(given.file),
    "verify, path": lambda s, given: berth.verify(given.path),
    "verify, file": lambda s, given: berth.verify(given.file),
    "rows, size": lambda s, given: berth.rows(given),
    "Slice.__getitem__": lambda s, given: s.slice[given],
    "Slice.__getitem__, a slice": lambda s, given: s.slice[given:],
    "Rows.add, path": lambda s, given: s.rows.add(given.path, "emb"),
    "Rows.gather, ids": lambda s, given: s.rows.gather(s.table, [given]),
    "Rows.prefetch, ids": lambda s, given: s.rows.prefetch(s.table, [given]),
    "dcp.save, path": lambda s, given: berth.dcp.save(VALUE, given.path),
    "dcp.load, path": lambda s, given: berth.dcp.load({}, given.path),
}
# Python's own code is not made for ^C at any place: a `with` statement may be left between its __enter__ and its
# block, asyncio and a ThreadPoolExecutor keep what they have begun.
NOT_INTERRUPTED = {"config", "installed", "install, uninstall", "Job.__await__", "dcp.async_save"}
