# SPDX-License-Identifier: BSD-3-Clause
"""Two questions about a file, two answers: is it whole, and what does its pickle name. Files as PyTorch,
Lightning, NumPy and safetensors write them, whole and cut; nothing of them is run."""

import argparse
import json
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import tempfile
import unittest

from case import BERTH, Case

PYTHON = os.environ.get("BERTH_PYTHON", "python3")

MAKE = """
import argparse, json, pathlib, warnings, numpy, torch
import torch.distributed.checkpoint as dcp
from torch.testing._internal.two_tensor import TwoTensor
warnings.simplefilter("ignore")
weight = torch.arange(600.).reshape(20, 30)
state = {"layer.weight": weight, "layer.bias": torch.ones(3)}
class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
    def forward(self, x):
        return self.norm(self.conv(x))
hyper = argparse.Namespace(lr=1e-3, path=pathlib.PurePosixPath("a"))
torch.save({"epoch": 3, "state_dict": state, "hyper_parameters": hyper}, "lightning.ckpt")
torch.save({"model": Detector(), "epoch": 1}, "detector.pt")
torch.save({"model": state, "rng": numpy.random.get_state()}, "rng.pt")
torch.jit.save(torch.jit.script(Detector()), "script.pt")
torch.save({"w": TwoTensor(weight, weight + 1)}, "subclass.pt")
torch.save(state, "protocol4.pt", pickle_protocol=4)
torch.save({"model": state, "args": hyper}, "protocol5.pt", pickle_protocol=5)
torch.save(state, "legacy.pt", _use_new_zipfile_serialization=False)
with open("second.pt", "wb") as file:
    torch.save({"second": torch.arange(300.)}, file, _use_new_zipfile_serialization=False)
    torch.save(7, file, _use_new_zipfile_serialization=False)
torch.save({"model": state, "args": hyper}, "args.pt", _use_new_zipfile_serialization=False)
torch.save(Detector().state_dict(), "modules.pt")
class Whole(Detector):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False), torch.nn.ReLU(), torch.nn.Embedding(3, 2))
        self.tied = self.inner[2]
        self.register_buffer("passing", torch.ones(2), persistent=False)
        self.register_buffer("nothing", None)
        self.own = torch.nn.Parameter(torch.ones(2, 2))
whole = Whole()
torch.save(whole, "whole.module.pt")
torch.save(whole, "old.module.pt", _use_new_zipfile_serialization=False)
torch.save({"model": whole, "best": {"ema": whole}, "epoch": 1}, "inside.module.pt")
torch.save({"model": whole.state_dict(), "best": {"ema": whole.state_dict()}, "epoch": 1}, "states.pt")
torch.save(whole.state_dict(), "state.pt")
class Holding(Detector):
    def __init__(self):
        super().__init__()
        self.listed = [torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.ReLU())]
        self.named = {"a": (torch.nn.Linear(2, 2),)}
        self.again = [self.conv]
holding = Holding()
torch.save({"models": [whole], "model": holding}, "holding.module.pt")
torch.save({"model": holding.state_dict()}, "held.pt")
torch.save({"model": state}, "nested.pt")
torch.save({"ema": {name: tensor + 1 for name, tensor in state.items()}, "epoch": 3, "empty": []}, "ema.pt")
torch.save({"model": state, **torch.load("ema.pt")}, "both.pt")
for n in range(40):
    if n == 14:  # the names of one take some MiB
        torch.save({f"m{i}": whole for i in range(40)}, "of-one.pt")
    outer = torch.nn.Module()
    outer.a = outer.b = whole
    whole = outer
torch.save(whole, "shared.pt")
many = {f"t{i}": torch.ones(2) * i for i in range(40)}
torch.save(many, "many.pt")
torch.save({"new": 1, **{name: tensor + 1 for name, tensor in many.items()}}, "more.pt")
dcp.save({"a": torch.arange(4.), "b": torch.arange(3.)}, checkpoint_id="dcp", no_dist=True)
dcp.save({"a": torch.arange(4.), "h": hyper}, checkpoint_id="hyper", no_dist=True)
for name in ("lightning.ckpt", "detector.pt", "rng.pt", "script.pt", "subclass.pt", "protocol4.pt",
             "protocol5.pt", "legacy.pt", "args.pt"):
    data = open(name, "rb").read()
    open("cut." + name, "wb").write(data[:len(data) * 2 // 3])
    if "legacy" not in name and "args" not in name:
        changed = bytearray(data)
        changed[data.index(weight.numpy().tobytes()[:64]) + 5 if "detector" not in name and "script" not in name
                else data.index(b"/data/0FB") + 100] ^= 1
        open("changed." + name, "wb").write(changed)
"""

INERT = "(load.unknown_globals=inert lists such files without running anything): `berth ls --set " \
    "load.unknown_globals=inert {}`"
ENDED = "a download or a save in place that did not end?"
CUT = f"no end record: not a zip archive, or cut off: {ENDED}"
SCRIPT = "a TorchScript archive (it has constants.pkl): a program, which is never run, without values to " \
    "read: `berth ls -r script.pt` lists its records"
SAVES = "pickle_protocol={}, which PyTorch's weights_only=True refuses, too: `berth convert --set " \
    "load.unknown_globals=inert {} NEW.pt` saves it again without running anything"
NAMED = {"lightning.ckpt": ["argparse Namespace", "pathlib PurePosixPath"],
         "detector.pt": ["__main__ Detector", "torch.nn.modules.conv Conv2d", "torch.nn.modules.batchnorm BatchNorm2d"],
         "rng.pt": ["numpy._core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"],
         "subclass.pt": ["torch._utils _rebuild_wrapper_subclass", "torch.testing._internal.two_tensor TwoTensor"],
         "protocol5.pt": ["argparse Namespace", "pathlib PurePosixPath"],
         "args.pt": ["argparse Namespace", "pathlib PurePosixPath"]}
# A file, what the line before the verdict ends with, and what ends the verdict of the whole file.
WHOLE = [
    ("lightning.ckpt", INERT, None), ("detector.pt", INERT, None), ("rng.pt", INERT, None),
    ("subclass.pt", INERT, None), ("args.pt", INERT, None),
    ("script.pt", SCRIPT, "; but it is no checkpoint"),
    ("protocol4.pt", SAVES.format(4, "{}"), "; but its pickle is not allowed"),
    ("protocol5.pt", SAVES.format(5, "{}") + "; it names the global argparse Namespace, which Berth never calls", None),
]


def names_of(name):
    found = NAMED.get(name, [])
    return f"; it names {len(found)} classes or functions that are not allowed: " + ", ".join(found) if found else ""


class Verdicts(Case):
    @classmethod
    def setUpClass(cls):
        if subprocess.run([PYTHON, "-c", "import torch, numpy"], stderr=subprocess.DEVNULL).returncode:
            raise unittest.SkipTest("BERTH_PYTHON has no PyTorch")
        cls.made = tempfile.mkdtemp(prefix="berth-verdicts-")
        cls.addClassCleanup(shutil.rmtree, cls.made, ignore_errors=True)
        with open(os.path.join(cls.made, "make.py"), "w") as script:  # TorchScript reads the source
            script.write(MAKE)
        subprocess.run([PYTHON, "make.py"], cwd=cls.made, check=True, timeout=300, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)

    def setUp(self):
        super().setUp()
        shutil.copytree(self.made, self.folder, dirs_exist_ok=True)

    def test_whole_files_are_intact_and_all_that_they_name_is_listed(self):
        for name, says, ends in WHOLE:
            with self.subTest(name):
                lines = self.berth("verify", name, code=1).out.splitlines()
                self.assertEqual(len(lines), 2, lines)
                said = says.format(name).partition("; it names the global ")[0]  # the last line lists all of them
                self.assertTrue(lines[0].endswith(said), lines[0])
                self.assertRegex(lines[1], r"\Aintact: \d+ records, ")
                self.assertTrue(lines[1].endswith(ends or names_of(name)), lines[1])
                found = json.loads(self.berth("verify", "--json", name, code=1).out)
                self.assertEqual((found["ok"], found["intact"], found["allowed"], found["bad"]),
                                 (False, True, False, []))
                self.assertTrue(found["reason"].endswith(says.format(name)))
                refused = [f"{row['module']} {row['name']}" for row in found["globals"] if not row["allowed"]]
                if name in NAMED:
                    self.assertEqual(refused, NAMED[name])
        self.assertRegex(self.berth("verify", "legacy.pt").out, r"\Aok: 2 records, 2 storages, ")
        found = json.loads(self.berth("verify", "--json", "legacy.pt").out)
        self.assertEqual((found["ok"], found["intact"], found["allowed"]), (True, True, True))

    def test_damage_is_told_as_damage_whatever_the_pickle_names(self):
        for name, _, _ in WHOLE:
            with self.subTest(name):
                says = ENDED if name == "args.pt" else CUT
                line = self.berth("verify", f"cut.{name}", code=1).out
                self.assertTrue(line.startswith(f"bad: cut.{name}: ") and says in line, line)
                if name in ("lightning.ckpt", "detector.pt", "subclass.pt", "protocol5.pt"):
                    self.assertTrue(line.endswith(names_of(name) + "\n"), line)
                self.assertFalse(json.loads(self.berth("verify", "--json", f"cut.{name}", code=1).out)["intact"])
                for command in ("info",) if name == "args.pt" else ("info", "ls"):
                    self.assertIn(says, self.refused(command, f"cut.{name}", code=1))
                if name == "args.pt":
                    continue
                lines = self.berth("verify", f"changed.{name}", code=1).out.splitlines()
                self.assertIn("its bytes have CRC ", lines[0])
                self.assertRegex(lines[-1], r"\Abad: 1 of \d+ records")
                if name != "script.pt":
                    self.assertTrue(lines[-1].endswith(names_of(name)), lines[-1])
        self.assertIn(ENDED, self.berth("verify", "cut.legacy.pt", code=1).out)

    def test_info_shows_a_refused_file_and_what_it_names(self):
        for name, says, _ in WHOLE:
            with self.subTest(name):
                done = self.berth("info", name, code=1)
                self.assertTrue(done.err.endswith(says.format(name) + "\n"), done.err)
                self.assertEqual(done.err.count("\n"), 1)
                self.assertRegex(done.out, r"\Acontainer +(zip|legacy)")
                self.assertIn(f"\nintact             by its directory; `berth verify {name}` reads", done.out)
                if name in NAMED:
                    self.assertIn("not allowed        " + names_of(name)[2:], done.out)
                found = json.loads(self.berth("info", "--json", name, code=1).out)
                self.assertFalse(found["allowed"])
                self.assertTrue(found["reason"].endswith(says.format(name)))

    def test_info_answers_both_of_a_file_that_is_not_whole(self):
        for name, _, _ in WHOLE:
            with self.subTest(name):
                done = self.berth("info", f"cut.{name}", code=1)
                verified = json.loads(self.berth("verify", "--json", f"cut.{name}", code=1).out)
                self.assertTrue(done.out.startswith("intact             no\n"), done.out)
                refused = [row for row in verified["globals"] if not row["allowed"]]
                self.assertEqual("not allowed        it names" in done.out,
                                 bool(refused) and "globals_unknown" not in verified, done.out)
                found = json.loads(self.berth("info", "--json", f"cut.{name}", code=1).out)
                self.assertEqual([found[key] for key in ("intact", "globals", "reason")],
                                 [False, verified["globals"], verified["reason"]])
        self.write("elf", b"\x7fELF" + bytes(60))
        found = json.loads(self.berth("info", "--json", "elf", code=1).out)
        self.assertEqual(found["reason"], "elf: an ELF program or library, not a checkpoint")

    def test_protocols_4_and_5_are_saved_again_safely(self):
        for name in ("protocol4.pt", "protocol5.pt"):
            self.berth("convert", "--set", "load.unknown_globals=inert", name, "new.pt")
            self.berth("diff", "--set", "load.unknown_globals=inert", name, "new.pt")

    def test_a_state_dict_and_its_safetensors_form_are_equal(self):
        self.berth("convert", "modules.pt", "modules.safetensors")
        for words in (("modules.pt", "modules.safetensors"), ("modules.safetensors", "modules.pt")):
            self.assertEqual(self.berth("diff", *words).out, "equal\n")
        # The version numbers of its modules: between two .pt files they are compared.
        self.berth("convert", "modules.safetensors", "plain.pt")
        self.assertEqual(self.berth("diff", "modules.pt", "plain.pt", code=1).out,
                         ".__dict__: only in: modules.pt | \ndifferent: only in: 1\n")

    def test_a_pickled_module_becomes_its_state_dict(self):
        def names(path):
            return [row["name"] for row in json.loads(self.berth("ls", "--json", path).out)]

        self.berth("convert", "state.pt", "state.safetensors")
        for words in (["whole.module.pt"], ["old.module.pt"], ["--root", "model", "inside.module.pt"]):
            with self.subTest(words):
                self.berth("convert", "--state-dict", *words, "new.pt")
                self.assertEqual(names("new.pt"), names("state.pt"))
                self.assertEqual(self.berth("diff", "new.pt", "state.safetensors").out, "equal\n")
                self.berth("convert", "--state-dict", *words, "new.safetensors")
                self.assertEqual(self.read("new.safetensors"), self.read("state.safetensors"))
        self.berth("convert", "--state-dict", "inside.module.pt", "new.pt")
        self.assertEqual(names("new.pt"), names("states.pt"))
        self.berth("convert", "--state-dict", "state.pt", "same.pt")
        self.assertEqual(self.berth("diff", "same.pt", "state.pt").out, "equal\n")
        inert = "--set", "load.unknown_globals=inert"
        for name in ("whole.module.pt", "inside.module.pt"):
            self.refused("convert", *inert, name, "no.safetensors",
                         says="; --state-dict writes the state_dict of a pickled module\n")
        for name in ("shared.pt", "of-one.pt"):
            self.assertEqual(self.refused("convert", "--state-dict", name, "no.pt", code=1),
                             "berth: the names of its modules take more than 64 MiB: Berth does not write them\n")
        self.assertFalse(os.path.exists(self.path("no.pt")))

    def test_modules_that_no_state_dict_has_are_told(self):
        out = "berth: holding.module.pt: left out 3 modules in lists, dicts and objects, as PyTorch's state_dict() " \
            "does: {0}['listed'][0], {0}['listed'][1], {0}['named']['a'][0]\n"
        stays = "berth: holding.module.pt: 1 module in lists and objects, not in dicts, stays as pickled: " \
            "['models'][0]; --root takes one out\n"
        for words, told in ((["--root", "model"], out.format("")), (["-q"], ""), ([], out.format("['model']") + stays)):
            done = self.berth("convert", "--state-dict", *words, "holding.module.pt", "new.pt")
            self.assertEqual(done.err, told)
        self.berth("convert", "--state-dict", "-q", "--only", "model", "holding.module.pt", "new.pt")
        self.berth("convert", "held.pt", "held.safetensors")
        self.assertEqual(self.berth("diff", "new.pt", "held.safetensors").out, "equal\n")
        for words, names in ((["--only", "*.norm.b*"], ["model.norm.bias"]), (["--without", "model.norm"],
                             ["model.conv.weight", "model.conv.bias"])):
            self.berth("convert", "--state-dict", "-q", *words, "--without", "models", "holding.module.pt", "new.pt")
            self.assertEqual([row["name"] for row in json.loads(self.berth("ls", "--json", "new.pt").out)], names)
        self.refused("convert", "--state-dict", "-q", "--only", "model.listed", "holding.module.pt", "no.pt", code=1,
                     says="--only 'model.listed' matches nothing")

    def test_names_of_dicts_in_dicts_are_those_of_safetensors(self):
        self.berth("convert", "nested.pt", "full.safetensors")
        self.berth("convert", "--without", "model.layer.bias", "nested.pt", "less.safetensors")
        for name, kind in (("bare", "pt"), ("bare.safetensors", "safetensors")):
            self.berth("convert", "--to", kind, "--root", "model", "nested.pt", name)

        def below(one, other, prefix="model."):
            return f"names of {one} below '{prefix}' are compared with those of {other}\n"

        ema = "ema.layer.{0}: only in: both.pt | \n"
        for one, other, says in (
                ("nested.pt", "full.safetensors", "equal\n"),
                ("nested.pt", "bare.safetensors", below("nested.pt", "bare.safetensors") + "equal\n"),
                ("bare.safetensors", "nested.pt", below("nested.pt", "bare.safetensors") + "equal\n"),
                ("bare.safetensors", "full.safetensors", below("full.safetensors", "bare.safetensors") + "equal\n"),
                ("full.safetensors", "bare", below("full.safetensors", "bare") + "equal\n"),
                ("nested.pt", "less.safetensors",
                 "model.layer.bias: only in: nested.pt | \ndifferent: only in: 1\n"),
                ("ema.pt", "bare.safetensors", below("ema.pt", "bare.safetensors", "ema.") +
                 "layer.bias: bytes: first at element 0 | of 3\nlayer.weight: bytes: first at element 0 | of 600\n"
                 "['epoch']: only in: ema.pt | \ndifferent: only in: 1, bytes: 2\n"),
                ("both.pt", "bare.safetensors", below("both.pt", "bare.safetensors") + ema.format("bias") +
                 ema.format("weight") + "['epoch']: only in: both.pt | \ndifferent: only in: 3\n"),
                # Two pickles have dicts in dicts, and are compared with them.
                ("nested.pt", "bare", "['layer.bias']: only in:  | bare\n['layer.weight']: only in:  | bare\n"
                 "['model']: only in: nested.pt | \ndifferent: only in: 3\n")):
            with self.subTest(one, other=other):
                code = 0 if says.endswith("equal\n") else 1
                self.assertEqual(self.berth("diff", one, other, code=code).out, says)
        found = json.loads(self.berth("diff", "--json", "ema.pt", "bare.safetensors", code=1).out)
        self.assertEqual((found["prefix"], found["prefix_of"], len(found["differences"])), ("ema.", "ema.pt", 3))
        self.assertEqual(self.berth("diff", "-q", "nested.pt", "bare.safetensors").out, "")

    def test_a_long_difference_is_a_summary(self):
        lines = self.berth("diff", "many.pt", "more.pt", code=1).out.splitlines()
        self.assertEqual(len(lines), 21)
        self.assertEqual(lines[-1], "different: only in: 1, bytes: 40; 20 of 41 differences are shown, `--all` shows "
                         "them all")
        lines = self.berth("diff", "--all", "many.pt", "more.pt", code=1).out.splitlines()
        self.assertEqual((len(lines), lines[-1]), (42, "different: only in: 1, bytes: 40"))
        found = json.loads(self.berth("diff", "--json", "many.pt", "more.pt", code=1).out)
        self.assertEqual(len(found["differences"]), 41)

    def test_bytes_behind_the_last(self):
        self.berth("convert", "--root", "model", self.demo, "m.safetensors")
        whole, legacy = self.read("m.safetensors"), self.read("legacy.pt")
        for name, data, suffix in (("m.safetensors", whole, ".safetensors"), ("legacy.pt", legacy, ".pt"),
                                   ("demo.pt", self.read("demo.pt"), ".pt")):
            with self.subTest(name):
                self.write("long", data + b"extra bytes")
                line = self.berth("verify", "long", code=1).out
                self.assertIn(f"`head -c {len(data)} long >NEW{suffix}` leaves", line)
                self.assertIn("11 bytes follow the ", line)
                for n in (len(data) - 1, len(data) // 2):
                    self.write("short", data[:n])
                    self.assertIn(ENDED, self.berth("verify", "short", code=1).out)

    def test_several_objects_in_one_file(self):
        """torch.load of the path reads the first; no command is silent about the others, or calls them damage."""
        first = self.read("legacy.pt")
        second, path = self.read("second.pt"), "several of it.pt"
        self.write(path, first + second)
        says = (f"{len(second)} bytes of further objects, which torch.save wrote to the same file; Berth reads the "
                f"first, as torch.load of a path does: `tail -c +{len(first) + 1} '{path}' >NEW.pt` makes a file of "
                "the others")
        lines = self.berth("verify", path).out.splitlines()
        self.assertEqual(lines[0], f"behind the first: {says}")
        self.assertTrue(lines[1].startswith("ok: "), lines)
        self.assertIn(f"\nbehind the first   {says}\n", self.berth("info", path).out)
        for words in (["ls", path], ["show", path], ["convert", path, "new.pt"], ["diff", path, "legacy.pt"], ["map", path]):
            with self.subTest(words):
                self.assertIn(f"berth: {path}: behind what is read: {says}\n", self.berth(*words).err)
                self.assertNotIn("behind", self.berth(*words[:1], "-q", *words[1:]).err)
        for words in ["verify"], ["info"]:
            self.assertEqual(json.loads(self.berth(*words, "--json", path).out)["behind_nbytes"], len(second))
            self.assertEqual(json.loads(self.berth(*words, "--json", "legacy.pt").out)["behind_nbytes"], 0)
        self.pasted(lines[0])
        self.assertEqual(self.read("NEW.pt"), second)
        done = subprocess.run([BERTH, "verify", "-"], input=first + second, capture_output=True, check=True)
        self.assertEqual(done.stdout.decode().splitlines(),
                         [lines[0].replace(f"'{path}'", "/dev/stdin"), lines[1]])
        self.write(path, first + second[:-900])
        line = self.berth("verify", path, code=1).out
        self.assertIn(f"bad: {path} from byte {len(first)} on: storage ", line)
        self.assertIn(ENDED, line)
        self.pasted(line)
        self.assertEqual(self.read("NEW.pt"), first)

    def test_an_index_without_a_file_and_a_broken_piece(self):
        self.berth("convert", "--root", "model", "--shard-size", "300KB", self.demo, "m.safetensors.index.json")
        self.berth("verify", "m.safetensors.index.json")
        gone = sorted(name for name in self.entries() if name.startswith("m-"))[1]
        os.remove(self.path(gone))
        done = self.berth("verify", "m.safetensors.index.json", code=1)
        lines, says = done.out.splitlines(), f"{gone}: cannot be opened: No such file or directory"
        self.assertEqual(lines[1], f"{gone}: missing: {says}")
        self.assertTrue(all(": ok: " in line for line in (lines[0], *lines[2:-1])), lines)
        self.assertRegex(lines[-1], r"\Am\.safetensors\.index\.json: bad: not all of its \d+ files can be opened\Z")
        self.assertEqual(done.err, "")
        found = json.loads(self.berth("verify", "--json", "m.safetensors.index.json", code=1).out)
        self.assertEqual([row["ok"] for row in found], [True, False, *[True] * (len(found) - 3), False])
        self.assertEqual((found[1]["intact"], found[1]["reason"]), (False, says))
        for words in (["info"], ["ls"]):  # what the others have is shown
            self.assertEqual(self.berth(*words, "m.safetensors.index.json", code=1).err, f"berth: {says}\n")
            self.assertEqual(self.berth(*words, gone, code=2).err, f"berth: {says}\n")
        self.berth("verify", "dcp")
        data = bytearray(self.read("dcp/__0_0.distcp"))
        data[data.index(b"\x00\x00\x80\x3f\x00\x00\x00\x40")] ^= 1  # an element of one of them
        self.write("dcp/__0_0.distcp", data)
        done = self.berth("verify", "dcp", code=1)
        self.assertRegex(done.out, r"\A\"[ab]\": .*its bytes have CRC .*\nbad: 1 of 2 pieces\n\Z")
        found = json.loads(self.berth("verify", "--json", "dcp", code=1).out)
        self.assertEqual((found["ok"], found["intact"], found["allowed"], found["globals"]), (False, False, True, []))

    def test_each_piece_of_a_directory_has_its_verdict(self):
        """Also if another one is cut off, or is not there."""
        data = bytearray(self.read("dcp/__0_0.distcp"))
        data[data.index(b"\x00\x00\x80\x3f\x00\x00\x00\x40")] ^= 1
        self.write("dcp/__0_0.distcp", data[:-1])
        lines = self.berth("verify", "dcp", code=1).out.splitlines()
        self.assertEqual(len(lines), 3, lines)
        self.assertEqual(sorted(line[:3] for line in lines[:2]), ['"a"', '"b"'])
        self.assertEqual(sum("its bytes have CRC" in line for line in lines), 1, lines)
        self.assertEqual(sum(line.endswith(f"are not in __0_0.distcp, which has {len(data) - 1}: {ENDED}")
                             for line in lines), 1, lines)
        self.assertEqual(lines[2], "bad: 2 of 2 pieces")
        os.remove(self.path("dcp/__0_0.distcp"))
        self.assertEqual(self.berth("verify", "dcp", code=1).out, "".join(
            f'"{name}": __0_0.distcp: No such file or directory\n' for name in "ab") + "bad: 2 of 2 pieces\n")
        found = json.loads(self.berth("verify", "--json", "dcp", code=1).out)
        self.assertEqual((found["ok"], found["intact"], found["pieces"], found["nbytes"]), (False, False, 2, 0))
        self.assertEqual([(row["name"], row["intact"]) for row in found["bad"]], [("a", False), ("b", False)])

    def test_a_bare_pickle_names_its_globals_once(self):
        for protocol in (2, 5):
            self.write("one.pkl", pickle.dumps(argparse.Namespace(), protocol))
            self.write("two.pkl", pickle.dumps([argparse.Namespace(), pathlib.PurePosixPath("a")], protocol))
            for name, names in (("one.pkl", "1 class or function that is not allowed: argparse Namespace"),
                                ("two.pkl", "2 classes or functions that are not allowed: argparse Namespace, "
                                            "pathlib PurePosixPath")):
                self.assertEqual(self.berth("verify", name, code=1).out,
                                 f"bad: {name}: a bare pickle, not a PyTorch checkpoint; it names {names}\n")

    def test_a_directory_that_is_whole_and_names_classes(self):
        lines = self.berth("verify", "hyper", code=1).out.splitlines()
        self.assertRegex(lines[0], r"\A\"h\": hyper/__0_0\.distcp at byte .* is not allowed")
        self.assertTrue(lines[0].endswith(INERT.format("hyper")), lines[0])
        self.assertTrue(lines[1].startswith("intact: 2 values in 2 pieces, "), lines)
        self.assertTrue(lines[1].endswith(names_of("lightning.ckpt")), lines)
        self.assertEqual(len(lines), 2)
        found = json.loads(self.berth("verify", "--json", "hyper", code=1).out)
        self.assertEqual((found["ok"], found["intact"], found["allowed"]), (False, True, False))
        self.assertEqual([row["name"] for row in found["globals"]], ["Namespace", "PurePosixPath"])
        data = self.read("hyper/__0_0.distcp")
        at = data.index(b"\x00\x00\x80\x3f\x00\x00\x00\x40")
        self.write("hyper/__0_0.distcp", data[:at] + b"\1" + data[at + 1:])
        lines = self.berth("verify", "hyper", code=1).out.splitlines()
        self.assertEqual([line[:5] for line in lines], ['"a": ', '"h": ', "bad: "])
        self.assertTrue(lines[2].endswith("1 of 2 pieces" + names_of("lightning.ckpt")), lines)

    def pasted(self, line, before=""):
        """Runs the command that a line has in it, as it stands there."""
        step = re.search(r": `(.*?)`", line).group(1)
        self.assertNotIn("FILE", step)
        done = subprocess.run(["bash", "-c", 'berth() { "$BERTH" "$@"; }; ' + before + step], cwd=self.folder,
                              env=dict(os.environ, BERTH=BERTH), capture_output=True, stdin=subprocess.DEVNULL,
                              timeout=600, check=False)
        self.assertEqual(done.returncode, 0, (step, done.stderr))

    def test_next_steps_can_be_pasted_whatever_the_name(self):
        for name in ("x.bin", "x.ckpt", "noext", "two words.pt", "it's.pt", "-dash.pt", "$(touch no).pt", "a;b",
                     "\u00e4.pt", "d" * 60 + "/" + "e" * 60 + ".pt"):
            for made in ("lightning.ckpt", "protocol4.pt", "protocol5.pt", "script.pt"):
                with self.subTest(name, made=made):
                    os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
                    shutil.copy(self.path(made), self.path(name))
                    self.pasted(self.berth("verify", "--", name, code=1).out)
                    self.pasted(self.refused("convert", "--", name, "OUT.pt", code=1))
                    if made.startswith("protocol"):
                        self.berth("diff", "--set", "load.unknown_globals=inert", "--", name, "NEW.pt")
                        os.remove(self.path("NEW.pt"))
                    self.assertNotIn("`berth verify IN`", self.berth("info", "--", name, code=1).out)
        self.assertFalse(os.path.exists(self.path("no")))
        shutil.copy(self.path("lightning.ckpt"), os.fsencode(self.path("")) + b"\xff.pt")
        done = subprocess.run([os.fsencode(BERTH), b"ls", b"\xff.pt"], cwd=self.folder, capture_output=True,
                              check=False)  # no terminal shows the name: no step can be pasted
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"is not allowed in a checkpoint", done.stderr)
        self.assertNotIn(b"`", done.stderr)
        for made in ("protocol4.pt", "script.pt"):  # the tool is named, but no file that the shell takes
            shutil.copy(self.path(made), os.fsencode(self.path("")) + b"\xff.pt")
            for command in (b"verify", b"info", b"ls"):
                done = subprocess.run([os.fsencode(BERTH), command, b"\xff.pt"], cwd=self.folder, capture_output=True,
                                      check=False)
                self.assertNotRegex(done.stdout + done.stderr, rb"\b(FILE|IN|NEW\.pt)\b")
                self.assertRegex(done.stdout + done.stderr, rb": `berth (ls -r|convert --set \S+)` ")

    def test_a_pipe_has_the_same_answers(self):
        for name in ("lightning.ckpt", "protocol4.pt", "script.pt", "cut.lightning.ckpt"):
            plain = self.berth("verify", name, code=1).out.replace(name, "/dev/stdin")
            for word in ("-", "/dev/stdin"):
                with self.subTest(name, word=word):
                    piped = subprocess.run([BERTH, "verify", word], input=self.read(name), cwd=self.folder,
                                           capture_output=True, check=False)
                    self.assertEqual((piped.returncode, piped.stdout.decode(), piped.stderr), (1, plain, b""))
                    if "`" in plain:
                        self.pasted(plain, before=f"cat {name} | ")

    def test_a_pipe_that_has_a_name_comes_with_the_words_that_read_it(self):
        for name in ("fifo", "two words", "it's", "-dash", "$(touch no)"):
            os.mkfifo(self.path(name))
            for words in (["verify"], ["info"], ["ls"], ["diff", "modules.pt"]):
                with self.subTest(name, words=words):
                    line = self.refused(*words, "--", name, code=2)
                    self.assertIn(f"{name}: is a pipe, which is read only as standard input: in its place, `", line)
                    self.assertEqual(self.berth(*words, "--", name, code=2).out, "")
                    step = re.search(r": in its place, `(.*)` reads it$", line).group(1)
                    done = subprocess.run(["bash", "-c", f'cat modules.pt >"$1" & "$0" {" ".join(words)} {step}',
                                           BERTH, "./" + name], cwd=self.folder, stdout=subprocess.DEVNULL,
                                          timeout=600, check=False)
                    self.assertEqual(done.returncode, 0, step)
        self.assertFalse(os.path.exists(self.path("no")))
        os.mkfifo(self.path("m.safetensors.index.json"))
        self.assertEqual(self.refused("verify", "m.safetensors.index.json", code=2),
                         "berth: m.safetensors.index.json: is a pipe: an index is read only as a file\n")
        os.mkfifo(self.path("\u202e"))  # no terminal shows it
        self.assertNotIn("`", self.refused("verify", "\u202e", code=2))
        shell = ["bash", "-c", '"$0" verify <(cat modules.pt)', BERTH]
        done = subprocess.run(shell, cwd=self.folder, capture_output=True, text=True, timeout=600, check=False)
        step = re.search(r"is a pipe, .*: in its place, `(.*)` reads it$", done.stderr).group(1)
        self.assertEqual(step, "- < <(...)")
        shell[2] = '"$0" verify ' + step.replace("...", "cat modules.pt")
        subprocess.run(shell, cwd=self.folder, stdout=subprocess.DEVNULL, timeout=600, check=True)

    def test_files_that_the_kernel_makes(self):
        """None is empty, and none was cut."""
        for path, says in (("/proc/version", "does not report its size, as files of /proc do not: read it into memory or"),
                           ("/sys/kernel/mm/transparent_hugepage/enabled", "reports a larger size, as files of /sys do")):
            if os.path.exists(path):
                self.assertIn(says, self.berth("verify", path, code=1).out)
                self.assertIn(says, self.refused("ls", path, code=1))
                self.assertIn(says, self.berth("info", path, code=1).err)

    @unittest.skipUnless(shutil.which("strace"), "no strace")
    def test_what_it_names_cannot_be_listed(self):
        """The disk fails at one read: a verdict on the file stays, whatever it names."""
        said = set()
        path = self.path("lightning.ckpt")
        for when in range(1, 9):
            done = subprocess.run(
                ["strace", "-f", "-qq", "-o", "/dev/null", "-P", path, "-e", "trace=pread64",
                 f"--inject=pread64:error=EIO:when={when}", BERTH, "verify", path],
                cwd=self.folder, capture_output=True, check=False)
            out = done.stdout.decode()
            said.add("unlisted" if "intact: " in out and "; it names what cannot be listed: " in out
                     else "listed" if out.endswith(names_of("lightning.ckpt") + "\n") else "unread")
            self.assertEqual(done.returncode, 1 if out else 2)
        self.assertEqual(said, {"unread", "unlisted", "listed"})
