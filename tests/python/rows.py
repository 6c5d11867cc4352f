# SPDX-License-Identifier: BSD-3-Clause
"""berth.rows: rows of tables, against what torch's own indexing gives."""

import array
import ctypes
import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from unittest import mock

import berth
import numpy
import torch

from folder import Folder

N_ROWS, N_COLUMNS = 5000, 12


class Failing(io.BytesIO):
    """A file object that raises `error` when it is read, or is_short: gives nothing; else it is read."""

    error, is_short = None, False

    def readinto(self, memory):
        if self.error:
            raise self.error
        return 0 if self.is_short else super().readinto(memory)


class Tables(Folder):
    def setUp(self):
        super().setUp()
        torch.manual_seed(1)
        self.tables = {"emb": torch.rand(N_ROWS, N_COLUMNS), "half": torch.rand(300, 40).bfloat16(),
                       "ints": torch.arange(60).reshape(20, 3).to(torch.int16),
                       "empty": torch.ones(0, 4), "narrow": torch.rand(20, 1)}
        self.others = {"conj": torch.ones(3, 2, dtype=torch.complex64).conj(), "vector": torch.ones(3),
                       "turned": torch.rand(4, 5).t(), "meta": torch.ones(2, 3, device="meta"),
                       "quantized": torch.quantize_per_tensor(torch.ones(3, 4), 0.5, 1, torch.qint8)}
        torch.save({**self.tables, **self.others}, self.path("v.pt"))
        self.file = berth.open(self.path("v.pt"))
        self.addCleanup(self.file.close)
        # Much smaller than the table, so that rows are read, evicted and streamed.
        self.rows = berth.rows(16 << 10, scratch_nbytes=16 << 10)
        self.addCleanup(self.rows.close)
        self.emb = self.rows.add(self.file, "emb")

    def ids(self, *shape, n_rows=N_ROWS):
        return torch.randint(0, n_rows, shape)

    def assert_rows(self, found, ids, name="emb"):
        if not isinstance(found, torch.Tensor):
            found = torch.from_numpy(found.copy())
        expected = self.tables[name][torch.as_tensor(ids).long()]
        self.assertEqual((found.dtype, found.shape), (expected.dtype, expected.shape))
        self.assertTrue(torch.equal(found, expected))


class Gathers(Tables):
    def test_the_table(self):
        self.assertEqual((self.emb.name, self.emb.dtype, self.emb.shape, len(self.emb)),
                         ("emb", "float32", (N_ROWS, N_COLUMNS), N_ROWS))
        self.assertEqual(repr(self.emb), "<berth.Table 'emb' float32 [5000, 12]>")

    def test_every_form_of_ids(self):
        ids = self.ids(200)
        numbers, square = ids.tolist(), ids.reshape(10, 20)
        forms = {"int64": (ids, ids), "int32": (ids.int(), ids), "square": (square, square),
                 "turned": (square.t(), square.t()), "every second": (ids[::2], ids[::2]),
                 "one": (ids[0], ids[0]), "none": (ids[:0], ids[:0]), "list": (numbers, ids),
                 "nothing": ([], ids[:0]), "range": (range(5, 50), torch.arange(5, 50)),
                 "array q": (array.array("q", numbers), ids), "array i": (array.array("i", numbers), ids),
                 "ctypes": ((ctypes.c_int64 * 200)(*numbers), ids),
                 "no element": (ids[:0].reshape(0, 3), ids[:0].reshape(0, 3))}
        for what, (form, same) in forms.items():
            with self.subTest(what):
                self.assert_rows(self.rows.gather(self.emb, form), same)
                with self.rows.prefetch(self.emb, form) as ticket:
                    ticket.wait()
                    self.assert_rows(ticket.gather(), same)

    def test_arrays_give_arrays(self):
        ids = self.ids(4, 50).numpy()
        for form in (ids, ids.astype(numpy.int32), ids[:, ::-2], numpy.asfortranarray(ids), ids[0, 0:0],
                     numpy.asarray(ids[1, 1])):
            with self.subTest(form.shape), self.rows.prefetch(self.emb, form) as ticket:
                for found in (self.rows.gather(self.emb, form), ticket.gather()):
                    self.assertIs(type(found), numpy.ndarray)
                    self.assert_rows(found, form.copy())

    def test_more_ids_than_the_cache_has_rows(self):
        ids = self.ids(40_000)
        with berth.config.patch(load_rows_passes=5, load_rows_min_pass_ids=1):
            self.assert_rows(self.rows.gather(self.emb, ids), ids)
        stats = self.rows.stats()
        self.assertEqual((stats["n_passes"], stats["n_ids"], stats["n_requests"]), (5, 40_000, 1))
        self.assertEqual(stats["n_hits"] + stats["n_misses"], stats["n_unique"])
        self.assertLess(stats["n_lines"], N_ROWS // 10)

    def test_every_kind_of_output(self):
        for what, whole, view in (
                ("new", torch.zeros(6, 20, N_COLUMNS), ...),
                ("wide", torch.zeros(6, 20, 20), (..., slice(3, 3 + N_COLUMNS))),
                ("every second", torch.zeros(6, 40, N_COLUMNS), (slice(None), slice(1, None, 2))),
                ("one of each", torch.zeros(6, 40, N_COLUMNS), (slice(None), slice(1))),
                ("of one", torch.zeros(1, 40, N_COLUMNS), (slice(None), slice(1, None, 2)))):
            ids = self.ids(*whole[view].shape[:-1])
            for kind in (torch.Tensor, numpy.ndarray):
                whole.zero_()
                out = (whole if kind is torch.Tensor else whole.numpy())[view]
                with self.subTest(what, kind=kind), self.rows.prefetch(self.emb, ids) as ticket:
                    self.assertIs(self.rows.gather(self.emb, ids, out), out)
                    self.assert_rows(out, ids)
                    self.assertEqual(whole.count_nonzero(), out.size if kind is numpy.ndarray
                                     else out.count_nonzero())
                    out[:] = 0
                    self.assertIs(ticket.gather(out=out), out)
                    self.assert_rows(out, ids)
        with berth.rows(1 << 16) as rows:  # a row of one element may be anywhere
            out, narrow = torch.zeros(4, 2)[:, ::2], rows.add(self.file, "narrow")
            self.assert_rows(rows.gather(narrow, [5, 0, 5, 19], out), [5, 0, 5, 19], "narrow")
        ids = self.ids(6, 20)
        raw = bytearray(ids.numel() * N_COLUMNS * 4)
        self.assertIs(self.rows.gather(self.emb, ids, raw), raw)
        self.assert_rows(torch.frombuffer(raw, dtype=torch.float32).reshape(6, 20, -1), ids)

    def test_outputs_that_do_not_fit(self):
        ids, one = self.ids(2, 3), torch.zeros(1, 1, N_COLUMNS)
        readonly = numpy.zeros((2, 3, N_COLUMNS), numpy.float32)
        readonly.flags.writeable = False
        for out, kind, words in (
                (torch.zeros(2, 3, N_COLUMNS).double(), TypeError, "dtype torch.float64.*torch.float32"),
                (torch.zeros(6, N_COLUMNS), ValueError, r"shape \[6, 12\].*\[2, 3, 12\]"),
                (one.expand(2, 3, -1), ValueError, "equal distances"),
                (torch.zeros(2, 3, 2 * N_COLUMNS)[..., ::2], ValueError, "equal distances"),
                (torch.zeros(2, 4, N_COLUMNS)[:, :3], ValueError, "equal distances"),
                (torch.zeros(3, 2, N_COLUMNS).transpose(0, 1), ValueError, "equal distances"),
                (readonly.copy()[:, ::-1], ValueError, "equal distances"),
                (readonly, ValueError, "read-only"), (bytearray(7), ValueError, "288 bytes"),
                (bytes(288), ValueError, "writable"), (3, TypeError, "out is a tensor, an array or a writable buffer"),
                (torch.zeros(2, 3, N_COLUMNS, requires_grad=True), ValueError, "detach"),
                (torch.zeros(2, 3, N_COLUMNS, device="meta"), TypeError, "meta")):
            with self.subTest(words, kind=type(out)), self.rows.prefetch(self.emb, ids) as ticket:
                with self.assertRaisesRegex(kind, words):
                    self.rows.gather(self.emb, ids, out)
                with self.assertRaisesRegex(kind, words):
                    ticket.gather(out)

    def test_many_tables(self):
        half, ints = (self.rows.add(self.file, name) for name in ("half", "ints"))
        ids, few, out = self.ids(100), self.ids(70, n_rows=300).int(), torch.zeros(5, 3).short()
        found = self.rows.gather_many([(self.emb, ids), (half, few), (ints, [5, 0, 19, 7, 5], out)])
        self.assertIs(found[2], out)
        for rows, of, name in zip(found, (ids, few, [5, 0, 19, 7, 5]), ("emb", "half", "ints")):
            self.assert_rows(rows, of, name)
        self.assertEqual(self.rows.gather_many([]), [])
        try:
            rows = self.rows.gather(half, few.numpy())
            self.assert_rows(torch.from_numpy(rows.view("int16")).view(torch.bfloat16), few, "half")
        except TypeError as error:  # numpy has it by ml_dtypes
            self.assertRegex(str(error), "bfloat16.*pip install ml_dtypes")

    def test_pruned_ids(self):
        ids = torch.tensor([3, -1, 4999, -1])
        for form in (ids, ids.int(), ids.numpy()):
            found = torch.as_tensor(self.rows.gather(self.emb, form, pruned_to_zero=True))
            self.assertTrue(torch.equal(found[::2], self.tables["emb"][[3, 4999]]))
            self.assertEqual(found[1::2].tolist(), [[0] * N_COLUMNS] * 2)

    def test_bad_ids(self):
        out = torch.full((2, N_COLUMNS), 7.)
        for ids, kind, words in (([1, N_ROWS], IndexError, "id 5000.*emb"), ([1, -1], IndexError, "-1"),
                                 ([1, -2], IndexError, "-2"), (["a", "b"], TypeError, "str"),
                                 ([1, 2**63], IndexError, "64 bits"), ([1., 2.], TypeError, "float"),
                                 (torch.ones(2), TypeError, "int64, not torch.float32"),
                                 (numpy.ones(2, numpy.uint64), TypeError, "int64, not uint64"),
                                 (numpy.ones(2, ">i8"), TypeError, "int64, not >i8"),
                                 (b"ab", TypeError, "format 'B'"), (array.array("I", [1]), TypeError, "'I'"),
                                 (memoryview(array.array("q", range(4)))[::2], TypeError, "contiguous"),
                                 (torch.ones(2, device="meta").long(), TypeError, "meta"),
                                 (torch.ones(2).long().to_sparse(), TypeError, "sparse")):
            with self.subTest(ids):
                with self.assertRaisesRegex(kind, words):
                    self.rows.gather(self.emb, ids, out)
                with self.assertRaisesRegex(kind, words):
                    self.rows.prefetch(self.emb, ids)
        with self.assertRaisesRegex(IndexError, "-2"):
            self.rows.gather(self.emb, [-1, -2], out, pruned_to_zero=True)
        self.assertEqual(out.unique().tolist(), [7])

    def test_tables_that_are_none(self):
        self.rows.add(self.file, "empty")
        for name, kind, words in (("nothing", KeyError, "nothing"), ("vector", berth.Error, "2 dimensions"),
                                  ("turned", berth.Error, "contiguous"), ("conj", TypeError, "conj"),
                                  ("quantized", TypeError, "quantized"), ("meta", berth.Error, "meta")):
            with self.subTest(name), self.assertRaisesRegex(kind, words):
                self.rows.add(self.file, name)
        with self.assertRaisesRegex(TypeError, "Tensor"):
            self.rows.add(torch.ones(3), "emb")
        with berth.rows(1 << 20) as other:
            for table in (0, other.add(self.file, "emb")):
                with self.assertRaisesRegex(TypeError, "add"):
                    self.rows.gather(table, [0])

    def test_estimates(self):
        ids = self.ids(7, 11)
        found = self.rows.estimate([(self.emb, 10**9), (self.emb, ids)])
        self.assertEqual((found["n_ids"], found["output_nbytes"]),
                         (10**9 + 77, (10**9 + 77) * N_COLUMNS * 4))
        self.assertGreater(found["n_passes"], 1)
        self.assertLess(found["memory_nbytes"], 100 << 20)
        self.assertEqual(self.rows.estimate([(self.emb, torch.tensor([5]))])["n_ids"], 1)
        with berth.config.patch("io.memory_nbytes=100000"), self.assertRaises(berth.OutOfMemoryError):
            self.rows.estimate([(self.emb, 10**9)])
        with self.assertRaisesRegex(ValueError, "negative"):
            self.rows.estimate([(self.emb, -1)])


class Limits(Tables):
    def test_invalid_limits(self):
        for arguments, kind in (((0,), berth.ArgumentError), ((-1,), ValueError), ((2**64,), ValueError),
                                ((1.5,), TypeError), ((2**60,), berth.OutOfMemoryError)):
            with self.subTest(arguments), self.assertRaises(kind):
                berth.rows(*arguments)
        with self.assertRaisesRegex(berth.ArgumentError, "64 lines"):
            berth.rows(1 << 20, ways=65)
        with berth.rows(100) as tiny, self.assertRaisesRegex(berth.OutOfMemoryError, "emb"):
            tiny.add(self.file, "emb")

    def test_live_tickets_hold_rows(self):
        tickets = [self.rows.prefetch(self.emb, range(i, i + 100)) for i in (0, 1000, 2000)]
        with self.assertRaises(berth.Error) as caught:
            tickets += [self.rows.prefetch(self.emb, range(i, i + 100)) for i in range(100, 900, 100)]
        self.assertEqual(caught.exception.status, "BERTH_E_BUSY")
        self.assert_rows(tickets[1].gather(), range(1000, 1100))
        for ticket in tickets[:2]:
            ticket.release()
            ticket.release()
            for use in (ticket.wait, ticket.gather):
                with self.assertRaisesRegex(ValueError, "released"):
                    use()
        self.assert_rows(tickets[2].gather(), range(2000, 2100))
        del tickets, ticket, use
        gc.collect()
        self.assertEqual(self.rows.stats()["n_tickets"], 0)


class Lifetime(Tables):
    def test_the_file_stays_open(self):
        ids = self.ids(50)
        by_path = self.rows.add(self.path("v.pt"), "ints")
        self.file.close()
        self.file = None
        os.unlink(self.path("v.pt"))
        gc.collect()
        self.assert_rows(self.rows.gather(self.emb, ids), ids)
        self.assert_rows(self.rows.gather(by_path, [0, 19]), [0, 19], "ints")

    def test_everything_ends(self):
        before = self.open_files(), threading.active_count()
        rows = berth.rows(1 << 20)
        table = rows.add(self.path("v.pt"), "emb")
        ticket = rows.prefetch(table, [1, 2])
        rows.close()
        rows.close()
        for use in (lambda: rows.gather(table, [1]), lambda: rows.prefetch(table, [1]), rows.stats,
                    lambda: rows.estimate([(table, 1)]), lambda: rows.add(self.file, "emb")):
            with self.assertRaisesRegex(ValueError, "closed"):
                use()
        self.assert_rows(ticket.gather(), [1, 2])  # which keeps cache and file
        self.assertEqual(self.open_files(), before[0] + 1)
        ticket.release()
        self.assertEqual(self.open_files(), before[0])

    def test_a_file_in_memory(self):
        data = self.read(self.path("v.pt"))
        with berth.rows(1 << 20) as rows:
            table = rows.add(berth.open(io.BytesIO(data)), "emb")
            del data
            gc.collect()
            self.assert_rows(rows.gather(table, [0, 4999]), [0, 4999])

    def test_a_file_object_that_raises(self):
        """Its own exception, in each call that waits for the rows, whatever thread has read them; none is printed."""
        data = self.read(self.path("v.pt"))
        for n_threads in (1, 4):
            with berth.config.patch("io.threads", n_threads), mock.patch("sys.unraisablehook") as printed:
                bad, good = Failing(data), Failing(data)
                with berth.rows(64 << 10) as rows:
                    table, other = (rows.add(berth.open(file), "emb") for file in (bad, good))
                    for i, error in enumerate((ZeroDivisionError("of the file"), KeyboardInterrupt("of the file"))):
                        bad.error, ids = error, [i, 70 + i, 4998 + i]  # which the cache does not have yet
                        for call in (lambda: rows.gather(table, ids), lambda: rows.gather(table, ids),
                                     lambda: rows.gather_many([(other, ids), (table, ids)])):
                            self.assert_raises(error, call)
                        rows.prefetch(table, ids).release()
                        with rows.prefetch(table, ids) as first, rows.prefetch(other, ids) as second:
                            self.assert_rows(second.gather(), ids)  # which reads for the first one, too
                            for call in (first.wait, first.gather, first.wait):
                                self.assert_raises(error, call)
                        bad.error, bad.is_short = None, True
                        with self.assertRaises(berth.Error):  # of this read, not the one before
                            rows.gather(table, ids)
                        bad.is_short = False
                        self.assert_rows(rows.gather(table, ids), ids)
            printed.assert_not_called()

    def assert_raises(self, error, call):
        with self.assertRaises(type(error)) as caught:
            call()
        self.assertIs(caught.exception, error)

    def test_rows_of_pages_that_were_written(self):
        self.file["emb"][7] = 1.5
        self.assertEqual(self.rows.gather(self.emb, [7]).unique().tolist(), [1.5])
        by_path = self.rows.add(self.path("v.pt"), "emb")
        self.assert_rows(self.rows.gather(by_path, [7]), [7])

    def test_a_file_that_was_cut(self):
        os.truncate(self.path("v.pt"), 100_000)
        with self.assertRaises(berth.Error) as caught:
            self.rows.gather(self.emb, [0, 4999])
        self.assertIn("v.pt", str(caught.exception))
        with self.rows.prefetch(self.emb, [4998]) as ticket, self.assertRaises(berth.Error):
            ticket.gather()
        self.assert_rows(self.rows.gather(self.emb, [0, 1]), [0, 1])

    def test_references(self):
        ids, out = self.ids(50), torch.zeros(50, N_COLUMNS)
        array_ids, bad = ids.numpy(), [N_ROWS]
        everything = [ids, out, array_ids, bad, self.emb, self.rows]

        def counts():
            return [sys.getrefcount(each) for each in everything]

        def use():
            self.rows.gather_many([(self.emb, ids, out), (self.emb, array_ids)])
            with self.rows.prefetch(self.emb, array_ids) as ticket:
                ticket.gather(out)
            with self.assertRaises(IndexError):
                self.rows.gather(self.emb, bad)

        use()
        before, objects = counts(), len(gc.get_objects())
        for _ in range(200):
            use()
        gc.collect()
        self.assertEqual(counts(), before)
        self.assertLess(len(gc.get_objects()) - objects, 50)


class Threads(Tables):
    def test_at_the_same_time(self):
        errors = []

        def work(seed):
            torch.manual_seed(seed)
            try:
                for _ in range(20):
                    ids = self.ids(100)
                    with self.rows.prefetch(self.emb, ids[:20]) as ticket:
                        self.assert_rows(self.rows.gather(self.emb, ids), ids)
                        self.assert_rows(ticket.gather(), ids[:20])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])

    def test_closed_and_released_by_another_thread(self):
        """Whatever the moment, each call gives the rows or a ValueError."""
        for i in range(50):
            rows = berth.rows(1 << 20)
            table = rows.add(self.file, "emb")
            ticket = rows.prefetch(table, range(3000))
            ids = self.ids(3000)

            def end():
                time.sleep(i * 1e-5)
                ticket.release()
                rows.close()

            thread = threading.Thread(target=end)
            thread.start()
            try:
                self.assert_rows(ticket.gather(), range(3000))
                self.assert_rows(rows.gather(table, ids), ids)
            except ValueError:
                pass
            thread.join()

    def test_interrupted(self):
        ids = torch.arange(N_ROWS).repeat(2000)
        out = torch.empty(len(ids), N_COLUMNS)
        began = threading.Event()

        def interrupt():
            began.wait()
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with self.assertRaises(KeyboardInterrupt):
            began.set()  # here, or ^C could come before it is expected
            while True:
                self.rows.gather(self.emb, ids, out)
        thread.join()
        self.assert_rows(self.rows.gather(self.emb, [1, 2]), [1, 2])

    def test_other_threads_run(self):
        """A gather holds no GIL: a thread counts meanwhile."""
        ids = torch.arange(N_ROWS).repeat(2000)
        out, counted, stop = torch.empty(len(ids), N_COLUMNS), [0], threading.Event()

        def count():
            while not stop.is_set():
                counted[0] += 1

        thread = threading.Thread(target=count)
        thread.start()
        native, before = self.rows._native.gather, counted[0]
        part = (0, ids.data_ptr(), len(ids), False, out.data_ptr(), N_COLUMNS * 4, False)
        native([part])
        during = counted[0] - before
        stop.set()
        thread.join()
        self.assertGreater(during, 1000)

    def test_a_fork(self):
        ticket = self.rows.prefetch(self.emb, [1])
        child = os.fork()
        if child == 0:
            try:
                for use in (lambda: self.rows.gather(self.emb, [1]), ticket.gather, self.rows.stats):
                    try:
                        use()
                        os._exit(1)
                    except berth.Error as error:
                        if "parent" not in str(error):
                            os._exit(2)
                ticket.release()
                self.rows.close()
                with berth.rows(1 << 20) as own:
                    own.gather(own.add(self.file, "emb"), [1])
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(3)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assert_rows(ticket.gather(), [1])


class Alone(Tables):
    def run_python(self, code):
        subprocess.run([sys.executable, "-c", code, self.path("v.pt")], check=True)

    def test_without_torch(self):
        self.run_python("import sys, numpy, berth\n"
                        "with berth.rows(1 << 20) as rows:\n"
                        "    found = rows.gather(rows.add(sys.argv[1], 'ints'), numpy.array([19, 0]))\n"
                        "    assert found.tolist() == [[57, 58, 59], [0, 1, 2]], found\n"
                        "    raw = bytearray(6)\n"
                        "    rows.gather(rows.add(sys.argv[1], 'ints'), [1], raw)\n"
                        "assert raw == bytes([3, 0, 4, 0, 5, 0]), raw\n"
                        "assert 'torch' not in sys.modules")

    def test_an_interpreter_that_ends_with_live_tickets(self):
        self.run_python("import sys, berth\n"
                        "rows = berth.rows(1 << 20)\n"
                        "table = rows.add(sys.argv[1], 'emb')\n"
                        "tickets = [rows.prefetch(table, range(i, i + 50)) for i in range(0, 4000, 50)]\n")
