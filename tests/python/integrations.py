# SPDX-License-Identifier: BSD-3-Clause
"""Lightning, transformers and accelerate with Berth, in a venv of their own: BERTH_LONG=1.

Each file of integrations/ is one test here; its own tests are printed if one of them fails. The venv
is made once, beside the build; the versions are in integrations/requirements.txt.
"""

import abc
import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import berth
import torch
from berth.lightning import BerthCheckpointIO

LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")
HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "integrations")
VENV = os.path.join(os.path.dirname(os.path.abspath(os.environ["BERTH_BUILD"])), "integrations")
PYTHON = os.path.join(VENV, "bin/python")


def make_venv():
    """With this Python's own packages in sight; no other PyTorch is installed."""
    requirements, made = os.path.join(FOLDER, "requirements.txt"), os.path.join(VENV, "made-of")
    wanted = f"torch=={torch.__version__.partition('+')[0]}\n"
    with open(requirements, encoding="utf-8") as file:
        key = sys.executable + "\n" + wanted + file.read()
    if os.path.exists(made):
        with open(made, encoding="utf-8") as file:
            if file.read() == key:
                return
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
    packages = subprocess.run([PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                              check=True, capture_output=True, text=True).stdout.strip()
    with open(os.path.join(packages, "pytorch.pth"), "w", encoding="utf-8") as file:
        file.write(os.path.dirname(os.path.dirname(torch.__file__)) + "\n")
    constraint = os.path.join(VENV, "constraint.txt")
    with open(constraint, "w", encoding="utf-8") as file:
        file.write(wanted)
    subprocess.run([PYTHON, "-m", "pip", "install", "-q", *os.environ.get("BERTH_PIP_ARGS", "").split(),
                    "-r", requirements, "-c", constraint], check=True, stdin=subprocess.DEVNULL)
    with open(made, "w", encoding="utf-8") as file:
        file.write(key)


@contextlib.contextmanager
def standing_in(tested, **packages):
    """Berth's module of this name, with stand-ins for the modules that it imports: {name with _ for a dot: its names}."""
    made = {name.replace("__", "."): types.ModuleType(name) for name in packages}
    for module, names in zip(made.values(), packages.values()):
        vars(module).update(names)
    parents = {".".join(name.split(".")[:n]) for name in made for n in range(1, name.count(".") + 1)} - set(made)
    with mock.patch.dict(sys.modules, {**{name: types.ModuleType(name) for name in parents}, **made}):
        sys.modules.pop(tested, None)
        yield importlib.import_module(tested)
        sys.modules.pop(tested)


class Without(unittest.TestCase):
    def test_lightning(self):
        """The module is imported without Lightning and PyTorch; a plugin says what is missing."""
        code = ("from berth.lightning import BerthCheckpointIO\n"
                "try:\n    BerthCheckpointIO()\nexcept ImportError as error:\n    print(error)")
        package = os.path.dirname(os.path.dirname(berth.__file__))
        done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True,
                              env={**os.environ, "PYTHONPATH": package})
        self.assertEqual(done.stdout, "berth.lightning needs Lightning, which is not installed: "
                         "pip install lightning\n")

    def test_torch_checkpointing(self):
        """With a stand-in for the package: a file that is gone leaves torch.load PyTorch's."""
        base = type("LocalFileSystemStorage", (), {"__init__": lambda *_: None, "rename": lambda _, a, b, *more: os.rename(a, b)})
        with tempfile.TemporaryDirectory() as folder, standing_in(
                "berth.torch_checkpointing", torch_checkpointing__storage__base_storage={"StorageConfig": object},
                torch_checkpointing__storage__filesystem={"LocalFileSystemStorage": base, "LocalFileSystemStorageConfig": dict}) as tested:
            theirs, path = torch.load, os.path.join(folder, "v.pt")
            storage = tested.BerthStorageConfig().create_storage()
            with storage.stream_write(path) as file:
                torch.save([1], file)
            with (stream := storage.stream_read(path)) as file:
                self.assertEqual((torch.load(file), torch.load is theirs), ([1], False))
            self.assertEqual((stream.closed, file.closed, torch.load is theirs), (True, True, True))
            stream = storage.stream_read(path)
            self.addCleanup(stream.close)
            os.unlink(path)
            self.assertRaises(FileNotFoundError, stream.__enter__)
            self.assertIs(torch.load, theirs)
            data = bytes(range(100)) * 1000
            with mock.patch.object(os, "fsync") as sync:
                os.mkdir(os.path.join(folder, "new"))
                os.mkdir(os.path.join(folder, "new/in"))
                storage.write(os.path.join(folder, "new/in/x"), memoryview(data).cast("B", (1000, 100)))
                self.assertEqual(sync.call_count, 1)
                storage.rename(os.path.join(folder, "new"), os.path.join(folder, "old"))
                self.assertEqual(sync.call_count, 4)  # two folders, and the one that has the name
            with open(os.path.join(folder, "old/in/x"), "rb") as file:
                self.assertEqual(file.read(), data)

    def test_deepspeed(self):
        """All files are waited for; what fails on one rank is raised on all, and once."""
        jobs = [mock.Mock(**{"result.side_effect": error}) for error in (None, KeyError("a"), ValueError("b"), None)]
        distributed, reports = torch.distributed, []
        base = type("CheckpointEngine", (), {"__init__": lambda self, config: setattr(self, "config", config)})

        def gather(into, mine):
            self.assertEqual(len(into), 2)
            into[:] = [mine, *reports]

        with standing_in("berth.deepspeed", deepspeed__runtime__checkpoint_engine__checkpoint_engine={"CheckpointEngine": base}) \
                as tested, mock.patch.multiple(distributed, is_initialized=lambda: bool(reports), get_world_size=lambda: 2,
                                               all_gather_object=gather), \
                mock.patch.multiple(berth, save_async=mock.Mock(side_effect=jobs), load=mock.Mock()):
            engine = tested.BerthCheckpointEngine(5)
            self.assertEqual((engine.config, engine.name), (5, "BerthCheckpointEngine"))
            self.assertTrue(engine.preserves_storage_sharing())
            self.assertIs(engine.commit("no file"), True)
            for call, failing, expected in ((lambda: engine.commit(1), ["of b"], KeyError), (engine.cleanup, [], ValueError)):
                reports[:] = failing
                for path in ("a", "b"):
                    engine.save({"w": 1}, path)
                self.assertRaises(expected, call)
            self.assertEqual([job.result.call_count for job in jobs], [1] * 4)
            reports[:] = [None]
            self.assertIs(engine.commit(2), True)
            reports[:] = ["no room"]
            self.assertRaisesRegex(RuntimeError, "^rank 1: no room$", engine.commit, 2)
            for call in (lambda: engine.create(3), lambda: engine.load("f", "cpu")):
                berth.save_async.side_effect = [mock.Mock()]
                engine.save({}, "c")
                job = engine._jobs[0]
                call()
                job.result.assert_called_once_with()
            berth.load.assert_called_once_with("f", "cpu", weights_only=True)
            tested.BerthCheckpointEngine(weights_only=False).load("g")
            berth.load.assert_called_with("g", None, weights_only=False)

    def test_vllm(self):
        class Loader:
            def __init__(self, config):
                self.load_config, self.local_expert_ids, self.counter_before_loading_weights = config, {1}, 0.

            def _prepare_weights(self, *of):
                return of[0], files, of[1:], None

            def _get_weights_iterator(self, source):
                yield "theirs", source

        def config(strategy=None, **options):
            return types.SimpleNamespace(load_format="berth", model_loader_extra_config=options, safetensors_load_strategy=strategy)

        made, names = "vllm.model_executor.model_loader".replace(".", "__"), {}
        with tempfile.TemporaryDirectory() as folder, standing_in("berth.vllm", **{
                made: {"register_model_loader": lambda name: lambda kind: names.update({name: kind})},
                made + "__default_loader": {"DefaultModelLoader": Loader},
                made + "__ep_weight_filter": {"should_skip_weight": lambda name, ids: name == "of another" and ids == {1}}}) as tested:
            files = [os.path.join(folder, name) for name in ("2.pt", "1.pt")]
            for path, n in zip(files, (2, 1)):
                berth.save({f"w{n}": torch.full((3, ), n), "of another" * (n == 1) or "unused": torch.ones(1)}, path)
            tested.register()
            self.assertEqual(names, {"berth": tested.BerthModelLoader})
            self.assertRaisesRegex(ValueError, "^the load format berth has no option 'thread'; it has threads and window_nbytes$",
                                   names["berth"], config(threads=1, thread=2))
            source = types.SimpleNamespace(model_or_path=folder, subfolder=None, revision=None, fall_back_to_pt=True,
                                           allow_patterns_overrides=None, prefix="p.", is_unused_weight=lambda name: name == "unused")
            mine = config(threads=1)
            loader = names["berth"](mine)
            self.assertEqual((loader.load_config.load_format, loader.load_config.model_loader_extra_config, mine.load_format),
                             ("auto", {}, "berth"))
            self.assertEqual([(name, tensor.tolist()) for name, tensor in loader._get_weights_iterator(source)],
                             [("p.w1", [1] * 3), ("p.w2", [2] * 3)])
            for _ in loader._get_weights_iterator(source):  # into memory of their own: nobody's cut of a file kills the engine
                with open("/proc/self/maps", encoding="utf-8") as file:
                    self.assertEqual([line for line in file if folder in line], [])
            self.assertGreater(loader.counter_before_loading_weights, 0)
            loader.counter_before_loading_weights, source.is_unused_weight = 7, None
            self.assertEqual([name for name, _ in loader._get_weights_iterator(source)], ["p.w1", "p.w2", "p.unused"])
            self.assertEqual(loader.counter_before_loading_weights, 7)
            with mock.patch.object(tested, "safe_open") as opened:
                list(loader._get_weights_iterator(source))
            opened.return_value.__enter__.return_value.prefetch.assert_called_once_with({}, threads=1)
            self.assertEqual(list(names["berth"](config("torchao"))._get_weights_iterator(source)), [("theirs", source)])

    def test_paths_of_lightning(self):
        """By a stand-in for its package."""
        plugins = types.ModuleType("lightning_fabric.plugins")
        plugins.CheckpointIO = abc.ABCMeta("CheckpointIO", (), {})
        with mock.patch.dict(sys.modules, {"lightning_fabric": types.ModuleType("lightning_fabric"), plugins.__name__: plugins}), \
                tempfile.TemporaryDirectory() as folder:
            plugin, path = BerthCheckpointIO(), os.path.join(folder, "a/v.ckpt")
            self.assertIsInstance(plugin, plugins.CheckpointIO)
            plugin.save_checkpoint({"w": 1}, f"file://{path}")
            self.assertEqual(plugin.load_checkpoint(path), {"w": 1})
            plugin.remove_checkpoint(f"file://{path}")
            self.assertFalse(os.path.exists(path))
            os.mkdir(path)
            os.symlink(path, path + ".link")
            plugin.remove_checkpoint(path + ".link")
            self.assertEqual(os.listdir(os.path.dirname(path)), ["v.ckpt"])
            plugin.remove_checkpoint(path)
            self.assertFalse(os.path.exists(path))
            self.assertRaisesRegex(TypeError, "takes no storage_options", plugin.save_checkpoint, {}, path, {"a": 1})
            with mock.patch.object(berth, "load") as load:
                for options in ({}, {"weights_only": None}, {"weights_only": True}, {"weights_only": False}):
                    plugin.load_checkpoint(path, **options)
            self.assertEqual(load.mock_calls, [mock.call(path, "cpu")] * 3 + [mock.call(path, "cpu", weights_only=False)])
            self.in_the_background(BerthCheckpointIO(asynchronous=True), path)
            self.assertRaisesRegex(ValueError, r"^s3://\.\.\.: ", plugin.save_checkpoint, {}, "s3://key:secret@bucket/v.ckpt")

    def in_the_background(self, plugin, path):
        """What is removed waits for the save that goes on. Behind the end, the first save and those of its step are made at once."""
        job = mock.Mock()
        with mock.patch.multiple(berth, save_async=mock.Mock(return_value=job), save=mock.Mock()):
            plugin.save_checkpoint({"global_step": 1}, path)
            self.assertEqual((berth.save_async.call_count, berth.save.call_count), (1, 0))
            with open(path, "wb"):
                plugin.remove_checkpoint(path)
            self.assertTrue(os.path.exists(path))
            job.result.assert_not_called()
            plugin.teardown()
            job.result.assert_called_once_with()
            self.assertFalse(os.path.exists(path))
            for step, n_jobs in ((5, 1), (5, 1), (6, 2), (5, 3)):
                plugin.save_checkpoint({"global_step": step}, path)
                self.assertEqual(berth.save_async.call_count, n_jobs, step)
            plugin.teardown()
            plugin.save_checkpoint({"global_step": 9}, path)
            self.assertEqual((berth.save_async.call_count, berth.save.call_count), (3, 3))
            plugin._is_torn_down = False
            job.result.side_effect = OSError("full")
            plugin.save_checkpoint({}, path)
            with open(path, "wb"):
                plugin.remove_checkpoint(path)
            self.assertRaisesRegex(OSError, "^full$", plugin.load_checkpoint, path)
            self.assertTrue(os.path.exists(path))  # nor is it removed later
            plugin.teardown()
            self.assertTrue(os.path.exists(path))


@unittest.skipUnless(LONG, "installs packages: BERTH_LONG=1")
class Integrations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        make_venv()

    def run_tests(self, *words):
        path = os.pathsep.join([FOLDER, HERE, os.environ["PYTHONPATH"]])
        code = "import starter, unittest; starter.start(()); unittest.main(None)"  # whose children are this venv's, too
        done = subprocess.run([PYTHON, "-c", code, *words], capture_output=True, text=True, check=False,
                              cwd=FOLDER, env={**os.environ, "PYTHONPATH": path, "BERTH_PYTHON": PYTHON})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("skipped", done.stderr)

    def test_lightning(self):
        self.run_tests("trainer")

    def test_transformers_and_accelerate(self):
        self.run_tests("models")

    def test_the_program_on_the_page(self):
        """docs/python.md: pages.py skips it where there is no Lightning."""
        self.run_tests("pages", "-k", "with_lightning")
