# SPDX-License-Identifier: BSD-3-Clause
"""The Python programs on the pages: each runs as it stands there, in a folder of its own."""

import importlib.util
import os
import re
import textwrap
import unittest

import starter
from folder import Folder

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PAGES = ("README.md", "docs/python.md", "docs/map.md", "docs/urls.md", "docs/file-systems.md")

# What a reader has before the first line: a model, its optimizer, a training.
SETUP = """
import os, sys
os.chdir(sys.argv[1])
import torch

model, other = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
optimizer, its = (torch.optim.Adam(each.parameters()) for each in (model, other))

def train(vectors=torch.ones(2, 3)):
    model(vectors.float()[..., :3]).sum().backward()
    optimizer.step()
"""
BERTH = "import berth\n"

# (page, heading above the program) -> (what else is needed before it, what must be true after it), or why
# it does not run.
PROGRAMS = {
    ("README.md", "Berth"): ("", "assert os.listdir() == ['model.pt']"),
    ("docs/python.md", "Saving and loading"): ("", """
assert all(torch.equal(each["model"]["weight"], torch.ones(2, 3)) for each in (again, mapped, torch.load("model.pt")))
"""),
    ("docs/python.md", "Instead of torch.save and torch.load"): ("""
class trainer:
    def fit(model):
        before = berth.counters()["save"]["values"]
        torch.save(model.state_dict(), "model.pt")
        assert berth.counters()["save"]["values"] == before + 1
import berth
""", "trainer.fit(model)\nberth.uninstall()\nassert torch.save.__module__ == 'torch.serialization'"),
    ("docs/python.md", "Asynchronous saves"): (BERTH + """
state = {"model": model.state_dict()}
before = model.weight.detach().clone()
""", """
assert torch.equal(berth.load("model.pt")["model"]["weight"], before)
assert not torch.equal(model.weight, before)
"""),
    ("docs/python.md", "What did not change"): (BERTH + """
state = {"model": model.state_dict()}
""", """
berth.save(state, "model.pt", base="model.pt")
assert torch.equal(berth.load("model.pt")["model"]["weight"], model.weight)
"""),
    ("docs/python.md", "One tensor at a time"): (BERTH + """
state = {"model": {"layers": {"0": {"weight": torch.rand(3, 4)}},
                   "embedding": {"weight": torch.rand(2000, 8)}}, "epoch": 7}
torch.save(state, "model.pt")
""", """
assert torch.equal(weight, state["model"]["layers"]["0"]["weight"]) and epoch == 7
assert torch.equal(rows, state["model"]["embedding"]["weight"][1000:1100])
assert (torch.tensor(array) == weight).all()
"""),
    ("docs/python.md", "Is it whole, and what does it name"): (BERTH + """
import argparse
torch.save([argparse.Namespace(), torch.ones(2)], "model.pt")
""", """
assert report.intact and not report and report.refused == ["argparse.Namespace"]
with torch.serialization.safe_globals([argparse.Namespace]):
    assert berth.load("model.pt")[1].sum() == 2 and berth.verify("model.pt").refused == report.refused
"""),
    ("docs/python.md", "Rows of large tables"): (BERTH + """
tables = {each: {"weight": torch.rand(1000, 8)} for each in ("users", "items")}
torch.save(tables, "model.pt")
ids, others, next_ids = (torch.randint(0, 1000, (5, 2)) for _ in range(3))
buffer = torch.empty(5, 2, 8)
""", """
assert torch.equal(vectors, tables["users"]["weight"][next_ids])
assert torch.equal(buffer, tables["users"]["weight"][ids]) and torch.equal(a, buffer)
assert torch.equal(b, tables["items"]["weight"][others])
"""),
    ("docs/python.md", "Many processes, one file"): ("", """
assert state["step"] == 7 and torch.equal(other.weight, model.weight)
assert berth.load("model.pt")["step"] == 7
"""),
    ("docs/python.md", "With Lightning"): ("from pytorch_lightning import Trainer", """
import logging, pytorch_lightning, berth
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

class Module(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
    def training_step(self, batch):
        return self.linear(batch).sum()
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

trainer.fit_loop.max_epochs = 1
trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(4, 3)))
trainer.save_checkpoint("last.ckpt")
trainer.strategy.checkpoint_io.teardown()
assert berth.load("last.ckpt", weights_only=False)["epoch"] == 1
"""),
    ("docs/python.md", "Options"): (BERTH + "torch.save([1], 'model.pt')", """
assert state == [1] and berth.config.save.durability == "file"
"""),
    ("docs/map.md", "Where the bytes lie"): ("", "assert os.path.getsize('model.pt') > 100_000"),
    ("docs/urls.md", "URLs"): "needs servers, which tests/url/run has",
    ("docs/urls.md", "Saving to S3"): "likewise",
    ("docs/urls.md", "By many processes"): "likewise",
    ("docs/file-systems.md", "Under berth.install()"): ("""
import tempfile, berth
state = model.state_dict()
berth.install()
""", "assert os.listdir() == []"),
}
NEEDS = {("docs/python.md", "With Lightning"): "pytorch_lightning"}
PRINTED = {("README.md", "Berth"): "5.0\n"}


def programs():
    """((page, the heading above it), program) of each Python block on the pages."""
    for page in PAGES:
        heading = None
        with open(os.path.join(ROOT, page), encoding="utf-8") as file:
            text = file.read()
        for title, program in re.findall(r"^#+ ([^\n]*)$|^```python\n(.*?)^```$", text, flags=re.M | re.S):
            heading = title or heading
            if program:
                yield (page, heading), program


class Pages(Folder):
    def test_each_program_is_known(self):
        """A new one needs a row, and its heading is its name."""
        self.assertEqual([which for which, _ in programs()], list(PROGRAMS))

    def run_program(self, which):
        """The program as it is on the page, between what it needs and what must be true then."""
        needed = PROGRAMS[which]
        if isinstance(needed, str):
            self.skipTest(needed)
        if which in NEEDS and not importlib.util.find_spec(NEEDS[which]):
            self.skipTest(f"needs {NEEDS[which]}: BERTH_LONG=1 runs it, by integrations.py")
        code = "\n".join([SETUP, needed[0], dict(programs())[which], textwrap.dedent(needed[1])])
        status, printed, errors = starter.run(code, self.folder)
        self.assertEqual(status, 0, errors)
        self.assertEqual(printed, PRINTED.get(which, printed))


def add_tests():
    for number, which in enumerate(PROGRAMS):
        words = re.sub(r"\W+", "_", " ".join(which)).lower()
        setattr(Pages, f"test_{number:02}_{words}", lambda self, which=which: self.run_program(which))


add_tests()
if __name__ == "__main__":
    unittest.main()
