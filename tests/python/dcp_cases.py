# SPDX-License-Identifier: BSD-3-Clause
"""Cases of dcp_ranks.py: what all ranks of a world do, each a function of the rank."""

import collections
import importlib.util
import os
import threading

import berth
import berth.dcp
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from berth import _dcp_group
from saves import comparable
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, empty

SECONDS = 20  # of the process group's timeout


class Rank:
    """One process of a world."""

    def __init__(self, rank, n, folder):
        self.rank, self.n, self.folder = rank, n, folder
        self.mesh = init_device_mesh("cpu", (n,)) if dist.is_initialized() else None

    def path(self, name):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def assert_saved(self, state, whole, name):
        """The file of all ranks is the one of torch.save, byte for byte."""
        mine, theirs = self.path(f"berth/{name}"), self.path(f"torch/{name}")
        berth.dcp.save(state, mine)
        if self.rank == 0:
            torch.save(whole, theirs)
            assert comparable(read(mine)) == comparable(read(theirs)), f"{mine} and {theirs} differ"
            torch.load(mine, weights_only=True)
        dist.barrier()
        return mine

    def assert_raises(self, kind, of, words, function, *arguments, **named):
        """All ranks raise the same exception, which came from rank `of`."""
        try:
            function(*arguments, **named)
        except Exception as error:
            answers = [None] * self.n
            dist.all_gather_object(answers, (type(error).__name__, str(error)))
            assert len(set(answers)) == 1, answers
            assert isinstance(error, kind) and words in str(error), repr(error)
            assert self.n == 1 or str(error.args[-1]).startswith(f"rank {of}: "), repr(error)
        else:
            raise AssertionError(f"no exception with {words!r}")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def tensors():
    """The same on all ranks: sizes that no world divides evenly, and one that has fewer rows than ranks.

    Without those of dtypes that gloo cannot distribute; these are not the same in all versions of PyTorch.
    """
    torch.manual_seed(7)
    made = {"uneven": torch.randn(7, 5), "few": torch.randn(2, 3), "none": torch.empty(0, 4),
            "large": torch.randn(1500, 700), "half": torch.randn(9, 33).to(torch.bfloat16),
            "complex": torch.randn(6, 2, dtype=torch.complex64), "line": torch.arange(11),
            "bits": torch.randn(5, 5) > 0}
    return {name: tensor for name, tensor in made.items() if is_carried(tensor)}


def is_carried(tensor):
    try:
        dist.broadcast(tensor.clone(), 0)
    except RuntimeError as error:
        assert "scalar type" in str(error), error
        return False
    return True


def whole_and_shards(rank):
    """A state with all kinds of values, as a whole and in shards."""
    whole, shards = collections.OrderedDict(), collections.OrderedDict()
    whole._metadata = shards._metadata = collections.OrderedDict(layer={"version": 2})
    for name, tensor in tensors().items():
        whole[name], shards[name] = tensor, distribute_tensor(tensor.clone(), rank.mesh, [Shard(0)])
        whole[f"{name}.whole"] = tensor.clone()
        shards[f"{name}.whole"] = distribute_tensor(tensor.clone(), rank.mesh, [Replicate()])
    scalar = torch.tensor(2.5)
    parameter = nn.Parameter(torch.randn(4, 3))
    for state, place in ((whole, lambda tensor: tensor),
                         (shards, lambda tensor: distribute_tensor(tensor, rank.mesh, [Shard(0)]))):
        weight = nn.Parameter(place(parameter.detach().clone()))
        inner = place(torch.ones(3, 2)).requires_grad_()
        state["a.b"], state["a"] = place(torch.ones(3)), {"b": place(torch.zeros(3))}
        state["optimizer"] = {"state": {0: {"step": scalar, "exp": state["uneven"]}, 1: {}},
                              "groups": [{"params": [0, 1], "lr": 0.1, "betas": (0.9, 0.99)}]}
        state["tied"], state["parameter"], state["inner"] = weight.detach(), weight, (inner, [inner])
        state["numbers"], state[3] = [None, True, 2**70, 1j, b"x", {1, 2}], torch.Size([1, 2])
    shards["scalar"] = distribute_tensor(scalar, rank.mesh, [Replicate()])
    whole["scalar"] = scalar.clone()
    return whole, shards


def zeros_like(state, mesh, place):
    """A state of the same form whose tensors are to be filled."""
    if isinstance(state, DTensor):
        return distribute_tensor(torch.zeros_like(state.full_tensor()), mesh,
                                 place if state.dim() else [Replicate()])
    if isinstance(state, torch.Tensor):
        return torch.zeros_like(state)
    if isinstance(state, dict):
        return {key: zeros_like(item, mesh, place) for key, item in state.items()}
    if type(state) in (list, tuple):
        return type(state)(zeros_like(item, mesh, place) for item in state)
    return None


def assert_same(loaded, whole, where=""):
    if isinstance(loaded, torch.Tensor):
        loaded = loaded.full_tensor() if isinstance(loaded, DTensor) else loaded
        assert torch.equal(loaded.detach(), whole.detach()), where
    elif isinstance(whole, dict):
        assert list(loaded) == list(whole), where
        for key, item in whole.items():
            assert_same(loaded[key], item, f"{where}[{key!r}]")
    elif isinstance(whole, (list, tuple)):
        assert len(loaded) == len(whole), where
        for i, item in enumerate(whole):
            assert_same(loaded[i], item, f"{where}[{i}]")
    else:
        assert loaded == whole and type(loaded) is type(whole), (where, loaded, whole)


# ---- cases ----


def test_bytes(rank):
    whole, shards = whole_and_shards(rank)
    rank.assert_saved(shards, whole, "all.pt")


def test_options_are_the_coordinators(rank):
    if not importlib.util.find_spec("torch.utils.serialization"):  # PyTorch 2.6
        return
    import torch.utils.serialization

    whole, shards = whole_and_shards(rank)
    with torch.utils.serialization.config.patch({"save.storage_alignment": 4096}), \
            berth.config.patch(save_storage_alignment=4096 if rank.rank == 0 else 64):
        path = rank.assert_saved(shards, whole, "aligned.pt")
        aligned = read(path)
        berth.dcp.async_save(shards, path).result(SECONDS)
    assert read(path) == aligned  # on its thread, too


def test_two_dimensions_of_a_mesh(rank):
    if rank.n != 4:
        return
    from torch.distributed.tensor.placement_types import _StridedShard

    mesh, tensor = init_device_mesh("cpu", (2, 2)), torch.randn(13, 6)
    dist.broadcast(tensor, 0)
    places = [[Shard(0), Replicate()], [Replicate(), Shard(0)], [Shard(0), Shard(0)],
              [Replicate(), Replicate()], [_StridedShard(0, split_factor=2), Shard(0)]]
    shards = {str(i): distribute_tensor(tensor, mesh, place) for i, place in enumerate(places[:-1])}
    mine = {(0, 0): [0, 4], (0, 1): [7, 10], (1, 0): [4, 7], (1, 1): [10, 13]}[tuple(mesh.get_coordinate())]
    shards["4"] = DTensor.from_local(tensor[slice(*mine)], mesh, places[-1], run_check=False,
                                     shape=tensor.shape, stride=tensor.stride())
    whole, sideways = {name: tensor.clone() for name in shards}, tensor.t().contiguous()
    shards["5"] = DTensor.from_local(sideways[:, slice(*mine)].contiguous(), mesh,
                                     [_StridedShard(1, split_factor=2), Shard(1)], run_check=False,
                                     shape=sideways.shape, stride=sideways.stride())
    path = rank.assert_saved(shards, {**whole, "5": sideways}, "mesh.pt")
    for name, place in enumerate(places):
        target = {str(name): DTensor.from_local(torch.zeros_like(shards[str(name)].to_local()), mesh, place,
                                                run_check=False, shape=tensor.shape, stride=tensor.stride())}
        berth.dcp.load(target, path)
        assert torch.equal(target[str(name)].to_local(), shards[str(name)].to_local()), place


def test_one_memory_in_two_placements(rank):
    """They are other tensors, each with a storage of its own."""
    local = torch.arange(6.).reshape(3, 2)
    shards = {"rows": DTensor.from_local(local, rank.mesh, [Shard(0)]),
              "all": DTensor.from_local(local, rank.mesh, [Replicate()])}
    rank.assert_saved(shards, {"rows": local.repeat(rank.n, 1), "all": local.clone()}, "placements.pt")


def test_keys_of_other_ranks(rank):
    """Of a model whose layers are on other ranks, and of values that only some ranks have."""
    tensor = torch.arange(12.).reshape(6, 2)
    shards = {"model": {"w": distribute_tensor(tensor, rank.mesh, [Shard(0)])}, "seen": rank.rank}
    whole = {"model": {"w": tensor}, "seen": 0}
    if rank.n > 1:
        others = DeviceMesh("cpu", list(range(1, rank.n)))
        shards["model"]["beside"] = distribute_tensor(tensor - 100, others, [Shard(0)])  # 0 has nothing of it
        whole["model"].update(beside=tensor - 100, last=tensor + 100)
        if rank.rank > 0:
            shards["model"]["last"] = distribute_tensor(tensor + 100, others, [Shard(0)])
    experts = [[torch.arange(5000.) * (n + 1) + i for i in range(3)] for n in range(rank.n)]  # a chain of each rank
    texts = [["".join(("two", " of ", str(n))) for _ in range(2)] for n in range(rank.n)]  # that are not one object
    shards[f"rank{rank.rank}"] = {"n": rank.rank, "t": (tensor + rank.rank).t(), 0: {}, "e": experts[rank.rank], "s": texts[rank.rank]}
    shards["some"] = {"mine": 0} if rank.rank == 0 else {f"item{rank.rank}": [rank.rank], "of the first": rank.rank}
    whole["rank0"] = {"n": 0, "t": tensor.clone().t(), 0: {}, "e": experts[0], "s": texts[0]}
    whole["some"] = {"mine": 0}
    for i in range(1, rank.n):
        whole["some"][f"item{i}"] = [i]
        whole["some"].setdefault("of the first", i)
        whole[f"rank{i}"] = {"n": i, "t": (tensor + i).t().contiguous(), 0: {}, "e": experts[i], "s": texts[i]}
    path = rank.assert_saved(shards, whole, "keys.pt")
    assert_same(berth.load(path), whole)


def test_group_of_some_ranks(rank):
    """Its first rank is the coordinator, whatever its number in the whole is."""
    if rank.n < 3:
        return
    members = [1, rank.n - 1]
    group = dist.new_group(members)
    path = rank.path("some.pt")
    if rank.rank in members:
        tensor = torch.arange(4.)
        berth.dcp.save({"of": rank.rank, f"t{rank.rank}": tensor * rank.rank}, path, process_group=group)
        loaded = {"of": 0, f"t{rank.rank}": torch.zeros(4)}
        keys = berth.dcp.load(loaded, path, process_group=group)
        assert len(keys.unexpected) == 1 and not keys.missing
        assert_same(loaded, {"of": 1, f"t{rank.rank}": tensor * rank.rank})
    else:
        try:
            berth.dcp.save({}, path, process_group=group)
        except ValueError as error:
            assert "is not in the process group" in str(error)
        else:
            raise AssertionError("a rank that is not in the group has saved")


def test_other_dimensions(rank):
    """Pieces of 1 MiB are written side by side."""
    tensor = torch.arange(2 * 1048576 * rank.n // 4 * 4, dtype=torch.float32).reshape(2, -1)
    rank.assert_saved({"w": distribute_tensor(tensor, rank.mesh, [Shard(1)])}, {"w": tensor}, "side.pt")


def test_other_meshes(rank):
    """What 4 ranks saved is read by all; in place, into shards of other forms."""
    path = os.path.join(rank.folder, "4/berth/all.pt")
    whole, shards = whole_and_shards(rank)
    for place in (Shard(0), Replicate()):
        target = zeros_like(shards, rank.mesh, [place])
        before = {name: item.to_local().data_ptr() for name, item in target.items()
                  if isinstance(item, DTensor)}
        keys = berth.dcp.load(target, path)
        assert keys == ([], []), keys
        assert_same(target, whole)
        assert before == {name: item.to_local().data_ptr() for name, item in target.items()
                          if isinstance(item, DTensor)}
    matrix = tensors()["large"]
    zeros = torch.zeros_like(matrix, dtype=torch.float64)
    columns = {"large": nn.Parameter(distribute_tensor(zeros, rank.mesh, [Shard(1)]))}
    keys = berth.dcp.load(columns, path)
    assert torch.equal(columns["large"].detach().full_tensor(), matrix.double())
    assert "['half']" in keys.unexpected and not keys.missing


def test_bytes_read(rank):
    """A rank reads its slices, the head, and little else."""
    tensor = torch.arange(4 << 20, dtype=torch.float32).reshape(4096, -1)
    path = rank.path("read.pt")
    shard = distribute_tensor(tensor, rank.mesh, [Shard(0)])
    berth.dcp.save({"a": shard, "b": shard * 2}, path)
    target = {"b": distribute_tensor(torch.zeros_like(tensor), rank.mesh, [Shard(0)])}
    before = n_read()
    berth.open(path).close()
    head = n_read() - before
    berth.dcp.load(target, path)
    nbytes, n = target["b"].to_local().nbytes, n_read() - before - 2 * head
    assert head < 2 << 20 and nbytes <= n <= 1.05 * nbytes, (n, nbytes)
    assert torch.equal(target["b"].full_tensor(), tensor * 2)


def test_bytes_read_in_every_placement(rank):
    """Of what 4 ranks wrote, each reads at most 1.05 of its slices: of usual and of uneven columns, too."""
    path = os.path.join(rank.folder, "../4/placed.pt")
    made = {"usual": ((1024, 4096), torch.float32), "uneven": ((1021, 4099), torch.bfloat16)}
    torch.manual_seed(5)
    whole = {name: torch.randn(shape).to(dtype) for name, (shape, dtype) in made.items()}
    if rank.n == 4:
        shards = {name: distribute_tensor(each, rank.mesh, [Shard(1)]) for name, each in whole.items()}
        berth.dcp.save(shards, path)
    grid = init_device_mesh("cpu", (2, 2)) if rank.n == 4 else init_device_mesh("cpu", (rank.n, 1))
    places = {"rows": (rank.mesh, [Shard(0)]), "columns": (rank.mesh, [Shard(1)]),
              "replicas": (rank.mesh, [Replicate()]), "both": (grid, [Shard(1), Shard(0)]),
              "some": (grid, [Replicate(), Shard(1)])}
    for name, tensor in whole.items():
        for how, (mesh, place) in places.items():
            target = {name: empty(tensor.shape, dtype=tensor.dtype, device_mesh=mesh, placements=place)}
            mine, before = target[name].to_local(), n_read()
            berth.open(path).close()
            head = n_read() - before
            berth.dcp.load(target, path)
            n = n_read() - before - 2 * head
            assert mine.nbytes <= n <= 1.05 * mine.nbytes, (name, how, n, mine.nbytes)
            starts = [tensor.shape[d] - mine.shape[d] for d in (0, 1)] if rank.rank == rank.n - 1 else [0, 0]
            if rank.rank in (0, rank.n - 1):
                part = tensor[starts[0]:, starts[1]:][:mine.shape[0], :mine.shape[1]]
                assert torch.equal(mine, part), (name, how)


def n_read():
    """Bytes that this process has read from files and sockets, less those of sockets."""
    with open("/proc/self/io", encoding="ascii") as file:
        return int(file.readline().split()[1])


def test_safetensors(rank):
    import safetensors.torch

    path = rank.path("w.safetensors")
    if rank.rank == 0:
        safetensors.torch.save_file({"w": torch.arange(30.).reshape(10, 3)}, path)
    dist.barrier()
    target = {"w": distribute_tensor(torch.zeros(10, 3), rank.mesh, [Shard(0)])}
    berth.dcp.load(target, path)
    assert torch.equal(target["w"].full_tensor(), torch.arange(30.).reshape(10, 3))


def test_loads_that_fail(rank):
    path = rank.path("small.pt")
    if rank.rank == 0:
        quantized = torch.quantize_per_tensor(torch.ones(4), 1, 0, torch.qint8)
        torch.save({"w": torch.ones(4), "n": 1, "list": [1], "s": torch.eye(4).to_sparse(), "q": quantized,
                    "d": {"a": 1}, "t": torch.nested.nested_tensor([torch.ones(2), torch.ones(2)])},
                   path)
    dist.barrier()
    last = rank.n - 1

    def fail(kind, words, state):
        rank.assert_raises(kind, last, words, berth.dcp.load, state if rank.rank == last else {"n": 0}, path)

    tensor = torch.zeros(4)
    fail(ValueError, "does not have ['x']", {"x": 1, "w": tensor})
    fail(ValueError, "['w'] has the shape [5] in the state, and [4]", {"w": torch.zeros(5)})
    fail(ValueError, "['n'] is a tensor in the state, and int", {"n": torch.zeros(1)})
    fail(ValueError, "['list'] holds tensors in the state", {"list": {"a": tensor}})
    fail(ValueError, "['w'] has no memory", {"w": torch.zeros(4, device="meta")})
    fail(ValueError, "['s'] is sparse, nested or quantized", {"s": torch.zeros(4, 4)})
    fail(ValueError, "['q'] is sparse, nested or quantized", {"w": tensor, "q": tensor})
    fail(ValueError, "['t'] is sparse, nested or quantized", {"t": torch.zeros(2, 2)})
    assert not tensor.any()  # nothing was read
    none = rank.path("none.pt")
    rank.assert_raises(berth.MissingFileError, 0, "none.pt", berth.dcp.load, {"w": tensor}, none)
    keys = berth.dcp.load({"x": 1, "w": tensor}, path, strict=False)
    assert keys == (["['x']"], ["['n']", "['list']", "['s']", "['q']", "['d']", "['t']"]) and tensor.all()
    state = {"w": None, "list": [0], "d": 5}
    berth.dcp.load(state, path)
    assert torch.equal(state["w"], torch.ones(4)) and (state["list"], state["d"]) == ([1], {"a": 1})


class Odd:
    def __reduce__(self):
        raise KeyError("of the state")


def test_saves_that_fail(rank):
    path, last = rank.path("fail/kept.pt"), rank.n - 1
    shard = distribute_tensor(torch.ones(8, 3), rank.mesh, [Shard(0)])
    berth.dcp.save({"w": shard}, path)
    kept, left = read(path), os.listdir(os.path.dirname(path))

    def fail(kind, words, state, of=last, to=path):
        rank.assert_raises(kind, of, words, berth.dcp.save, state if rank.rank == of else {"w": shard}, to)
        assert read(path) == kept and os.listdir(os.path.dirname(path)) == left

    partial = DTensor.from_local(torch.ones(2), rank.mesh, [Partial()], run_check=False)
    fail(ValueError, "a tensor that is placed as", {"w": partial})
    short = DTensor.from_local(torch.ones(1, 3), rank.mesh, [Shard(0)], run_check=False, shape=(12, 3), stride=(3, 1))
    fail(ValueError, f"a shard of [1, 3] where (Shard(dim=0),) gives [{12 // rank.n}, 3]", {"w": short})
    fail(TypeError, "['lock'] cannot be saved" if last == 0 else "cannot pickle", {"lock": threading.Lock()})
    fail(TypeError, "['lock'] cannot be saved", {"lock": threading.Lock()}, of=0)
    fail(berth.MissingFileError, "", {"w": shard}, of=0, to=rank.path("x/y.pt") + "/z.pt")
    if rank.n > 1:
        fail(KeyError, f"'rank {last}: of the state'", {"w": shard, "odd": Odd()})
        fail(TypeError, "['s'] cannot be saved: a tensor (Tensor of the layout torch.sparse_coo)",
             {"w": shard, "s": torch.eye(2).to_sparse()})
        fail(ValueError, "is torch.float32 [9, 3] here, but torch.float32 [8, 3] on the coordinator",
             {"w": distribute_by_hand(torch.ones(9, 3), rank)})
        if rank.rank == last:
            shard = None
        rank.assert_raises(berth.ArgumentError, 0, "", berth.dcp.save, {"w": shard}, path)  # its rows
        shard = distribute_tensor(torch.ones(8, 3), rank.mesh, [Shard(0)])
    berth.dcp.save({"w": shard}, path)  # and the group is still in step
    assert read(path) == kept


def distribute_by_hand(tensor, rank, dim=0):
    """As distribute_tensor, without messages: only one rank calls it, or gloo does not know the dtype."""
    each = -(-tensor.shape[dim] // rank.n)
    begin = min(each * rank.rank, tensor.shape[dim])
    mine = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor  # some cannot be copied
    mine = mine.narrow(dim, begin, min(each, tensor.shape[dim] - begin)).contiguous().view(tensor.dtype)
    return DTensor.from_local(mine, rank.mesh, [Shard(dim)], run_check=False, shape=tensor.shape,
                              stride=tensor.stride())


def test_asynchronously(rank):
    whole, shards = whole_and_shards(rank)
    whole["columns"] = torch.randn(5, 12)
    shards["columns"] = distribute_by_hand(whole["columns"], rank, 1)
    one, two, theirs = rank.path("async/one.pt"), rank.path("async/two.pt"), rank.path("torch/one.pt")
    if rank.rank == 0:
        torch.save(whole, theirs)
    groups, inner = set(), _dcp_group.Group.exchange
    _dcp_group.Group.exchange = lambda self, *others: groups.add(self._group) or inner(self, *others)
    jobs = [berth.dcp.async_save(shards, one)]
    for each in shards.values():
        if isinstance(each, DTensor):
            each._local_tensor.data.zero_()
    shards["optimizer"]["state"][0]["step"].zero_()
    del shards["numbers"]
    jobs.append(berth.dcp.async_save(shards, two))
    dist.barrier()  # the program's own messages go on
    jobs.append(berth.dcp.async_save(shards, rank.path("x/y.pt") + "/z.pt"))
    assert [job.result(SECONDS) for job in jobs[:2]] == [None, None]
    rank.assert_raises(berth.MissingFileError, 0, "", jobs[2].result, SECONDS)
    _dcp_group.Group.exchange = inner
    assert len(groups) == 1 and dist.group.WORLD not in groups  # the exchange, too
    if rank.rank == 0:
        assert comparable(read(one)) == comparable(read(theirs))
        assert not berth.load(two)["uneven"].any()
    dist.barrier()


def test_storage_of_torch(rank):
    """torch.distributed.checkpoint saves and loads through Berth: the values, in its own keys."""
    tensor = torch.arange(21.).reshape(7, 3)

    def state(x):
        return {"m": {"w": distribute_tensor(tensor * x, rank.mesh, [Shard(0)]), "b": tensor[0] * x,
                      "none": distribute_tensor(torch.zeros(0, 3), rank.mesh, [Shard(0)]),
                      "c": distribute_tensor(tensor * x, rank.mesh, [Shard(1)])},
                "o": {"groups": [{"lr": 0.5 * x, "betas": (0.9, 0.5)}, {"t": tensor[1] * x}], "empty": {}},
                "layers": [tensor[i] * x for i in range(7)],  # of which PyTorch gives each rank some
                "step": 7 * x}

    path = rank.path("storage.pt")
    checkpoint.save(state(1), storage_writer=berth.dcp.Writer(path))
    loaded = torch.load(path, weights_only=True)
    assert loaded["o"]["groups"][0] == {"lr": 0.5, "betas": (0.9, 0.5)} and loaded["step"] == 7
    assert torch.equal(loaded["m"]["w"], tensor) and torch.equal(loaded["o"]["groups"][1]["t"], tensor[1])
    assert torch.equal(torch.stack(loaded["layers"]), tensor)
    target = state(0)
    checkpoint.load(target, storage_reader=berth.dcp.Reader(path))
    assert_same({"m": target["m"], "step": target["step"]},
                {"m": {"w": tensor, "b": tensor[0], "none": torch.zeros(0, 3), "c": tensor}, "step": 7})
    assert target["o"]["groups"][0]["lr"] == 0.5 and torch.equal(target["o"]["groups"][1]["t"], tensor[1])
    assert torch.equal(torch.stack(target["layers"]), tensor)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(10, 7), nn.Linear(7, 3, bias=False)

    def forward(self, x):
        return self.second(self.first(x).relu())


def test_fsdp(rank):
    """A model and an optimizer whose state has int keys; trained a step; saved, and loaded into others."""
    torch.manual_seed(3)
    model, optimizer = trained(rank)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}
    whole = full(state)
    path = rank.assert_saved(state, whole, "fsdp.pt")
    torch.manual_seed(4)
    other, its = trained(rank)
    target = {"model": other.state_dict(), "optimizer": its.state_dict(), "step": 0}
    assert berth.dcp.load(target, path) == ([], [])
    other.load_state_dict(target["model"])
    its.load_state_dict(target["optimizer"])
    assert_same(full(other.state_dict()), whole["model"])
    assert_same(full(its.state_dict()), whole["optimizer"])
    assert target["step"] == 1


def trained(rank):
    model = Model()
    for each in (model.first, model.second, model):
        fully_shard(each, mesh=rank.mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    if hasattr(torch.cpu.Stream, "record_event"):
        model(torch.randn(4, 10)).sum().backward()
    else:  # PyTorch 2.6: a model of fully_shard computes on CUDA only
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def full(value):
    """The state as one process would have it: DTensors as contiguous tensors of exactly their elements."""
    if isinstance(value, DTensor):
        return value.full_tensor().clone(memory_format=torch.contiguous_format)
    if isinstance(value, dict):
        made = type(value)((key, full(item)) for key, item in value.items())
        made.__dict__.update(value.__dict__) if hasattr(value, "__dict__") else None
        return made
    if isinstance(value, (list, tuple)):
        return type(value)(map(full, value))
    return value


def alone(rank):
    """Without torch.distributed it is one process."""
    tensor = torch.arange(6.).reshape(3, 2)
    itself = {"w": tensor, "list": [tensor]}
    itself["itself"] = itself
    one, two, theirs = (os.path.join(rank.folder, name, "alone.pt") for name in ("one", "two", "torch"))
    for each in (one, two, theirs):
        os.makedirs(os.path.dirname(each))
    torch.save(itself, theirs)
    berth.dcp.save(itself, one)
    job = berth.dcp.async_save(itself, two)
    tensor.zero_()
    job.result(SECONDS)
    assert comparable(read(one)) == comparable(read(theirs)) == comparable(read(two))
    assert berth.dcp.load({"w": tensor}, one) == ([], ["['list']", "['itself']"])
    assert tensor.sum() == 15
    for wrong, words in (({"w": threading.Lock()}, "['w'] cannot be saved"), ({1: [print]}, "[1][0] cannot")):
        try:
            berth.dcp.async_save(wrong, two).result(SECONDS)
        except TypeError as error:
            assert str(error).startswith(words), error
        else:
            raise AssertionError(words)
