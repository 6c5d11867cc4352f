# SPDX-License-Identifier: BSD-3-Clause
"""Kinds of files that PyTorch, NumPy and pickle write; see corpus_kind.py."""

import argparse
import datetime
import io
import os
import pathlib
import pickle

import numpy
import torch
import torch.distributed.checkpoint as dcp
from corpus_kind import ANY_END, ANY_OF_TWO, Kind
from torch.utils.serialization import config


def saved(**options):
    def make(value):
        torch.save(value, "new.pt", **options)
    return make


def saved_with(**settings):
    def make(value):
        with config.patch({f"save.{name}": setting for name, setting in settings.items()}):
            torch.save(value, "new.pt")
    return make


def saved_of(change):
    """Something else is saved."""
    def make(value):
        torch.save(change(value), "new.pt")
    return make


def into_memory(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    with open("new.pt", "wb") as file:
        file.write(buffer.getvalue())


def twice(**options):
    def make(value):
        with open("new.pt", "wb") as file:
            torch.save(value, file, **options)
            torch.save(value, file, **options)
    return make


def behind(**options):
    def make(value):
        with open("new.pt", "wb") as file:
            file.write(b"epoch 3\n")
            torch.save(value, file, **options)
    return make


def package(value):
    with torch.package.PackageExporter("new.pt") as exporter:
        exporter.save_pickle("weights", "weights.pkl", value)


def distributed(name):
    def make(value):
        dcp.save({"a": torch.arange(4.), "b": torch.arange(3.)}, checkpoint_id="dcp", no_dist=True)
        os.rename(f"dcp/{name}", "new.pt")
    return make


def pickled(value):
    with open("new.pt", "wb") as file:
        pickle.dump(value, file)


def pickled_numpy(value):
    with open("new.pt", "wb") as file:
        pickle.dump({"weight": numpy.zeros(3)}, file)


def of_numpy(save, *arrays, **named):
    def make(value):
        with open("new.pt", "wb") as file:
            save(file, *arrays, **named)
    return make


def legacy(protocol):
    return saved(_use_new_zipfile_serialization=False, pickle_protocol=protocol)


def other_protocol(opcode, protocol):
    return (f"data.pkl at byte #: opcode {opcode} is not allowed in a checkpoint: it was saved with "
            f"pickle_protocol={protocol}{RESAVES if protocol == OLDEST else CONVERTS}")


def other_legacy(protocol):
    return f"in the legacy format, saved with pickle_protocol={protocol}{RESAVES}"


def unknown_global(at, name):
    return (f"data.pkl at byte {at}: global {name} is not allowed in a checkpoint (load.unknown_globals=inert lists "
            "such files without running anything): `berth ls --set load.unknown_globals=inert new.pt`")


OLDEST = "0 (whose tensors nobody can read) or 1"
LEAVES_OUT = ": `head -c # new.pt >NEW.pt` leaves them out"
CONVERTS = (", which PyTorch's weights_only=True refuses, too: `berth convert --set load.unknown_globals=inert "
            "new.pt NEW.pt` saves it again without running anything")
RESAVES = (", which PyTorch's weights_only=True refuses, too: `python3 -c \"import sys, torch; "
           "torch.save(torch.load(sys.argv[1], weights_only=False), 'NEW.pt')\" new.pt` saves it again, "
           "but runs what is in it: only if you trust the file")

SAVED = [
    Kind("torch.save", saved()),
    Kind("torch.save, protocol 3", saved(pickle_protocol=3)),
    Kind("torch.save, protocol 0", saved(pickle_protocol=0), other_protocol("DICT (0x64)", OLDEST)),
    Kind("torch.save, protocol 1", saved(pickle_protocol=1), other_protocol("INT (0x49)", OLDEST)),
    Kind("torch.save, protocol 4", saved(pickle_protocol=4), other_protocol("FRAME (0x95)", "4")),
    Kind("torch.save, protocol 5", saved(pickle_protocol=5), other_protocol("FRAME (0x95)", "5")),
    Kind("torch.save before 1.6", legacy(2)),
    Kind("torch.save before 1.6, protocol 3", legacy(3)),
    *[Kind(f"torch.save before 1.6, protocol {protocol}", legacy(protocol), other_legacy(named))
      for protocol, named in ((0, OLDEST), (1, OLDEST), (4, "4"), (5, "5"))],
    Kind("torch.save before 1.6, truncated", lambda value: (legacy(2)(value), os.truncate("new.pt", 50000)),
         "storage # at byte #: the file ends within this storage's # bytes: a download or a save in place that did not end?"),
    Kind("torch.save before 1.6, bytes appended",
         lambda value: (legacy(2)(value), open("new.pt", "ab").write(b"epoch 3\n")),
         "at byte #: 8 bytes follow the last storage" + LEAVES_OUT, torch=True, why=ANY_END),
    Kind("torch.save into memory", into_memory),
    Kind("torch.save without byteorder", saved(_disable_byteorder_record=True)),
    Kind("torch.save without CRCs", saved_with(compute_crc32=False)),
    Kind("torch.save, alignment 4096", saved_with(storage_alignment=4096)),
    Kind("torch.save, alignment 1", saved_with(storage_alignment=1)),
    Kind("torch.save twice into one file", twice(),
         "at byte 73041: several archives in one file: the last one begins here: `tail -c +73042 new.pt >NEW.pt` "
         "takes it out", torch=True, why=ANY_OF_TWO),
    Kind("torch.save before 1.6, twice into one file", twice(_use_new_zipfile_serialization=False)),  # the first
    Kind("torch.save behind other bytes", behind(),
         "neither a zip archive nor PyTorch's legacy format: it begins with 65 70 6f 63"),
    Kind("torch.save of a state_dict", saved_of(lambda value: torch.nn.Linear(3, 2).state_dict()), is_changed=True),
    Kind("torch.save of an optimizer", saved_of(lambda value: torch.optim.Adam([torch.zeros(2)]).state_dict()),
         is_changed=True),
    Kind("torch.save of a tensor", saved_of(lambda value: torch.arange(7)), is_changed=True),
    Kind("torch.save of a module", saved_of(lambda value: torch.nn.Linear(3, 2)),
         unknown_global(66, "torch.nn.modules.linear Linear")),
    Kind("torch.save of argparse's options", saved_of(lambda value: {"args": argparse.Namespace(lr=1)}),
         unknown_global(80, "argparse Namespace")),
    Kind("torch.save of a path", saved_of(lambda value: {"out": pathlib.PurePosixPath("runs/1")}),
         unknown_global(79, "pathlib PurePosixPath")),
    Kind("torch.save of a date", saved_of(lambda value: {"when": datetime.date(2026, 1, 1)}),
         unknown_global(80, "datetime date")),
    Kind("torch.save of an array", saved_of(lambda value: {"mean": numpy.zeros(3)}),
         unknown_global(80, "numpy._core.multiarray _reconstruct")),
    Kind("torch.save of a number of NumPy", saved_of(lambda value: {"loss": numpy.float64(1)}),
         unknown_global(80, "numpy._core.multiarray scalar")),
    Kind("torch.jit.save", lambda value: torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), "new.pt"),
         "a TorchScript archive (it has constants.pkl): a program, which is never run, without values to read: "
         "`berth ls -r new.pt` lists its records"),
    Kind("torch.jit.trace", lambda value: torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)).save("new.pt"),
         "a TorchScript archive (it has constants.pkl): a program, which is never run, without values to read: "
         "`berth ls -r new.pt` lists its records"),
    Kind("torch.package", package,
         "a torch.package archive (.data/extern_modules, no data.pkl): a program, which is never run, without "
         "values to read: `berth ls -r new.pt` lists its records"),
    Kind("torch.distributed.checkpoint: .metadata", distributed(".metadata"),
         "the .metadata of a checkpoint of torch.distributed.checkpoint: `berth convert . NEW.pt` makes a "
         "checkpoint of its directory"),
    Kind("torch.distributed.checkpoint: a shard", distributed("__0_0.distcp"),
         "at byte #: several archives in one file: the last one begins here: `tail -c +# new.pt >NEW.pt` takes "
         "it out", torch=True, why=ANY_OF_TWO),
    Kind("pickle.dump", pickled,
         "a bare pickle, not a PyTorch checkpoint; it names the global torch.storage _load_from_bytes, which "
         "Berth never calls"),
    Kind("pickle.dump of an array", pickled_numpy,
         "a bare pickle, not a PyTorch checkpoint; it names the global numpy._core.multiarray _reconstruct, "
         "which Berth never calls"),
    Kind("numpy.save", of_numpy(numpy.save, numpy.zeros(3)),
         'an array of NumPy (.npy), not a PyTorch checkpoint: `python3 -c "import sys, numpy, torch; '
         'torch.save(torch.from_numpy(numpy.load(sys.argv[1])), \'NEW.pt\')" new.pt` makes one of it '
         "if it holds numbers in this machine's byte order"),
    Kind("numpy.savez", of_numpy(numpy.savez, weight=numpy.zeros(3)),
         'arrays of NumPy (.npz), not a PyTorch checkpoint: `python3 -c "import sys, numpy, torch; '
         'torch.save({k: torch.from_numpy(v) for k, v in numpy.load(sys.argv[1]).items()}, \'NEW.pt\')" new.pt` '
         "makes one of them if they are numbers in this machine's byte order"),
    Kind("numpy.savez_compressed", of_numpy(numpy.savez_compressed, weight=numpy.zeros(3)),
         'arrays of NumPy (.npz), not a PyTorch checkpoint: `python3 -c "import sys, numpy, torch; '
         'torch.save({k: torch.from_numpy(v) for k, v in numpy.load(sys.argv[1]).items()}, \'NEW.pt\')" new.pt` '
         "makes one of them if they are numbers in this machine's byte order"),
]
