# SPDX-License-Identifier: BSD-3-Clause
"""Tensors on a GPU, against PyTorch: skipped where PyTorch finds none; tools/gpu runs it where it does."""

import unittest
from unittest import mock

import berth
import torch

from folder import Folder
from same import same

DEVICE = "cuda:0"


class Dict(dict):
    """Not a plain type: PyTorch pickles it."""


@unittest.skipUnless(torch.cuda.is_available(), "PyTorch finds no GPU")
class Devices(Folder):
    def value(self, device):
        torch.manual_seed(1)
        whole = torch.rand(30, 100, device=device)
        return {"whole": whole, "part": whole[5:, 3:9], "turned": whole.t(), "empty": whole[:0, :0].clone(),
                "half": whole.bfloat16(), "bools": whole > 0.5, "complex": torch.complex(whole, whole).conj(),
                "parameter": torch.nn.Parameter(torch.rand(7, device=device)),
                "sparse": (whole > 0.9).to_sparse(), "host": torch.rand(5), "number": 7,
                "storage": torch.rand(11, device=device).untyped_storage()}

    def test_saves_have_the_same_bytes(self):
        value = self.value(DEVICE)
        berth.save(value, self.path("mine/v.pt"))
        torch.save(value, self.path("theirs/v.pt"))
        self.assertEqual(self.read(self.path("mine/v.pt")), self.read(self.path("theirs/v.pt")))

    def test_a_save_waits_for_kernels(self):
        """Of the current stream, whichever that is."""
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                found = torch.ones(4096, 4096, device=DEVICE)
                for _ in range(50):
                    found = found @ found
                    found /= found.max()
                berth.save(found, self.path("v.pt"))
                self.assertTrue(torch.equal(berth.load(self.path("v.pt"), "cpu"), found.cpu()))

    def test_saves_go_through_the_ring(self):
        """Of values and of records: PyTorch copies no storage to the host, and the bytes are the same."""
        for kind, way in ((dict, "values"), (Dict, "records")):
            value = kind(self.value(DEVICE))
            torch.save(value, self.path("theirs/v.pt"))
            for save in (berth.save, lambda *of: berth.save_async(*of).result(),
                         lambda *of: berth.save_async(*of, snapshot=False).result()):
                before = berth.counters()["save"][way]
                with mock.patch.object(torch.UntypedStorage, "cpu", side_effect=AssertionError("a copy")):
                    save(value, self.path("mine/v.pt"))
                self.assertEqual(berth.counters()["save"][way], before + 1)
                self.assertTrue(self.read(self.path("mine/v.pt")) == self.read(self.path("theirs/v.pt")))

    def test_a_snapshot_keeps_the_bytes_of_the_call(self):
        for kind in (dict, Dict):
            found = torch.ones(4096, 4096, device=DEVICE)
            job = berth.save_async(kind(t=found), self.path("v.pt"))
            found.fill_(2)
            job.result()
            loaded = torch.load(self.path("v.pt"), "cpu", weights_only=False)["t"]
            self.assertTrue(torch.equal(loaded, torch.ones(4096, 4096)))

    def test_a_load_waits_for_kernels_on_memory_that_was_freed(self):
        torch.save(torch.full((4096, 4096), 7.0), self.path("v.pt"))
        for _ in range(5):
            freed = torch.ones(4096, 4096, device=DEVICE)
            for _ in range(50):
                freed += 1
            del freed  # its memory comes back at once, to the same stream
            self.assertTrue((berth.load(self.path("v.pt"), DEVICE) == 7).all().item())

    def test_a_capture_is_refused(self):
        value = torch.ones(5, device=DEVICE)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            value + 1
            with self.assertRaisesRegex(RuntimeError, "captured into a graph"):
                berth.save(value, self.path("v.pt"))

    def test_loads_are_the_same(self):
        for saved_on in (DEVICE, "cpu"):
            torch.save(self.value(saved_on), self.path("v.pt"))
            for where in (None, "cpu", "cuda", DEVICE, torch.device("cuda"), {DEVICE: "cpu"}, {"cpu": DEVICE},
                          lambda storage, _: storage, lambda storage, _: storage.cuda(), "meta"):
                for mmap in (False, True):
                    with self.subTest(saved_on=saved_on, where=where, mmap=mmap):
                        mine = berth.load(self.path("v.pt"), where, mmap=mmap)
                        theirs = torch.load(self.path("v.pt"), where, weights_only=True, mmap=mmap)
                        same(mine, theirs, empty_are_shared=mmap, resizable=False)
                        if where != "meta":
                            same(self.on_host(mine), self.on_host(theirs), resizable=False)

    def on_host(self, value):
        return {key: each.cpu() if isinstance(each, (torch.Tensor, torch.UntypedStorage)) else each
                for key, each in value.items() if not isinstance(each, torch.TypedStorage)}
