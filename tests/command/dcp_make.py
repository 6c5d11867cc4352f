# SPDX-License-Identifier: BSD-3-Clause
"""Makes DCP directories for dcp.py, and what dcp_to_torch_save makes of them: dcp_make.py FOLDER.

FOLDER/NAME is a directory, FOLDER/judged/NAME.pt its judgement. FOLDER/bad/NAME is one that lies.
"""

import collections
import io
import json
import os
import pickle
import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import (_MEM_FORMAT_ENCODING, BytesStorageMetadata, ChunkStorageMetadata,
                                                   Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata)

warnings.simplefilter("ignore")


def nested():
    """Of every kind that DCP saves: dtypes, ranks, strides, containers, other values."""
    dtypes = (torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int64, torch.bool,
              torch.complex64, torch.float8_e4m3fn, torch.uint16)
    return {
        "model": {"layers.0.weight": torch.arange(12.).reshape(3, 4),
                  "turned": torch.arange(6.).reshape(2, 3).t(),
                  "empty": torch.empty(0, 3), "scalar": torch.tensor(5), "part": torch.arange(10)[2:5],
                  "channels": torch.arange(120.).view(2, 3, 4, 5).to(memory_format=torch.channels_last),
                  "parameter": torch.nn.Parameter(torch.ones(2, 2)),
                  "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj()},
        "dtypes": {str(dtype): torch.arange(7).to(dtype) for dtype in dtypes},
        "optimizer": {"state": {0: {"step": torch.tensor(3.), "exp": torch.ones(4)}},
                      "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0]}]},
        "epoch": 3, "name": "a run", "none": None, "set": {1, 2}, "long": "x" * 1000,
        "list": [torch.zeros(2), "between", torch.ones(3)],
        "ordered": collections.OrderedDict(a=torch.tensor(1.)),
    }


def torch_saved(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


class Directory:
    """A DCP directory made by hand, so that it can have any chunks, and lie."""

    def __init__(self, path):
        self.path = path
        self.files = collections.defaultdict(bytes)
        self.metadata = Metadata(state_dict_metadata={}, planner_data={}, storage_data={})

    def place(self, index, content, file="__0_0.distcp"):
        self.metadata.storage_data[index] = _StorageInfo(file, len(self.files[file]), len(content))
        self.files[file] += content

    def add_bytes(self, name, value):
        self.metadata.state_dict_metadata[name] = BytesStorageMetadata()
        self.place(MetadataIndex(name), torch_saved(value))
        return self

    def add(self, name, tensor, *boxes, saved=lambda piece: piece.clone(), path=None):
        """Each box: (starts, lengths); each goes to a file of its own in turn."""
        chunks = []
        for i, (starts, lengths) in enumerate(boxes or [((0,) * tensor.ndim, tuple(tensor.shape))]):
            piece = tensor[tuple(slice(s, s + n) for s, n in zip(starts, lengths))]
            chunks.append(ChunkStorageMetadata(torch.Size(starts), torch.Size(lengths)))
            if piece.numel() or tensor.numel() == 0:
                self.place(MetadataIndex(name, starts, i), torch_saved(saved(piece)), f"__{i % 3}_0.distcp")
        self.metadata.state_dict_metadata[name] = TensorStorageMetadata(
            TensorProperties(dtype=tensor.dtype), tensor.size(), chunks)
        self.metadata.planner_data[name] = path or (name,)
        return self

    def info(self, name):
        return next(info for index, info in self.metadata.storage_data.items() if index.fqn == name)

    def write(self, pickled=None):
        os.makedirs(self.path)
        for file, content in self.files.items():
            with open(os.path.join(self.path, file), "wb") as out:
                out.write(content)
        with open(os.path.join(self.path, ".metadata"), "wb") as out:
            out.write(pickle.dumps(self.metadata, protocol=4) if pickled is None else pickled)


def grid(shape, *cuts):
    """The boxes of a tensor that is cut at these positions of each dimension."""
    boxes = [((), ())]
    for n, at in zip(shape, cuts):
        edges = [0, *at, n]
        boxes = [(s + (a,), l + (b - a,)) for s, l in boxes for a, b in zip(edges, edges[1:])]
    return boxes


def chunked(path):
    d = Directory(path)
    wide = torch.arange(700 * 401, dtype=torch.float64).reshape(700, 401)
    d.add("rows", wide[:, :8].contiguous(), *grid((700, 8), (100, 350), ()))
    d.add("columns", wide, *grid((700, 401), (), (1, 50, 133, 400)))
    d.add("both", wide[:99, :77].contiguous().to(torch.int16), *grid((99, 77), (10, 98), (1, 2, 76)))
    cube = torch.arange(2 * 5 * 6 * 7).reshape(2, 5, 6, 7)
    d.add("cube", cube, *grid(cube.shape, (1,), (2,), (3, 4), ()))
    d.add("uneven", torch.arange(20.).reshape(4, 5), *grid((4, 5), (2, 4), ()))
    d.add("turned", torch.arange(30.).reshape(5, 6), *grid((5, 6), (2,), (3,)),
          saved=lambda piece: piece.t().contiguous().t())
    d.add("nothing", torch.empty(3, 0))
    d.add("bricks", torch.arange(9).reshape(3, 3), ((0, 0), (1, 2)), ((0, 2), (2, 1)), ((1, 0), (2, 1)),
          ((2, 1), (1, 2)), ((1, 1), (1, 1)))
    d.add("at.1.x", torch.ones(2), path=("at", 1, "x")).add("at.0.y", torch.zeros(2), path=("at", 0, "y"))
    d.write()


def small(path):
    return (Directory(path).add("a", torch.arange(64.).reshape(8, 8), *grid((8, 8), (4,), ()))
            .add("b", torch.arange(4.)).add_bytes("n", 7))


def pickle_members(reduce):
    """Versions of Python pickle the members of an Enum in two ways."""
    _MEM_FORMAT_ENCODING.__reduce_ex__ = lambda member, protocol: reduce(member)


def by_value(member):
    return type(member), (member.value,)


def by_name(member):
    """As Python 3.11.0 to 3.11.3."""
    return getattr, (type(member), member.name)


class Run:
    """What pickle would run."""

    def __reduce__(self):
        return os.system, ("touch pwned",)


class GetAttribute:
    """What pickle would get, though no member of an Enum."""

    def __init__(self, *arguments):
        self.arguments = arguments

    def __reduce__(self):
        return getattr, self.arguments


def set_info(name, **fields):
    return lambda d: [setattr(d.info(name), key, value) for key, value in fields.items()]


def set_chunk(**fields):
    def change(d):
        for key, value in fields.items():
            setattr(d.metadata.state_dict_metadata["a"].chunks[1], key, torch.Size(value))
    return change


def set_path(*path):
    return lambda d: d.metadata.planner_data.update(b=path)


def change_tensor(name, **fields):
    return lambda d: [setattr(d.metadata.state_dict_metadata[name], *field) for field in fields.items()]


def forget(name):
    return lambda d: [d.metadata.storage_data.pop(index) for index in list(d.metadata.storage_data)
                      if index.fqn == name]


LIES = {
    "outside": set_info("b", relative_path="../small/__0_0.distcp"),
    "absolute": set_info("b", relative_path="/etc/passwd"),
    "parent": set_info("b", relative_path=".."),
    "folder": set_info("b", relative_path="folder"),
    "no-file": set_info("b", relative_path="gone.distcp"),
    "offset": set_info("b", offset=10**6),
    "negative": set_info("b", offset=-1),
    "length": set_info("b", length=10**12),
    "huge": set_info("b", offset=2**62, length=2**62),
    "shared": lambda d: set_info("b", relative_path="__0_0.distcp", offset=d.info("a").offset,
                                 length=d.info("a").length)(d),
    "short-piece": set_info("b", length=8),
    "transformed": set_info("b", transform_descriptors=["zstd"]),
    "beyond": set_chunk(offsets=(7, 0)),
    "overlap": set_chunk(offsets=(3, 0)),
    "overlap-more": lambda d: d.metadata.state_dict_metadata["a"].chunks.append(
        ChunkStorageMetadata(torch.Size((2, 2)), torch.Size((1, 1)))),
    "hole": set_chunk(sizes=(3, 8)),
    "rank": set_chunk(offsets=(4,), sizes=(4,)),
    "no-place": forget("b"),
    "no-value": forget("n"),
    "shape": change_tensor("b", size=torch.Size((2, 2)),
                           chunks=[ChunkStorageMetadata(torch.Size((0, 0)), torch.Size((2, 2)))]),
    "size": change_tensor("b", size=torch.Size((3,)),
                          chunks=[ChunkStorageMetadata(torch.Size((0,)), torch.Size((3,)))]),
    "dtype": change_tensor("b", properties=TensorProperties(dtype=torch.int32)),
    "large": change_tensor("b", size=torch.Size((2**40, 2**40))),
    "far-item": lambda d: set_path("list", 2**50)(d),
    "two-kinds": set_path("a", "x"),
    "twice": set_path("a"),
    "no-path": set_path(),
    "number-first": set_path(3, "x"),
    "runs": lambda d: setattr(d.metadata, "storage_meta", Run()),
    "runs-getattr": lambda d: setattr(d.metadata, "storage_meta", GetAttribute(torch.Size, "count")),
    "runs-private": lambda d: setattr(d.metadata, "storage_meta", GetAttribute(Metadata, "__init__")),
    "runs-key": lambda d: d.metadata.planner_data.update(c=[Run()]),
}


def bad(folder):
    for name, lie in LIES.items():
        d = small(os.path.join(folder, name))
        lie(d)
        if name == "shape":  # the index of the chunk must be found
            info = d.info("b")
            forget("b")(d)
            d.metadata.storage_data[MetadataIndex("b", (0, 0))] = info
        d.write()
    small(os.path.join(folder, "only-runs")).write(pickle.dumps(Run(), protocol=2))
    small(os.path.join(folder, "no-metadata")).write(pickle.dumps([1, 2]))
    small(os.path.join(folder, "no-pickle")).write(b"hello")
    small(os.path.join(folder, "cut")).write(pickle.dumps(small("").metadata)[:-9])


def main(folder):
    judged = os.path.join(folder, "judged")
    os.makedirs(judged)
    pickle_members(by_value)
    dcp.save(nested(), checkpoint_id=os.path.join(folder, "nested"), no_dist=True)
    chunked(os.path.join(folder, "chunked"))
    small(os.path.join(folder, "small")).write()
    pickle_members(by_name)
    small(os.path.join(folder, "by-name")).write()
    pickle_members(by_value)
    for name in ("nested", "chunked", "small", "by-name"):
        dcp_to_torch_save(os.path.join(folder, name), os.path.join(judged, f"{name}.pt"))
    with open(os.path.join(folder, "nested", ".metadata"), "rb") as file:
        places = pickle.load(file).storage_data
    with open(os.path.join(folder, "nested.json"), "w", encoding="utf-8") as out:
        json.dump([(index.fqn, info.relative_path, info.offset, info.length) for index, info in places.items()], out)
    bad(os.path.join(folder, "bad"))
    dcp.save({"large": torch.zeros(64 << 20)}, checkpoint_id=os.path.join(folder, "large"), no_dist=True)


def by_ranks(folder):
    """Two processes, each with rows of one tensor and columns of another: torchrun dcp_make.py --ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (2,))
    tensor = torch.arange(7 * 5.).reshape(7, 5)
    placed = {"rows": Shard(0), "columns": Shard(1), "all": Replicate()}
    state = {name: distribute_tensor(tensor, mesh, [placement]) for name, placement in placed.items()}
    dcp.save({"model": state, "epoch": 3}, checkpoint_id=os.path.join(folder, "ranks"))
    if torch.distributed.get_rank() == 0:
        dcp_to_torch_save(os.path.join(folder, "ranks"), os.path.join(folder, "judged", "ranks.pt"))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    by_ranks(sys.argv[2]) if sys.argv[1] == "--ranks" else main(sys.argv[1])
