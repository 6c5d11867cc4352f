# SPDX-License-Identifier: BSD-3-Clause
"""Indices of sparse tensors (T6): what torch.load refuses while check_sparse_tensor_invariants is
enabled, berth_verify and load.check=data refuse; what it takes, they take."""

import itertools
import random

import berth_ctypes as b
import torch
from describe import FromBerth
from files import expect

BY_ROW = ("csr", "bsr")
N_BY_CHANCE = 150  # of each layout

# Name, what is wrong: None if nothing is; sizes; indices; whether it is marked as coalesced.
COO = [
    ("good", (2, 3), [[0, 0, 1], [0, 2, 1]], True, None),
    ("unsorted", (2, 3), [[1, 0], [0, 2]], False, None),
    ("twice", (2, 3), [[1, 1], [2, 2]], False, None),
    ("empty", (2, 3), [[], []], True, None),
    ("of a dimension without elements", (0, 3), [[], []], True, None),
    ("no sparse dimension", (), [], True, None),
    ("negative", (2, 3), [[-1], [0]], False, "indices[0, 0] is -1"),
    ("too large", (2, 3), [[0, 1], [0, 3]], False, "indices[1, 1] is 3"),
    ("too large by far", (2, 3), [[0, 1 << 62], [0, 0]], False, "indices[0, 1] is 4611686018427387904"),
    ("coalesced, unsorted", (2, 3), [[1, 0], [0, 2]], True, "must come after"),
    ("coalesced, twice", (2, 3), [[1, 1], [2, 2]], True, "must come after"),
    ("coalesced, too large", (2, 3), [[0, 2], [0, 0]], True, "indices[0, 1] is 2"),
]

# Of two rows and three columns (of blocks): name, compressed, plain, what is wrong.
COMPRESSED = [
    ("good", [0, 2, 3], [0, 2, 1], None),
    ("empty rows", [0, 0, 0], [], None),
    ("full", [0, 3, 6], [0, 1, 2, 0, 1, 2], None),
    ("negative", [0, 2, 3], [0, 2, -1], "[2] is -1"),
    ("too large", [0, 2, 3], [0, 3, 1], "[1] is 3"),
    ("unsorted", [0, 2, 3], [2, 0, 1], "[1] is 0"),
    ("twice", [0, 2, 3], [1, 1, 1], "[1] is 1"),
    ("not from 0", [1, 2, 3], [0, 2, 1], "[0] is 1"),
    ("from a negative number", [-1, 2, 3], [0, 2, 1], "[0] is -1"),
    ("decreasing", [0, 3, 2], [0, 1], "[1] is 3"),
    ("ends too early", [0, 2, 2], [0, 2, 1], "[2] is 2"),
    ("ends too late", [0, 2, 4], [0, 2, 1], "[2] is 4"),
    ("a row too long", [0, 4, 4], [0, 1, 2, 2], "[1] is 4"),
]


# ---- tensors without checks ----


def coo(shape, indices, coalesced, dtype=torch.int64):
    indices = torch.tensor(indices, dtype=dtype).reshape(len(shape), -1 if shape else 2)
    values = torch.ones(indices.shape[1])
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False,
                                   is_coalesced=coalesced)


def compressed(layout, rows, columns, n_rows=2, n_columns=3, batch=(), dtype=torch.int64):
    block = (2, 3) if layout in ("bsr", "bsc") else (1, 1)
    shape = (n_rows, n_columns) if layout in BY_ROW else (n_columns, n_rows)
    values = torch.ones(*batch, len(columns) if not batch else columns.shape[-1],
                        *(block if block != (1, 1) else ()))
    return torch.sparse_compressed_tensor(
        torch.as_tensor(rows, dtype=dtype), torch.as_tensor(columns, dtype=dtype), values,
        (*batch, *(size * by for size, by in zip(shape, block))),
        layout=getattr(torch, "sparse_" + layout), check_invariants=False)


# ---- both verdicts ----


def torch_refuses(path):
    try:
        with torch.sparse.check_sparse_tensor_invariants(True):
            torch.load(path, weights_only=True)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


def berth_refuses(path):
    """By each way that checks them; the default opens them."""
    told = set()
    with FromBerth(path):
        pass
    for way in ("verify", "load.check=data", "load.check=data load.mmap=off"):
        try:
            if way == "verify":
                b.check(b.berth_verify, b.from_path(path), None, None, None, None)
            else:
                with b.patched(way), FromBerth(path):
                    pass
            told.add(None)
        except b.BerthError as error:
            told.add(str(error))
    expect(len(told) == 1, f"ways differ: {told}")
    return told.pop()


def same_verdict(folder, tensor, zipped=True):
    """What Berth says, or None."""
    path = f"{folder}/sparse.pt"
    torch.save({"t": tensor}, path, _use_new_zipfile_serialization=zipped)
    theirs, ours = torch_refuses(path), berth_refuses(path)
    expect((theirs is None) == (ours is None), f"PyTorch: {theirs}; Berth: {ours}")
    return ours


def row(folder, tensor, wrong, layout):
    for zipped in (True, False):
        ours = same_verdict(folder, tensor, zipped)
        expect((ours is None) == (wrong is None), f"Berth: {ours}")
        expect(ours is None or (wrong in ours and f"this torch.sparse_{layout} tensor" in ours), ours)


def by_chance(folder, layout, seed):
    """Small numbers, of which about half are good."""
    chance = random.Random(seed)
    refused = 0
    for _ in range(N_BY_CHANCE):
        dtype = chance.choice((torch.int64, torch.int32))
        n_rows, n_columns = chance.randint(0, 3), chance.randint(1, 3)
        n = chance.randint(0, 3)
        if layout == "coo":
            shape = (chance.randint(0, 3), chance.randint(1, 3))
            indices = [sorted(chance.randint(0, max(shape[0] - chance.randint(0, 1), 0)) for _ in range(n)),
                       [chance.randint(0, shape[1] - chance.randint(0, 1)) for _ in range(n)]]
            tensor = coo(shape, indices, chance.random() < 0.5)
        else:
            batch = chance.choice(((), (), (2,), (2, 2)))
            flat = lambda numbers, *more: torch.tensor(numbers).reshape(*batch, *more)
            count = 1
            for size in batch:
                count *= size
            inner = [sorted(chance.randint(0, n) for _ in range(max(n_rows - 1, 0))) for _ in range(count)]
            rows = flat([[0, *each, n][:n_rows + 1] for each in inner], n_rows + 1)
            columns = flat([chance.sample(range(3), n) if chance.random() < 0.3 else
                            sorted(chance.sample(range(3), n)) for _ in range(count)], n)
            if batch and chance.random() < 0.3:
                rows = rows[:1].expand(*rows.shape)
            tensor = compressed(layout, rows, columns, n_rows, n_columns, batch or (), dtype) if batch else \
                compressed(layout, rows.reshape(-1), columns.reshape(-1), n_rows, n_columns, (), dtype)
        refused += same_verdict(folder, tensor) is not None
    expect(N_BY_CHANCE // 10 < refused < N_BY_CHANCE, f"{refused} of {N_BY_CHANCE} are wrong")


def all_cases(results, folder):
    for name, shape, indices, coalesced, wrong in COO:
        results.run(f"sparse indices: coo: {name}", row, folder, coo(shape, indices, coalesced), wrong,
                    "coo")
    for layout, (name, rows, columns, wrong), dtype in itertools.product(
            ("csr", "csc", "bsr", "bsc"), COMPRESSED, (torch.int64, torch.int32)):
        results.run(f"sparse indices: {layout}: {name}, {dtype}", row, folder,
                    compressed(layout, rows, columns, dtype=dtype), wrong, layout)
    for seed, layout in enumerate(("coo", "csr", "csc", "bsr", "bsc")):
        results.run(f"sparse indices: {layout}: {N_BY_CHANCE} by chance", by_chance, folder, layout, seed)
