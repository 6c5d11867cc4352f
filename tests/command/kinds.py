# SPDX-License-Identifier: BSD-3-Clause
"""Files that are no checkpoints, made by the tools that make them: what berth says they are.

The commands that berth says are run, where this machine has the tool; what they make is opened.
"""

import os
import re
import shutil
import subprocess

from case import BERTH, Case

PYTHON = os.environ.get("BERTH_PYTHON", "python3")

MAKE = """
import warnings, numpy, torch
import torch.distributed.checkpoint as dcp
warnings.simplefilter("ignore")
numpy.save("a.npy", numpy.arange(6))
numpy.savez("a.npz", w=numpy.arange(6))
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.layer(x)
torch.jit.save(torch.jit.script(Model()), "script.pt")
dcp.save({"a": torch.arange(4.), "b": torch.arange(3.)}, checkpoint_id="dcp", no_dist=True)
"""

# Each file, its sentence, and what the pasted command makes; None: it makes nothing to open.
NPY = ('an array of NumPy (.npy), not a PyTorch checkpoint: `python3 -c "import sys, numpy, torch; '
       'torch.save(torch.from_numpy(numpy.load(sys.argv[1])), \'NEW.pt\')" a.npy` makes one of it '
       "if it holds numbers in this machine's byte order")
NPZ = ('arrays of NumPy (.npz), not a PyTorch checkpoint: `python3 -c "import sys, numpy, torch; '
       'torch.save({k: torch.from_numpy(v) for k, v in numpy.load(sys.argv[1]).items()}, '
       '\'NEW.pt\')" a.npz` makes one of them if they are numbers in this '
       "machine's byte order")
DCP = ("the .metadata of a checkpoint of torch.distributed.checkpoint: `berth convert dcp NEW.pt` makes "
       "a checkpoint of its directory")
BY_PYTHON = [
    ("a.npy", NPY, "NEW.pt"), ("a.npz", NPZ, "NEW.pt"),
    ("script.pt", "a TorchScript archive (it has constants.pkl): a program, which is never run, "
     "without values to read: `berth ls -r script.pt` lists its records", None),
    ("dcp/.metadata", DCP, "NEW.pt"),
    ("dcp/__0_0.distcp", DCP.replace("the .metadata of a checkpoint of torch.distributed.checkpoint",
     "a shard of torch.distributed.checkpoint, one archive for each tensor"), "NEW.pt"),
]
BY_TOOLS = [
    ("gzip -c demo.pt >x.gz", "x.gz", "compressed by gzip: `gzip -dc x.gz >NEW.pt` unpacks it", "NEW.pt"),
    ("xz -c demo.pt >x.xz", "x.xz", "compressed by xz: `xz -dc x.xz >NEW.pt` unpacks it", "NEW.pt"),
    ("bzip2 -c demo.pt >x.bz2", "x.bz2", "compressed by bzip2: `bzip2 -dc x.bz2 >NEW.pt` unpacks it",
     "NEW.pt"),
    ("zstd -q -c demo.pt >'x y.zst'", "x y.zst",
     "compressed by zstd: `zstd -dc 'x y.zst' >NEW.pt` unpacks it", "NEW.pt"),
    ("tar cf x.tar demo.pt; rm demo.pt", "x.tar",
     "a tar archive, not a PyTorch checkpoint: `tar -xf x.tar` unpacks it", "demo.pt"),
    ("zip -q x.zip demo.pt; rm demo.pt", "x.zip",
     "a zip archive that holds a .pt file: `unzip x.zip` unpacks it", "demo.pt"),
    ("rm -rf f f.zip; mkdir f; mv demo.pt f; zip -q -r f.zip f; rm -r f", "f.zip",
     "a zip archive that holds a .pt file: `unzip f.zip` unpacks it", "f/demo.pt"),
    ("rm -rf f f.zip; mkdir f; cd f; unzip -q ../demo.pt; cd ..; zip -q -r f.zip f; rm -r f", "f.zip",
     "a zip archive that holds a checkpoint's folder in another folder: `unzip -d NEW f.zip && (cd NEW/* && "
     "zip -0r ../../NEW.pt *)` leaves the other folder out", "NEW.pt"),
    ("(cat demo.pt; echo bye) >x.pt", "x.pt", "at byte 1055651: 4 bytes follow the archive, which ends "
     "here: `head -c 1055651 x.pt >NEW.pt` leaves them out", "NEW.pt"),
    ("cat demo.pt demo.pt >x.pt", "x.pt", "at byte 1055651: several archives in one file: the last one "
     "begins here: `tail -c +1055652 x.pt >NEW.pt` takes it out", "NEW.pt"),
]


class Kinds(Case):
    def told(self, name, says):
        self.assertEqual(self.berth("info", name, code=1).err, f"berth: {name}: {says}\n")

    def pasted(self, says):
        command = re.search("`(.*)`", says).group(1)
        folder = self.path("bin")
        os.makedirs(folder, exist_ok=True)
        if not os.path.lexists(os.path.join(folder, "python3")):
            with open(os.path.join(folder, "python3"), "w") as script:
                script.write(f'#!/bin/sh\nexec "{PYTHON}" "$@"\n')
            os.chmod(os.path.join(folder, "python3"), 0o755)
            os.symlink(BERTH, os.path.join(folder, "berth"))
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=600,
                              env=dict(os.environ, PATH=folder + ":" + os.environ["PATH"]))
        self.assertEqual(done.returncode, 0, (command, done.stdout))

    def test_files_of_pytorch_and_numpy(self):
        if subprocess.run([PYTHON, "-c", "import torch, numpy"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("BERTH_PYTHON has no PyTorch")
        self.write("make.py", MAKE.encode())  # TorchScript reads the source of what it compiles
        subprocess.run([PYTHON, "make.py"], cwd=self.folder, check=True, timeout=300,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name, says, made in BY_PYTHON:
            with self.subTest(name):
                self.told(name, says)
                if made:
                    self.pasted(says)
                    self.berth("verify", made)
                    os.remove(self.path(made))

    def test_files_of_other_tools(self):
        for make, name, says, made in BY_TOOLS:
            with self.subTest(make):
                if not all(shutil.which(word) for word in re.findall("^(?:rm -rf f f.zip; mkdir f; .*; (?=zip))?(\\w+)", make)
                           + (["unzip"] if "zip" in name else [])):
                    continue
                self.berth("demo", self.demo)
                subprocess.run(make, shell=True, cwd=self.folder, check=True)
                self.told(name, says)
                if made:
                    self.pasted(says)
                    self.berth("verify", "--set", "debug=off", made)  # it is repacked
                    os.remove(self.path(made))
