# SPDX-License-Identifier: BSD-3-Clause
"""transformers and accelerate where torch.save and torch.load are Berth's: nothing is left to PyTorch.

install() goes first: transformers takes torch.save when it is imported.
"""

import os
import warnings

import berth
import torch

berth.install()

import accelerate  # noqa: E402
import transformers  # noqa: E402

from folder import Folder  # noqa: E402
from same import same  # noqa: E402

def encoder():
    return transformers.BertModel(transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32))


def decoder():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2))


MODELS = {"an encoder": encoder, "tied weights": decoder, "half precision": lambda: encoder().bfloat16()}


class Integration(Folder):
    def setUp(self):
        super().setUp()
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        berth.install()
        self.addCleanup(berth.uninstall)

    def counted(self, function):
        """What was saved and loaded meanwhile: {"save": {"values": 1, ...}, ...}"""
        before = berth.counters()
        function()
        after = berth.counters()
        self.assertEqual(after["reasons"], before["reasons"])
        return {each: {way: n - before[each][way] for way, n in after[each].items()}
                for each in ("save", "load")}


class Transformers(Integration):
    def test_models_come_back(self):
        for what, make in MODELS.items():
            with self.subTest(what):
                model = make().eval()
                mine, theirs = self.path(f"{what}/mine"), self.path(f"{what}/theirs")
                count = self.counted(lambda: model.save_pretrained(mine, safe_serialization=False))
                self.assertEqual(count["save"], {"values": 1, "records": 0, "torch": 0})
                berth.uninstall()
                model.save_pretrained(theirs, safe_serialization=False)
                berth.install()
                weights = [self.read(os.path.join(each, "pytorch_model.bin")) for each in (mine, theirs)]
                self.assertEqual(*weights)
                loaded = []
                count = self.counted(lambda: loaded.append(type(model).from_pretrained(
                    mine, use_safetensors=False, dtype=model.dtype)))
                self.assertEqual((count["load"]["torch"], sum(count["load"].values()) > 0), (0, True))
                same(loaded[0].state_dict(), model.state_dict(), resizable=False)
                tokens = torch.arange(10)[None]
                with torch.no_grad():
                    self.assertTrue(torch.equal(loaded[0](tokens)[0], model(tokens)[0]))


class Accelerate(Integration):
    def steps(self, accelerator, model, optimizer, scheduler, n):
        losses = []
        for _ in range(n):
            loss = model(torch.rand(5, 3)).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def test_a_state_comes_back(self):
        accelerator = accelerate.Accelerator(cpu=True)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)
        parts = accelerator.prepare(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2))
        self.steps(accelerator, *parts, 3)
        folder = self.path("state")
        count = self.counted(lambda: accelerator.save_state(folder, safe_serialization=False))
        # Model, optimizer and scheduler are plain; the random states have numpy arrays.
        self.assertEqual(count["save"], {"values": 3, "records": 1, "torch": 0})
        expected = self.steps(accelerator, *parts, 3)
        self.assertNotEqual(self.steps(accelerator, *parts, 3), expected)
        count = self.counted(lambda: accelerator.load_state(folder))
        self.assertEqual((count["load"]["torch"], sum(count["load"].values())), (0, 4))
        self.assertEqual(self.steps(accelerator, *parts, 3), expected)

    def test_pytorch_reads_the_files(self):
        accelerator = accelerate.Accelerator(cpu=True)
        model = accelerator.prepare(torch.nn.Linear(3, 4))
        accelerator.save_state(self.path("state"), safe_serialization=False)
        berth.uninstall()
        random_state = torch.load(self.path("state/random_states_0.pkl"), weights_only=False)
        self.assertIn("numpy_random_seed", random_state)
        same(torch.load(self.path("state/pytorch_model.bin")), model.state_dict(), resizable=False)
