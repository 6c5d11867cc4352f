# SPDX-License-Identifier: BSD-3-Clause
"""What a refusal tells, and berth.verify: is the file whole, what does it name, what to do next."""

import argparse
import io
import pathlib

import berth
import numpy
import torch
from torch.testing._internal.two_tensor import TwoTensor

from folder import Folder

CUT = "a download or a save in place that did not end?"
TRUSTED = ". If you trust the file: berth.load(f, weights_only=False), which runs what the file asks for"
STATE = {"layer.weight": torch.arange(600.).reshape(20, 30), "layer.bias": torch.ones(3)}
HYPER = argparse.Namespace(lr=1e-3, path=pathlib.PurePosixPath("a"))


class Scale(torch.nn.Module):
    def forward(self, x):
        return x * 2


class Runs:
    def __reduce__(self):
        import os
        return os.system, ("false",)


# A name, the value, options of torch.save, and what it names that is not allowed.
REFUSED = [
    ("lightning", {"state_dict": STATE, "hyper_parameters": HYPER}, {}, ["argparse.Namespace", "pathlib.PurePosixPath"]),
    ("module", {"model": Scale()}, {}, [f"{__name__}.Scale"]),
    ("numpy", {"rng": numpy.random.get_state()}, {},
     [f"{numpy.ndarray.__reduce__(numpy.ones(1))[0].__module__}._reconstruct", "numpy.ndarray", "numpy.dtype"]),
    ("subclass", {"w": TwoTensor(STATE["layer.weight"], STATE["layer.weight"])}, {},
     ["torch._utils._rebuild_wrapper_subclass", "torch.testing._internal.two_tensor.TwoTensor"]),
    ("old", {"state": STATE, "args": HYPER}, {"_use_new_zipfile_serialization": False},
     ["argparse.Namespace", "pathlib.PurePosixPath"]),
]


class Refusals(Folder):
    def test_each_names_all_and_the_next_step(self):
        for name, value, options, names in REFUSED:
            with self.subTest(name):
                path = self.path(f"{name}.pt")
                torch.save(value, path, **options)
                words = ", ".join(" ".join(each.rsplit(".", 1)) for each in names)
                what = ("1 class or function that is" if len(names) == 1
                        else f"{len(names)} classes or functions that are")
                for source in (path, io.BytesIO(self.read(path))):
                    with self.assertRaises(berth.UnsafeFileError) as caught:
                        berth.load(source)
                    says = str(caught.exception)
                    self.assertTrue(says.endswith(
                        f" is not allowed in a checkpoint; it names {what} not allowed: {words}. If you trust "
                        f"them: torch.serialization.add_safe_globals([{', '.join(names)}])" + TRUSTED), says)
                    self.assertNotIn("`", says)
                    report = berth.verify(source)
                    self.assertEqual((bool(report), report.intact, report.refused), (False, True, names))
                    self.assertTrue(report.error.endswith(TRUSTED), report.error)
                    self.assertLessEqual(set(names), set(report.globals))
                data = self.read(path)
                with self.assertRaises(berth.Error) as caught:
                    berth.load(self.write("cut.pt", data[:-40]))
                if name != "old":  # its storages end there: what it names is met first
                    self.assertIn(CUT, str(caught.exception))
                report = berth.verify(self.path("cut.pt"))
                self.assertIn(CUT, report.error)
                self.assertEqual((bool(report), report.intact, report.refused), (False, False, names))

    def test_what_it_says_to_allow_loads_the_file(self):
        torch.save({"args": HYPER}, self.path("a.pt"))
        with self.assertRaises(berth.UnsafeFileError) as caught:
            berth.load(self.path("a.pt"))
        step = str(caught.exception).split("If you trust them: ")[1].split(". If you trust the file")[0]
        with torch.serialization.safe_globals([]):
            exec(step)  # pylint: disable=exec-used
            self.assertEqual(berth.load(self.path("a.pt"))["args"].lr, 1e-3)
            torch.serialization.clear_safe_globals()

    def test_nobody_is_told_to_allow_what_runs_programs(self):
        torch.save({"a": Runs()}, self.path("a.pt"))
        with self.assertRaises(berth.UnsafeFileError) as caught:
            berth.load(self.path("a.pt"))
        self.assertTrue(str(caught.exception).endswith("Some of them run programs: do not allow them"))
        self.assertNotIn("weights_only", str(caught.exception))

    def test_protocols_4_and_5(self):
        for protocol in (4, 5):
            torch.save(STATE, self.path("a.pt"), pickle_protocol=protocol)
            with self.assertRaises(berth.UnsafeFileError) as caught:
                berth.load(self.path("a.pt"))
            self.assertIn(f": `berth convert --set load.unknown_globals=inert {self.path('a.pt')} NEW.pt` saves it "
                          "again without running anything" + TRUSTED, str(caught.exception))
            with self.assertRaises(berth.UnsafeFileError) as caught:
                berth.load(io.BytesIO(self.read(self.path("a.pt"))))
            self.assertNotIn("FILE", str(caught.exception))
            report = berth.verify(self.path("a.pt"))
            self.assertEqual((bool(report), report.intact, report.refused), (False, True, []))

    def test_torchscript(self):
        torch.jit.save(torch.jit.script(Scale()), self.path("a.pt"))
        report = berth.verify(self.path("a.pt"))
        self.assertEqual((bool(report), report.intact), (False, True))
        self.assertIn("a TorchScript archive", report.error)
        report = berth.verify(self.write("cut.pt", self.read(self.path("a.pt"))[:-40]))
        self.assertFalse(report.intact)
        self.assertIn(CUT, report.error)
