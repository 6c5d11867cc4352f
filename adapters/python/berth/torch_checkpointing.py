# SPDX-License-Identifier: BSD-3-Clause
"""A storage for torch_checkpointing: its files are written by Berth, and durable.

    config = CheckpointManager.Config(storage_config=BerthStorageConfig(), load=CheckpointLoaderConfig(use_mmap=False))
    manager = CheckpointManager(config)
    manager.save("checkpoints/step_7", {"model": model.state_dict()})
    manager.load("checkpoints/step_7", into={"model": model.state_dict()})
"""

import io
import os
from dataclasses import dataclass

import berth
from torch_checkpointing.storage.base_storage import StorageConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorage, LocalFileSystemStorageConfig


@dataclass
class BerthStorageConfig(StorageConfig):
    """For CheckpointManager.Config(storage_config=...); it goes to the process that writes, too."""

    def create_storage(self):
        return BerthStorage()


class BerthStorage(LocalFileSystemStorage):
    """Files of this machine. What torch_checkpointing saves by torch.save, Berth writes, with all processors.

    A checkpoint is a folder that gets its name when it is complete. Here all of it is on disk before: files, the
    names in folders, and behind the rename the name itself. Nothing that is there under its name is torn.

    With `use_mmap=False` torch_checkpointing loads by torch.load(weights_only=False): Berth makes plain values itself,
    and runs code only if the file names some. With `use_mmap=True`, its default, PyTorch unpickles without Berth.
    """

    def __init__(self):
        super().__init__(LocalFileSystemStorageConfig(use_direct_io=False))

    def stream_write(self, path):
        return _Written(path)

    def write(self, path, data):
        with _Written(path) as file:
            view = memoryview(data).cast("B")
            while view:
                view = view[file.write(view):]

    def stream_read(self, path, read_args=None):
        return _Loaded(path)

    def rename(self, src_path, dst_path, is_directory=False, background_cleanup=False):
        for folder, _, _ in os.walk(src_path):
            _sync_folder(folder)
        super().rename(src_path, dst_path, is_directory, background_cleanup)
        _sync_folder(os.path.dirname(os.path.abspath(dst_path)))


class _Written:
    """A file to be written in a `with` block, in which torch.save is Berth's. It is on disk behind it."""

    def __init__(self, path):
        self._path, self._block = path, berth.installed()

    def __enter__(self):
        self._file = open(self._path, "wb", buffering=0)  # a real file, which Berth writes by its descriptor
        self._block.__enter__()
        return self._file

    def __exit__(self, kind, *_):
        self._block.__exit__()
        with self._file as file:
            if kind is None:
                os.fsync(file.fileno())


class _Loaded(io.FileIO):
    """A file to be read in a `with` block, in which torch.load is Berth's."""

    def __enter__(self):
        self._real = open(self.name, "rb", buffering=0)  # Berth reads by their descriptors files of Python's own
        self._block = berth.installed()
        self._block.__enter__()
        return self._real

    def __exit__(self, *_):
        self._block.__exit__()
        self._real.close()
        self.close()


def _sync_folder(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
