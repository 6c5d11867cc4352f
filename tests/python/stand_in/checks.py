# SPDX-License-Identifier: BSD-3-Clause
"""Saves and loads of tensors on a device that stands for CUDA's: see backend.py.

usage: BERTH_BUILD=... checks.py FOLDER
"""

import contextlib
import ctypes
import os
import sys
import threading
import unittest
import warnings
from unittest import mock

import backend
import torch
import berth
from berth import _device

from folder import Folder
from same import same

DEVICES = torch.device("simulated:0"), torch.device("simulated:1")
FIRST = DEVICES[0]
SECONDS = 0.2  # that a stream is held: a copy that does not wait is done long before


class Dict(dict):
    """Not a plain type: PyTorch pickles it, and Berth writes the records."""


def on(device, tensor):
    storage = tensor.untyped_storage().to(device=device)
    return torch.empty(0, dtype=tensor.dtype, device=device).set_(
        storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def value(kind, seed=1):
    torch.manual_seed(seed)
    large = on(FIRST, torch.rand(700, 100))
    view = torch.empty(0, device=FIRST).set_(large.untyped_storage(), 5, (3, 4), (1, 100))
    return kind(large=large, again=large, view=view, second=on(DEVICES[1], torch.arange(9)),
                half=on(FIRST, torch.rand(33).bfloat16()), empty=on(FIRST, torch.empty(0)),
                host=torch.rand(5), storage=torch.rand(11).untyped_storage().to(device=FIRST),
                number=7)


def bytes_of(each):
    untyped = each.untyped_storage() if isinstance(each, torch.Tensor) else \
        getattr(each, "_untyped_storage", each)
    return torch.empty(0, dtype=torch.uint8).set_(untyped.cpu()).numpy().tobytes()


def to_host(value):
    """The bytes of its storages: of a device, `same` compares none."""
    return {key: hash(bytes_of(each)) for key, each in value.items() if key != "number"}


@contextlib.contextmanager
def held(device, address=None, bytes_=b""):
    """The stream's work waits for a while; some of it is to write these bytes."""
    index = device.index
    backend.native.stand_in_hold(index, True)
    if address:
        assert backend.native.stand_in_write_later(index, address, bytes_, len(bytes_)) == 0
    timer = threading.Timer(SECONDS, backend.native.stand_in_hold, (index, False))
    timer.start()
    try:
        yield
    finally:
        timer.join()


class StandIn(Folder):
    def tearDown(self):
        self.assertEqual(backend.Event.n_live, 0)

    def test_saves_have_the_same_bytes(self):
        for kind, way in ((dict, "values"), (Dict, "records")):
            made = value(kind)
            torch.save(made, self.path("theirs/v.pt"))
            for save in (berth.save, lambda *of: berth.save_async(*of).result(),
                         lambda *of: berth.save_async(*of, snapshot=False).result()):
                before, copies = berth.counters()["save"][way], backend.native.stand_in_n_copies()
                with mock.patch.object(torch.UntypedStorage, "cpu", side_effect=AssertionError("a copy")):
                    save(made, self.path("mine/v.pt"))
                self.assertTrue(self.read(self.path("mine/v.pt")) == self.read(self.path("theirs/v.pt")))
                self.assertEqual(berth.counters()["save"][way], before + 1)
                self.assertGreater(backend.native.stand_in_n_copies(), copies)

    def save_behind_the_stream(self, save, kind, new):
        made = kind(t=on(FIRST, torch.zeros(1000)))
        with held(FIRST, made["t"].data_ptr(), new):
            save(made, self.path("v.pt"))
        return bytes_of(torch.load(self.path("v.pt"), "cpu", weights_only=False)["t"])

    def test_a_save_waits_for_the_stream(self):
        new = bytes(range(250)) * 16
        for kind in (dict, Dict):
            for save in (berth.save, lambda *of: berth.save_async(*of).result(),
                         lambda *of: berth.save_async(*of, snapshot=False).result()):
                self.assertTrue(self.save_behind_the_stream(save, kind, new) == new)

    def test_without_the_event_it_would_not(self):
        """What the test above relies on."""
        for kind in (dict, Dict):
            with mock.patch.object(_device, "ready", lambda device, storage: (str(device), 0, None)):
                self.assertEqual(self.save_behind_the_stream(berth.save, kind, b"n" * 4000), bytes(4000))

    def test_a_snapshot_keeps_the_bytes_of_the_call(self):
        for kind in (dict, Dict):
            tensor = on(FIRST, torch.full((100_000,), 1.0))
            job = berth.save_async(kind(t=tensor), self.path("v.pt"))
            tensor.untyped_storage().copy_(torch.full((100_000,), 2.0).untyped_storage())
            job.result()
            loaded = torch.load(self.path("v.pt"), "cpu", weights_only=False)["t"]
            self.assertTrue(torch.equal(loaded, torch.full((100_000,), 1.0)))

    def test_without_a_snapshot_the_storage_lives_until_it_is_staged(self):
        made = {"t": on(FIRST, torch.full((100_000,), 1.0))}
        with held(FIRST):
            job = berth.save_async(made, self.path("v.pt"), snapshot=False)
            del made
            self.assertFalse(job.staged(0))
        self.assertTrue(job.staged())
        job.result()
        self.assertTrue(torch.equal(berth.load(self.path("v.pt"), "cpu")["t"], torch.full((100_000,), 1.0)))

    def test_loads_are_the_same(self):
        torch.save(value(dict), self.path("v.pt"))
        for where in (None, "cpu", "simulated", "simulated:1", DEVICES[1], {"simulated:0": "simulated:1"},
                      {"simulated:0": "cpu", "cpu": "simulated:1"}, "meta", lambda storage, _: storage,
                      lambda storage, _: storage.to(device=DEVICES[1]), lambda *_: None):
            for mmap in (False, True):
                with self.subTest(where=where, mmap=mmap):
                    mine = berth.load(self.path("v.pt"), where, mmap=mmap)
                    theirs = torch.load(self.path("v.pt"), where, weights_only=True, mmap=mmap)
                    mine["storage"], theirs["storage"] = (each["storage"]._untyped_storage
                                                          for each in (mine, theirs))
                    same(mine, theirs, empty_are_shared=mmap, resizable=False)
                    if where != "meta":
                        self.assertEqual(to_host(mine), to_host(theirs))

    def test_loads_go_through_the_ring(self):
        """But for a bare storage, which is no tensor's, PyTorch copies nothing."""
        made = value(dict)
        del made["storage"]
        torch.save(made, self.path("v.pt"))
        with mock.patch.object(torch.UntypedStorage, "copy_", side_effect=self.copy_of_nothing):
            loaded = berth.load(self.path("v.pt"))
        self.assertEqual(to_host(loaded), to_host(made))

    def copy_of_nothing(self, source, _non_blocking=None):
        self.assertEqual(source.nbytes(), 0)

    def test_a_load_waits_for_work_on_memory_that_was_freed(self):
        saved = torch.full((1000,), 1.0)
        torch.save({"t": saved}, self.path("v.pt"))
        self.assertTrue(self.load_into_freed_memory() == bytes_of(saved))
        with mock.patch.object(_device, "ready", lambda device: (str(device), 0, None)):
            self.assertEqual(self.load_into_freed_memory(), b"g" * 4000, "the test proves nothing")

    def load_into_freed_memory(self):
        freed = torch.UntypedStorage(4000, device=FIRST)
        address, garbage = freed.data_ptr(), b"g" * 4000
        with held(FIRST, address, garbage):
            del freed
            loaded = berth.load(self.path("v.pt"), FIRST)["t"]
            self.assertEqual(loaded.data_ptr(), address)
        return bytes_of(loaded)

    def test_a_failed_copy_leaves_the_old_file(self):
        for kind in (dict, Dict):
            berth.save("old", self.path("v.pt"))
            made = value(kind)
            backend.native.stand_in_fail_copy(1)
            with self.assertRaisesRegex(berth.Error, "simulated:[01]: .* cannot be copied to the host"):
                berth.save(made, self.path("v.pt"))
            self.assertEqual(berth.load(self.path("v.pt")), "old")

    def test_a_failed_load_raises(self):
        torch.save(value(dict), self.path("v.pt"))
        backend.native.stand_in_fail_copy(1)
        with self.assertRaisesRegex(berth.Error, "simulated:[01]: .* cannot be copied to the device"):
            berth.load(self.path("v.pt"))

    def test_want_of_memory(self):
        made = value(dict)
        torch.save(made, self.path("v.pt"))
        backend.native.stand_in_limit(1000)
        self.addCleanup(backend.native.stand_in_limit, ctypes.c_uint64(-1).value)
        with self.assertRaises(torch.OutOfMemoryError):
            berth.load(self.path("v.pt"))
        backend.native.stand_in_limit(ctypes.c_uint64(-1).value)
        with berth.config.patch("io.memory_nbytes=1000"), self.assertRaises(berth.OutOfMemoryError):
            berth.save(made, self.path("v.pt"))
        with berth.config.patch("io.memory_nbytes=1000"), self.assertRaises(berth.OutOfMemoryError):
            berth.load(self.path("v.pt"))
        self.assertEqual(to_host(berth.load(self.path("v.pt"))), to_host(made))

    def test_a_capture_is_refused(self):
        made = value(dict)
        torch.save(made, self.path("v.pt"))
        with mock.patch.object(backend.Module, "is_capturing", True):
            for call in (lambda: berth.save(made, self.path("w.pt")), lambda: berth.load(self.path("v.pt"))):
                with self.assertRaisesRegex(RuntimeError, "is being captured into a graph"):
                    call()
        self.assertFalse(os.path.exists(self.path("w.pt")))

    def test_devices_that_berth_does_not_know_are_copied_by_pytorch(self):
        made = value(dict)
        torch.save(made, self.path("theirs/v.pt"))
        with mock.patch.object(_device, "_is_known", lambda _: False):
            berth.save(made, self.path("mine/v.pt"))
            self.assertTrue(self.read(self.path("mine/v.pt")) == self.read(self.path("theirs/v.pt")))
            self.assertEqual(to_host(berth.load(self.path("mine/v.pt"))), to_host(made))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main()
