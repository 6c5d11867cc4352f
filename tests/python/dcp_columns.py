# SPDX-License-Identifier: BSD-3-Clause
"""More cases of dcp_ranks.py: shards of columns, which are exchanged."""

import functools
import os
import signal
import sys

import berth
import berth.dcp
import torch
from berth import _dcp_group, _native
from dcp_cases import distribute_by_hand, read, tensors
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor


def test_columns(rank):
    """Pieces that are shorter are exchanged: of all dtypes, uneven, of several dimensions of a mesh."""
    whole = {f"{name}.{dim}": tensor.clone() for name, tensor in tensors().items()
             for dim in range(tensor.dim())}
    shards = {name: distribute_tensor(tensor.clone(), rank.mesh, [Shard(int(name[-1]))])
              for name, tensor in whole.items()}
    cube = torch.arange(2. * 5 * 7).reshape(2, 5, 7)
    for dim in range(3):
        whole[f"cube.{dim}"] = cube.clone()
        shards[f"cube.{dim}"] = distribute_tensor(cube, rank.mesh, [Shard(dim)])
    if rank.n == 4:
        mesh = init_device_mesh("cpu", (2, 2))
        for i, place in enumerate(([Shard(1), Shard(0)], [Shard(1), Shard(1)], [Replicate(), Shard(2)],
                                   [Shard(1), Shard(2)], [Shard(2), Replicate()])):
            whole[f"mesh.{i}"], shards[f"mesh.{i}"] = cube.clone(), distribute_tensor(cube, mesh, place)
        flat = cube.reshape(10, 7)
        whole["flat"], shards["flat"] = flat.clone(), distribute_tensor(flat, mesh, [Replicate(), Shard(1)])
    path = rank.assert_saved(shards, whole, "columns.pt")
    target = {name: torch.zeros_like(each) for name, each in shards.items()}
    berth.dcp.load(target, path)
    for name, each in target.items():
        assert torch.equal(each.to_local(), shards[name].to_local()), name


def test_columns_of_windows(rank):
    """More than the 8 MiB that one rank collects at a time; elements of 2 bytes, of half a byte; ties."""
    torch.manual_seed(9)
    large = torch.randint(-99, 99, (3, 5000, 1201), dtype=torch.int16)
    whole = {"large": large, "tied": large, "odd": torch.randn(33).to(torch.float16).reshape(3, 11)}
    if hasattr(torch, "float4_e2m1fn_x2"):
        whole["packed"] = torch.arange(70, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).reshape(7, 10)
    shards = {name: distribute_by_hand(each, rank, each.dim() - 1) for name, each in whole.items()}
    shards["tied"] = shards["large"]
    rank.assert_saved(shards, whole, "windows.pt")


def test_columns_that_fail(rank):
    if rank.n == 1:
        return
    path, last = rank.path("fail/columns.pt"), rank.n - 1
    tensor = torch.arange(60.).reshape(6, 10)
    shards = {"w": distribute_tensor(tensor, rank.mesh, [Shard(1)])}
    berth.dcp.save(shards, path)
    kept = read(path)
    state = {} if rank.rank == last else shards
    rank.assert_raises(berth.ArgumentError, 0, "no writer has written its bytes", berth.dcp.save, state, path)
    rank.assert_raises(ValueError, 0, "(tensor 'w')", berth.dcp.save, state, path)
    # The last rank gives the columns of rank 0; then all rows.
    turned, alone = DeviceMesh("cpu", list(range(rank.n))[::-1]), DeviceMesh("cpu", [last])
    for mesh, dim, words in ((turned, 1, f"w: writer {last} has byte 0 of its storage"),
                             (alone, 0, f"writers 0 and {last} have both written its byte 0 (tensor 'w')")):
        state = shards
        if rank.rank == last:
            mine = tensor.chunk(mesh.size(), dim)[0].contiguous()
            state = {"w": DTensor.from_local(mine, mesh, [Shard(dim)], run_check=False, shape=tensor.shape,
                                             stride=tensor.stride())}
        rank.assert_raises(berth.ArgumentError, 0, words, berth.dcp.save, state, path)

    assert read(path) == kept
    berth.dcp.save(shards, path)
    assert read(path) == kept


def test_exchanges_that_fail(rank):
    """On one rank: before the exchange, in its first call, in a later one, behind it."""
    if rank.n == 1:
        return
    path, last = rank.path("exchange/columns.pt"), rank.n - 1
    tensor = torch.arange(60.).reshape(6, 10)
    shards = {"w": distribute_tensor(tensor, rank.mesh, [Shard(1)])}
    berth.dcp.save(shards, path)
    kept = read(path)

    def fail(kind, words, where, name, function):
        before = getattr(where, name)
        if rank.rank == last:
            setattr(where, name, function(before))
        rank.assert_raises(kind, last, words, berth.dcp.save, shards, path)
        setattr(where, name, before)
        assert os.listdir(os.path.dirname(path)) == ["columns.pt"] and read(path) == kept
        berth.dcp.save(shards, path)  # and the group is still in step

    def in_call(n, error):
        def replace(function):
            calls = iter(range(n, -1000, -1))

            def failing(*arguments):
                if next(calls) == 0:
                    raise error
                return function(*arguments)
            return failing
        return replace

    for n in (0, 1, 2, 4):
        fail(MemoryError, "no room", _dcp_group, "_bytes_of", in_call(n, MemoryError("no room")))
    fail(OSError, "no link", _native, "joint_write", in_call(0, OSError("no link")))
    fail(berth.Error, "checksum", _native, "joint_write",
         lambda function: lambda ticket, *others: function(ticket[:-1] + bytes([ticket[-1] ^ 1]), *others))


def test_interrupts_in_an_exchange(rank):
    """^C of one rank is KeyboardInterrupt there; the others raise, too, whenever it came."""
    path, last = rank.path("interrupt/columns.pt"), rank.n - 1
    shards = {"w": distribute_tensor(torch.arange(60.).reshape(6, 10), rank.mesh, [Shard(1)])}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    inner = _dcp_group.Group.exchange

    def exchange(*arguments):
        inner(*arguments)
        if next(calls) == 0:
            signal.raise_signal(signal.SIGINT)

    def profile(frame, event, argument):
        if frame.f_code is _dcp_group.Exchange.__call__.__code__ and event == where and next(calls) == 0:
            signal.raise_signal(signal.SIGINT)

    for where in ("inside", "call", "return"):
        for n in range(0 if rank.n == 1 else 4):  # words; words and messages of one window; words
            calls = iter(range(n, -1000, -1))
            if rank.rank == last:
                _dcp_group.Group.exchange = exchange if where == "inside" else inner
                sys.setprofile(None if where == "inside" else profile)
            try:
                why = berth.dcp.save(shards, path)
            except BaseException as error:
                why = error
            sys.setprofile(None)
            _dcp_group.Group.exchange = inner
            if rank.rank == last:
                assert isinstance(why, KeyboardInterrupt), (where, n, why)
            else:
                assert isinstance(why, RuntimeError), (where, n, why)
                assert str(why) == f"rank {last}: KeyboardInterrupt", (where, n, why)
    berth.dcp.save(shards, path)


def test_interrupts_between_messages(rank):
    """^C during the messages of a step: no rank waits for the one that got it, in saves and loads."""
    path, last = rank.path("interrupt/rows.pt"), rank.n - 1
    shards = {"w": distribute_tensor(torch.arange(60.).reshape(10, 6), rank.mesh, [Shard(0)])}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    berth.dcp.save(shards, path)
    for function in (berth.dcp.save, berth.dcp.load):
        n_messages, why = interrupted(-1, function, shards, path)
        assert why is None and n_messages >= 8 or rank.n == 1, (n_messages, why)
        outcomes = set()
        for at in range(n_messages):
            _, why = interrupted(at if rank.rank == last else -1, function, shards, path)
            if rank.rank == last:
                assert isinstance(why, KeyboardInterrupt), (at, why)
            else:  # the end of the last step is too late
                outcomes.add(repr(why))
        told = {repr(RuntimeError(f"rank {last}: KeyboardInterrupt"))}
        assert rank.rank == last or outcomes in (told, told | {"None"}), outcomes


def interrupted(at, function, *arguments):
    """Calls it, with ^C in front of message number `at`, if that is even, or else behind it.

    Returns: (the number of messages, what was raised)
    """
    names, numbers = ("all_gather", "gather", "broadcast"), []
    kept = {name: getattr(distributed_c10d, name) for name in names}

    def count(inner, *words, **named):
        numbers.append(len(numbers))
        if numbers[-1] == at and at % 2 == 0:
            signal.raise_signal(signal.SIGINT)
        inner(*words, **named)
        if numbers[-1] == at and at % 2:
            signal.raise_signal(signal.SIGINT)

    for name, inner in kept.items():
        setattr(distributed_c10d, name, functools.partial(count, inner))
    try:
        function(*arguments)
        why = None
    except BaseException as error:
        why = error
    for name, inner in kept.items():
        setattr(distributed_c10d, name, inner)
    return len(numbers), why
