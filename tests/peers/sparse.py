# SPDX-License-Identifier: BSD-3-Clause
"""Indices of sparse tensors (T6): what torch.load refuses while it checks them, Berth refuses, too."""

import os
import random
import zipfile

import torch

from convert import run
from files import expect

COMPRESSED = [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
OFF = ("--set", "debug=off")  # it refuses deflated files
# What is done to indices: to one of them, or to two that follow each other.
CHANGES = {
    "nothing": lambda flat, i: None,
    "one less": lambda flat, i: flat.__setitem__(i, flat[i] - 1),
    "one more": lambda flat, i: flat.__setitem__(i, flat[i] + 1),
    "negative": lambda flat, i: flat.__setitem__(i, -1),
    "far out": lambda flat, i: flat.__setitem__(i, 2**31 - 1),
    "as the one before": lambda flat, i: flat.__setitem__(i, flat[i - 1]),
    "changed places": lambda flat, i: flat.__setitem__([i - 1, i], [flat[i], flat[i - 1]]),
}


class Elements(list):
    """A list that takes two positions at once."""

    def __setitem__(self, at, value):
        if isinstance(at, list):
            for i, each in zip(at, value):
                super().__setitem__(i, each)
        else:
            super().__setitem__(at, value)


def changed(indices, change, random_):
    flat = Elements(indices.flatten().tolist())
    if flat:
        change(flat, random_.randrange(len(flat)))
    return torch.tensor(flat, dtype=indices.dtype).reshape(indices.shape)


def made(change, random_):
    """A sparse tensor of any layout, whose indices were changed."""
    dense = (torch.rand(4, 6, generator=torch.Generator().manual_seed(random_.randrange(99))) > 0.5).float()
    dense[random_.randrange(4)] = 0
    layout = random_.choice([torch.sparse_coo, *COMPRESSED])
    dtype = random_.choice([torch.int32, torch.int64])
    if layout == torch.sparse_coo:
        sparse = dense.to_sparse_coo()
        return torch.sparse_coo_tensor(changed(sparse.indices(), change, random_), sparse.values(), sparse.shape,
                                       is_coalesced=random_.choice([None, True]), check_invariants=False)
    blocks = (2, 3) if layout in COMPRESSED[2:] else None
    if random_.random() < 0.3:  # a batch: as many elements in each matrix
        dense = torch.stack([dense, dense.flip(0)])
    sparse = dense.to_sparse(layout=layout, blocksize=blocks)
    by_row = layout in (torch.sparse_csr, torch.sparse_bsr)
    parts = [sparse.crow_indices(), sparse.col_indices()] if by_row else \
            [sparse.ccol_indices(), sparse.row_indices()]
    parts = [part.to(dtype) for part in parts]
    which = random_.randrange(2)
    parts[which] = changed(parts[which], change, random_)
    return torch.sparse_compressed_tensor(*parts, sparse.values(), sparse.shape, layout=layout,
                                          check_invariants=False)


def saved(path, value, form):
    """Of its three forms: as PyTorch writes it, in the format before 1.6, zipped again and deflated."""
    torch.save(value, path, _use_new_zipfile_serialization=form != 1)
    if form == 2:
        with zipfile.ZipFile(path) as archive:
            records = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in records.items():
                archive.writestr(name, data)


def same_as_torch(folder, change, seed):
    tensor = made(change, random.Random(seed))
    saved(f"{folder}/sparse.pt", {"w": {"s": tensor}}, seed % 3)
    try:
        with torch.sparse.check_sparse_tensor_invariants(True):
            torch.load(f"{folder}/sparse.pt", weights_only=True)
        said = ""
    except RuntimeError as error:
        said = str(error)
    code = 1 if said else 0
    told = run("convert", *OFF, f"{folder}/sparse.pt", f"{folder}/out.pt", code=code)
    expect('"w.s.' in told or code == 0, f"{told} names no tensor ({said})")
    run("verify", *OFF, f"{folder}/sparse.pt", code=code)
    run("convert", *OFF, "--set", "load.check=directory", f"{folder}/sparse.pt", f"{folder}/out.pt")
    return bool(said)


def compared(folder, change, is_sometimes_good):
    """60 tensors: none is judged in another way, some are good and some bad."""
    refused = [same_as_torch(folder, change, seed) for seed in range(60)]
    expect(is_sometimes_good or any(refused), "torch.load refuses none")
    expect(not all(refused) or not is_sometimes_good, "torch.load refuses all")


def all_cases(results, folder):
    # PyTorch in debug mode refuses deflated files, too.
    was = os.environ.pop("TORCH_SERIALIZATION_DEBUG", None)
    for name, change in CHANGES.items():
        results.run(f"sparse indices: {name}", compared, folder, change,
                    name in ("nothing", "one less", "one more", "as the one before", "changed places"))
    if was is not None:
        os.environ["TORCH_SERIALIZATION_DEBUG"] = was
