# SPDX-License-Identifier: BSD-3-Clause
"""berth.dcp: many processes save one file, and load it into other meshes: dcp_cases.py, dcp_columns.py."""

import ctypes
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import berth
from berth import _dcp_group, _dcp_save, _native

import starter
from folder import Folder

LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")
WORLDS = (4, 3, 2, 1) if LONG else (4, 3, 1)  # the others read what 4 have written
SECONDS = 3600  # ends what hangs, not what is slow
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "dcp_ranks.py")


def names(source, pattern):
    """Names in a source, which is not imported: it needs torch.distributed."""
    with open(os.path.join(HERE, source), encoding="utf-8") as file:
        return re.findall(pattern, file.read(), re.MULTILINE)


class Ranks(unittest.TestCase):
    """One start of the program for all tests."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="berth-python-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        worlds = ",".join(map(str, WORLDS))
        with open(PROGRAM, encoding="utf-8") as file:
            _, *said = starter.run(file.read(), cls.folder, worlds, seconds=SECONDS)
        cls.output = "".join(said)
        with open(os.path.join(cls.folder, "report"), encoding="utf-8") as file:
            cls.report = [json.loads(line) for line in file]

    def check(self, name, reports):
        """That many processes have run the case to its end."""
        found = [(n, rank, why) for n, case, rank, _, why in self.report if case == name]
        for n, rank, why in found:
            self.assertEqual(why, "", f"rank {rank} of {n}")
        failed = sorted({(n, case) for n, case, _, _, why in self.report if why})
        self.assertEqual(len(found), reports, f"ranks run no case behind one that fails: {failed}\n{self.output}")


def add(name, case, reports):
    setattr(Ranks, name, lambda self: self.check(case, reports))


CASE = r"^def (test_\w+)\(rank\)"
for each in names("dcp_cases.py", CASE) + names("dcp_columns.py", CASE):
    add(each, each, sum(WORLDS))
add("test_alone", "alone", 1)
for each in names("dcp_ranks.py", r'^    "([\w-]+)": \([01], lambda') + ["writer-stops"] * LONG:
    add("test_death_" + each.replace("-", "_"), each, 1)


class Alone(Folder):
    """In this process, which has no group of others."""

    def test_storage_of_torch(self):
        import torch
        from torch.distributed import checkpoint

        path = self.path("a.pt")
        writer, reader, state = berth.dcp.Writer(), berth.dcp.Reader("none.pt"), {"w": torch.zeros(3), "n": 0}
        checkpoint.save({"w": torch.ones(3), "n": 7}, checkpoint_id=path, storage_writer=writer)
        checkpoint.load(state, checkpoint_id=path, storage_reader=reader)
        self.assertEqual((state["w"].tolist(), state["n"]), ([1] * 3, 7))
        for each in (writer, reader):
            each.reset()
            self.assertEqual(each._path, path)
            self.assertEqual([each.validate_checkpoint_id(given) for given in (path, b"a", 5)], [True, True, False])
        torch.save({"s": torch.eye(2).to_sparse()}, path)
        self.assertRaisesRegex(TypeError, "torch.distributed.checkpoint knows no such tensor; use berth.dcp.load", reader.read_metadata)

    def test_which_group_carries_bytes(self):
        """That of the program, if it is on the host; else one more, which stays."""
        dist, backends = _dcp_group.dist, {"of both": "cpu:gloo,cuda:nccl", None: "cpu:gloo", "part": "cuda:nccl"}  # None: WORLD
        with mock.patch.multiple(dist, get_backend_config=backends.get, get_process_group_ranks=lambda _: [2, 3],
                                 new_group=mock.Mock(return_value=5)), mock.patch.dict(_dcp_group._groups, clear=True):
            self.assertEqual(_dcp_group._group_for_bytes("of both", None), "of both")
            for group, purpose, is_part in ((None, "jobs", False), ("part", None, True), ("part", None, True)):
                self.assertEqual(_dcp_group._group_for_bytes(group, purpose), 5)
                self.assertEqual(dist.new_group.call_args, mock.call([2, 3], None, "gloo", use_local_synchronization=is_part))
            self.assertEqual(dist.new_group.call_count, 2)

    def test_an_exception_that_wants_more(self):
        error = _dcp_group.Failure(3, UnicodeDecodeError("utf-8", b"a", 0, 1, "odd")).exception()
        self.assertEqual((type(error), str(error)), (RuntimeError, "rank 3: 'utf-8' codec can't decode byte 0x61 in position 0: odd"))


class Lazily(unittest.TestCase):
    def test_berth_does_not_import_it(self):
        code = ("import sys, berth\n"
                "print('torch' in sys.modules, 'berth.dcp' in sys.modules)\n"
                "print(berth.dcp.save.__module__, hasattr(berth, 'dpc'))\n"
                "print('torch.distributed' in sys.modules)")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "False False\nberth._dcp_save False\nTrue\n")


class Limit(Exception):
    """What the handler of a time limit raises."""


class TimeLimits(Folder):
    """A time limit ends a call at any bytecode; ^C is then the program's again (Y12)."""

    def setUp(self):
        super().setUp()
        import torch

        self.state, self.file = {"w": torch.ones(2)}, self.path("v.pt")
        berth.config.save.durability = "none"
        self.addCleanup(berth.config.reset)
        self.addCleanup(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))

    def test_at_each_bytecode(self):
        def save_async(state, file):
            berth.dcp.async_save(state, file).result(SECONDS)

        for call in (berth.dcp.save, berth.dcp.load, save_async):
            call(self.state, self.file)
            n = 0
            while self.ended(n, lambda call=call: call(self.state, self.file)):
                n += 1
            self.assertGreater(n, 100)

    def ended(self, at, call):
        """Whether a call was ended at this bytecode of what handles ^C, counted from its first one."""
        def trace(frame, event, _):
            nonlocal at
            if event == "call":
                if frame.f_code.co_filename != _dcp_group.__file__:
                    return None
                frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if event == "opcode":
                at -= 1
                if at == -1:
                    sys.settrace(None)
                    raise Limit
            return trace

        before, tracer = signal.getsignal(signal.SIGINT), sys.gettrace()
        try:
            sys.settrace(trace)
            call()
        except Limit:
            pass
        finally:
            sys.settrace(tracer)
        self.assertIs(signal.getsignal(signal.SIGINT), before)
        for worker in _dcp_save._workers.values():  # the call may have ended behind the save's begin
            worker.submit(int).result(SECONDS)
        return at < 0

    def test_before_it_is_put_back(self):
        """The signal comes behind the last bytecode, in C: signal.signal() raises then."""
        def limit(*_):
            raise Limit

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, limit))
        before = signal.getsignal(signal.SIGINT)
        last = functools.partial(ctypes.CDLL(None)["raise"], int(signal.SIGALRM))
        with self.assertRaises(Limit):
            _native.with_handler(signal.SIGINT, limit, last)
        self.assertIs(signal.getsignal(signal.SIGINT), before)
