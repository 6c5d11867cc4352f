# SPDX-License-Identifier: BSD-3-Clause
"""Processes of torch.distributed that save to S3 and load from it, for joint.py: PyTorch is imported once, then they fork.

usage: ranks.py N SECONDS FOLDER TEXT
Each rank runs TEXT, with the names of this file. SECONDS: the timeout of the group. Each prints a line of JSON:
[rank, what was raised, or null].
"""

import datetime
import json
import os
import resource
import signal
import sys
import threading
import time

import berth
import torch
import torch.distributed as dist
from berth import _dcp_group, _dcp_save, _native
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

MIB = 1 << 20


def whole(seed=1):
    """What all ranks have together: 52 MB, of tensors of all sizes."""
    made = {"rows": torch.arange(3_000_001 * 2).reshape(-1, 2).float() * seed,
            "columns": torch.arange(1500 * 2000).reshape(1500, 2000).float() * seed,
            "replicated": torch.arange(1_300_000).double() * seed}
    for i in range(40):
        made[f"small.{i}"] = torch.full((101, 53), float(i * seed))
        made[f"step.{i}"] = torch.tensor(float(i))
    return {"model": made, "plain": torch.arange(900_000).float(), "few": torch.ones(3), "step": 7 * seed}


def place(name):
    return [Shard(1)] if name == "columns" else [Replicate()] if name == "replicated" else [Shard(0)]


def shards(state, mesh):
    """The same, as DTensors but for what is plain."""
    model = {name: tensor if name.startswith("step") else distribute_tensor(tensor, mesh, place(name))
             for name, tensor in state["model"].items()}
    return {**state, "model": model}


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def kill_at(where, name, nth=1, number=signal.SIGKILL):
    """This process dies when it calls a function for the nth time."""
    inner, left = getattr(where, name), [None] * (nth - 1)

    def die(*arguments, **named):
        if left:
            left.pop()
            return inner(*arguments, **named)
        return os.kill(os.getpid(), number)

    setattr(where, name, die)


def run(rank, n, seconds, folder, text):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=n,
                            timeout=datetime.timedelta(seconds=seconds))
    names = {**globals(), "rank": rank, "n": n, "folder": folder, "mesh": init_device_mesh("cpu", (n,))}
    why = None
    try:
        exec(text, names)  # the tests' own
    except BaseException as error:
        why = f"{type(error).__name__}: {error}"
        why += "".join(f"; {note}" for note in getattr(error, "__notes__", []))
    os.write(1, (json.dumps([rank, why]) + "\n").encode())
    os._exit(0)


def main():
    n, seconds, folder, text = int(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:]
    torch.set_num_threads(1)
    children = []
    for rank in range(n):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            run(rank, n, seconds, folder, text)
        children.append(child)
    stopped = set()
    while children:
        child, status = os.waitpid(-1, os.WUNTRACED)
        (stopped.add if os.WIFSTOPPED(status) else children.remove)(child)
        if stopped.issuperset(children):
            for each in children:
                os.kill(each, signal.SIGKILL)


if __name__ == "__main__":
    main()
