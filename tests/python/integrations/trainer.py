# SPDX-License-Identifier: BSD-3-Clause
"""Lightning's Trainer with BerthCheckpointIO: it trains, saves, and goes on from the file."""

import logging
import os
import shutil
import warnings

import berth
import pytorch_lightning as lightning
import torch
from berth.lightning import BerthCheckpointIO
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins import CheckpointIO

from folder import Folder
from same import same


class Model(lightning.LightningModule):
    def __init__(self, width=4, rates=(0.1, 0.01)):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width),
                                          torch.nn.Linear(width, 1))

    def training_step(self, batch, _):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), self.hparams.rates[0])
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Watched(BerthCheckpointIO):
    """Notes which checkpoints lie there after each call."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seen = []

    def note(self, what, path):
        names = sorted(os.listdir(os.path.dirname(path)))
        self.seen.append((what, [name for name in names if name.endswith(".ckpt")]))

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        super().save_checkpoint(checkpoint, path, storage_options)
        self.note("save", path)

    def remove_checkpoint(self, path):
        super().remove_checkpoint(path)
        self.note("remove", path)


class Trainer(Folder):
    def setUp(self):
        super().setUp()
        warnings.simplefilter("ignore")
        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

    def fit(self, plugin, epochs, start=None):
        """A trainer that has trained, and the path of its last checkpoint. Each epoch's replaces the
        one before."""
        if not start:
            shutil.rmtree(self.path("saves"), ignore_errors=True)
        lightning.seed_everything(7, verbose=False)
        saves = ModelCheckpoint(self.path("saves"), filename="{epoch}")
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[saves], plugins=[plugin] if plugin else [])
        data = torch.utils.data.DataLoader(torch.arange(60.).reshape(20, 3) / 60, batch_size=5)
        trainer.fit(Model(), data, ckpt_path=start)
        return trainer, saves.best_model_path

    def test_it_trains_and_goes_on(self):
        _, path = self.fit(None, 2)
        expected = torch.load(path, weights_only=True)
        theirs, _ = self.fit(None, 4, path)
        for asynchronous in (False, True):
            with self.subTest(asynchronous=asynchronous):
                before = berth.counters()
                mine, path = self.fit(BerthCheckpointIO(asynchronous=asynchronous), 2)
                found = torch.load(path, weights_only=True)
                same(found, berth.load(path))
                same(found, expected, resizable=False)
                self.assertTrue(berth.verify(path))
                self.assertEqual(os.listdir(os.path.dirname(path)), ["epoch=1.ckpt"])
                mine, _ = self.fit(BerthCheckpointIO(asynchronous=asynchronous), 4, path)
                self.assertEqual(mine.current_epoch, 4)
                same(mine.model.state_dict(), theirs.model.state_dict())
                after = berth.counters()
                for operation, n in (("save", 4), ("load", 2)):
                    self.assertEqual(after[operation]["values"] - before[operation]["values"], n)
                self.assertEqual(after["reasons"], before["reasons"])

    def test_the_old_checkpoint_goes_when_the_new_one_is_there(self):
        for asynchronous, at_removal in ((False, ["epoch=1.ckpt"]), (True, ["epoch=0.ckpt"])):
            plugin = Watched(asynchronous=asynchronous)
            _, path = self.fit(plugin, 2)
            self.assertEqual([each[0] for each in plugin.seen], ["save", "save", "remove"])
            self.assertLessEqual(set(at_removal), set(plugin.seen[2][1]))
            self.assertEqual(os.listdir(os.path.dirname(path)), ["epoch=1.ckpt"])
            os.unlink(path)

    def test_behind_its_end_a_save_is_done_when_it_returns(self):
        plugin, start = BerthCheckpointIO(asynchronous=True), None
        for epochs in (2, 4):
            trainer, start = self.fit(plugin, epochs, start)
            self.assertEqual(torch.load(start)["epoch"], epochs - 1)
            trainer.model.slow = torch.nn.Parameter(torch.zeros(1 << 24), requires_grad=False)
            for name in ("one.ckpt", "two.ckpt", "one.ckpt"):
                trainer.save_checkpoint(self.path(name))
                self.assertEqual(torch.load(self.path(name))["epoch"], epochs)
                os.unlink(self.path(name))

    def test_a_further_fit_saves_beside_training(self):
        plugin = BerthCheckpointIO(asynchronous=True)
        for _ in range(2):
            jobs = []
            for step in (1, 2, 3):
                plugin.save_checkpoint({"global_step": step}, self.path("v.ckpt"))
                jobs.append(plugin._job is not None)
            self.assertEqual(jobs[1:], [True, True])
            plugin.teardown()
            for name in ("a.ckpt", "b.ckpt"):
                plugin.save_checkpoint({"global_step": 3}, self.path(name))
                self.assertIsNone(plugin._job)
            plugin.teardown()

    def test_two_saves_to_one_path(self):
        """The second waits for the first; the file is the second's."""
        plugin = BerthCheckpointIO(asynchronous=True)
        for step in (1, 2):
            plugin.save_checkpoint({"global_step": step, "a": torch.zeros(1 << 22)}, self.path("v.ckpt"))
        plugin.teardown()
        self.assertEqual(torch.load(self.path("v.ckpt"))["global_step"], 2)

    def test_a_save_that_fails_removes_nothing(self):
        plugin, old, new = BerthCheckpointIO(asynchronous=True), self.path("old.ckpt"), self.path("new.ckpt")
        plugin.save_checkpoint({"a": 1}, old)
        plugin.save_checkpoint({"a": torch.zeros(1 << 25)}, new)
        os.mkdir(new)  # which no file can replace
        plugin.remove_checkpoint(old)
        with self.assertRaises(berth.Error):
            plugin.teardown()
        self.assertEqual(sorted(os.listdir(self.folder)), ["new.ckpt", "old.ckpt"])
        for _ in range(2):
            plugin.remove_checkpoint(old)
            plugin.remove_checkpoint(new)
        plugin.teardown()
        self.assertEqual(os.listdir(self.folder), [])

    def test_asynchronous_saves_are_seen_by_loads(self):
        plugin, tensor = BerthCheckpointIO(asynchronous=True), torch.ones(1000)
        plugin.save_checkpoint({"a": tensor}, self.path("deep/er/v.ckpt"))
        tensor.zero_()
        self.assertEqual(plugin.load_checkpoint(self.path("deep/er/v.ckpt"))["a"].sum(), 1000)

    def test_what_is_refused(self):
        plugin = BerthCheckpointIO()
        self.assertIsInstance(plugin, CheckpointIO)
        with self.assertRaisesRegex(TypeError, "storage_options"):
            plugin.save_checkpoint({}, self.path("v.ckpt"), storage_options={})
        for call in (lambda path: plugin.save_checkpoint({}, path), plugin.load_checkpoint,
                     plugin.remove_checkpoint):
            with self.assertRaisesRegex(ValueError, r"^s3://\.\.\.: .*this machine"):
                call("s3://bucket/v.ckpt")
        with self.assertRaises(FileNotFoundError):
            plugin.load_checkpoint(self.path("none.ckpt"))
        plugin.save_checkpoint({"a": 1}, "file://" + self.path("v.ckpt"))
        self.assertEqual(plugin.load_checkpoint(self.path("v.ckpt")), {"a": 1})

    def test_code_in_a_checkpoint_is_not_run(self):
        class Evil:
            def __reduce__(self):
                return os.mkdir, (trap,)

        trap = self.path("trap")
        torch.save({"state_dict": Evil()}, self.path("v.ckpt"))
        for weights_only in (None, True):
            with self.assertRaises(berth.UnsafeFileError):
                BerthCheckpointIO().load_checkpoint(self.path("v.ckpt"), weights_only=weights_only)
        self.assertFalse(os.path.exists(trap))
