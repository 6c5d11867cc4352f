# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints of Lightning's Trainer by Berth.

    from berth.lightning import BerthCheckpointIO
    trainer = Trainer(plugins=[BerthCheckpointIO()])

Lightning (PyPI: lightning, or pytorch-lightning) is imported when a plugin is made.
"""

import importlib
import os
import shutil
import sys

import berth

# The package has two names; each has an interface of its own.
PACKAGES = ("lightning.fabric", "lightning_fabric")


class BerthCheckpointIO:
    """A plugin of Lightning's, a CheckpointIO: the Trainer saves and loads by Berth.

    The file is what torch.save would have written, as a whole and on disk when a save returns.
    Paths are those of this machine; remote ones (s3://) are refused.

    asynchronous: True: a save returns when the tensors are copied, and goes on while the program
        trains. The next save, a load and the end of `fit`, `validate`, `test` or `predict` wait for it,
        and raise what it raised. Behind that end `trainer.save_checkpoint(path)` returns when the file
        is there; so does the first save of a further `fit`, because Lightning does not tell a plugin
        that one begins.
        Lightning removes an old checkpoint when a new one was saved; that is done when the new one
        is on disk, and not at all if it fails.
        During `fit` a path does not exist until its save is done. So read none but by the Trainer, on
        no rank; and give ModelCheckpoint names that differ ("{epoch}-{step}"): to choose "v-v1.ckpt"
        it looks whether "v.ckpt" exists. Fabric, and Lightning's own AsyncCheckpointIO around this one, tell
        no end: there wait by teardown(), or leave this False. A second save to one path waits for the first, and replaces it.

    Raises: ImportError: Lightning is not installed.
    Threads: one at a time.
    """

    def __init__(self, *, asynchronous=False):
        _register(type(self))
        self._asynchronous = asynchronous
        self._job = None
        self._to_remove = []
        self._is_torn_down = False
        self._step = None  # of the first save since then

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        """Saves to a path; makes its folder. As berth.save, or berth.save_async.

        storage_options: must be None, as for Lightning's own plugin.
        Raises: TypeError, ValueError: storage_options, or a remote path; what berth.save raises.
        """
        if storage_options is not None:
            raise TypeError("BerthCheckpointIO takes no storage_options")
        path = _local(path)
        self._finish()
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        if self._asynchronous and self._is_in_fit(checkpoint):
            self._job = berth.save_async(checkpoint, path)
        else:
            berth.save(checkpoint, path)

    def load_checkpoint(self, path, map_location="cpu", weights_only=None):
        """Loads from a path, as berth.load does: nothing in the file is run.

        weights_only: True and None are the same; False: the file may name code, which is run.
        Raises: ValueError: a remote path; FileNotFoundError; what berth.load raises.
        """
        path = _local(path)
        self._finish()
        unsafe = {"weights_only": False} if weights_only is False else {}
        return berth.load(path, map_location, **unsafe)

    def remove_checkpoint(self, path):
        """Removes a file or a folder, if it is there; after a save that goes on."""
        self._to_remove.append(_local(path))
        if self._job is None:
            self._finish()

    def teardown(self):
        """Waits for a save that goes on. Raises: what it raised."""
        self._is_torn_down, self._step = True, None
        self._finish()

    def _is_in_fit(self, checkpoint):
        """Whether the Trainer trains: there was no end, or since the first save behind it there was a step."""
        step = checkpoint.get("global_step")
        if self._is_torn_down and self._step is not None and step != self._step:
            self._is_torn_down = False
        self._step = step if self._step is None else self._step
        return not self._is_torn_down

    def _finish(self):
        """If the save fails, what should have been removed stays."""
        job, self._job = self._job, None
        paths, self._to_remove = self._to_remove, []
        if job:
            job.result()
        for path in paths:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            elif os.path.lexists(path):
                os.unlink(path)


def _local(path):
    path = os.fspath(path)
    if path.startswith("file://"):
        return path[len("file://"):]
    if "://" in path:
        scheme = path.partition("://")[0]  # U1: what follows may have a password
        raise ValueError(f"{scheme}://...: BerthCheckpointIO saves to paths of this machine; give the Trainer "
                         "a local default_root_dir, or use another plugin")
    return path


def _register(plugin):
    """Makes a class a CheckpointIO of the Lightning that is in use; of all, if none is yet."""
    loaded = [name for name in PACKAGES if name in sys.modules]
    found = [base for base in map(_interface, loaded or PACKAGES) if base]
    if not found:
        raise ImportError("berth.lightning needs Lightning, which is not installed: "
                          "pip install lightning")
    for base in found:
        base.register(plugin)


def _interface(package):
    try:
        return importlib.import_module(f"{package}.plugins").CheckpointIO
    except ModuleNotFoundError as error:
        if error.name in (package, package.partition(".")[0]):
            return None
        raise  # it is installed, but something that it needs is not
