# SPDX-License-Identifier: BSD-3-Clause
"""Processes of torch.distributed on this host, for dcp.py: PyTorch is imported once, then they are forked.

usage: dcp_ranks.py FOLDER WORLDS [WORD...]
WORLDS: numbers of ranks, "4,1". The ranks of each run the cases one after the other; then worlds of two die
as DEATHS say. With WORDs only the cases that have one of them in their names. Each line of FOLDER/report is
JSON: [world, case, rank, seconds, what went wrong, or ""].
"""

import datetime
import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings

import berth
import dcp_cases
import dcp_columns
import torch
import torch.distributed as dist
from berth import _dcp_group, _dcp_save, _native
from dcp_cases import SECONDS, Rank, alone, read
from torch.distributed.tensor import Shard, distribute_tensor

LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")

# ---- deaths: kill -9 of one rank at one place ----


def kill_before(name, where, number=signal.SIGKILL, nth=1):
    """This process dies when it calls a function for the nth time."""
    inner, left = getattr(where, name), [None] * (nth - 1)

    def die(*arguments, **named):
        if left:
            left.pop()
            return inner(*arguments, **named)
        os.kill(os.getpid(), number)

    setattr(where, name, die)


def kill_after(name, where):
    inner = getattr(where, name)

    def die(*arguments, **named):
        inner(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(where, name, die)


SAVING = _dcp_save.Saving
# (rank of 2, what kills it, whether the new file can be in place)
DEATHS = {
    "writer-begins": (1, lambda: kill_before("_begin", SAVING), False),
    "writer-exchanges": (1, lambda: kill_before("exchange", _dcp_group.Group), False),
    # Words, words, bytes: of columns, and of the fragments of rows.
    "writer-exchanges-bytes": (1, lambda: kill_before("exchange", _dcp_group.Group, nth=3), False),
    "writer-writes": (1, lambda: kill_before("joint_write", _native), False),
    "writer-has-written": (1, lambda: kill_after("joint_write", _native), False),
    "coordinator-begins": (0, lambda: kill_before("_begin", SAVING), False),
    "coordinator-has-planned": (0, lambda: kill_after("_plan", SAVING), False),
    "coordinator-writes": (0, lambda: kill_before("joint_write", _native), False),
    "coordinator-finishes": (0, lambda: kill_before("_finish", SAVING), False),
    "coordinator-has-finished": (0, lambda: kill_after("_finish", SAVING), True),
}

STOPS = {"writer-stops": (1, lambda: kill_before("joint_write", _native, signal.SIGSTOP), False)}


def death(rank, name):
    """The rank that is left gets an error in time; the path holds the old file or the new one."""
    path = rank.path(f"{name}/v.pt")
    old, new = ({str(dim): distribute_tensor(torch.full((5000, 40), x), rank.mesh, [Shard(dim)])
                 for dim in (0, 1)} for x in (1., 2.))
    berth.dcp.save(new, path)
    files = [read(path)]
    berth.dcp.save(old, path)
    files.insert(0, read(path))
    who, kill, is_new = {**DEATHS, **STOPS}[name]
    dist.barrier()
    if rank.rank == who:
        kill()
    began = time.monotonic()
    try:
        berth.dcp.save(new, path)
    except Exception:
        assert time.monotonic() - began < SECONDS + 10
    else:
        raise AssertionError("no error")
    time.sleep(0.1)
    assert read(path) == files[is_new], "neither the old file nor the new one"
    berth_clean(os.path.dirname(path))
    assert os.listdir(os.path.dirname(path)) == ["v.pt"]


def berth_clean(folder):
    subprocess.run([sys.executable, "-m", "berth", "clean", "--remove", folder], check=True,
                   stdout=subprocess.DEVNULL)


# ---- processes ----


def run_case(name, function, rank, report):
    began = time.monotonic()
    try:
        function(rank)
        why = ""
    except BaseException:
        why = traceback.format_exc()
    line = json.dumps([rank.n, name, rank.rank, round(time.monotonic() - began, 2), why]) + "\n"
    os.write(report, line.encode())
    return why


def run_rank(number, n, folder, cases, report):
    store = dist.FileStore(os.path.join(folder, f"store-{n}-{cases[0][0]}"), n)
    dist.init_process_group("gloo", store=store, rank=number, world_size=n,
                            timeout=datetime.timedelta(seconds=SECONDS))
    rank = Rank(number, n, folder)
    for name, function in cases:
        rank.folder = folder if name == "test_other_meshes" else os.path.join(folder, str(n))
        if run_case(name, function, rank, report):
            break  # the others may be elsewhere


def start(n, function, *arguments):
    """Forks n processes that call function(number, *arguments), and waits for them."""
    children = []
    for number in range(n):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                # PyTorch makes its pool of threads anew in a child. Threads of autograd that do it together
                # fail sometimes with "Invalid thread pool!" (seen with 2.15), so the first thread does it.
                torch.set_num_threads(1)
                function(number, *arguments)
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(0)
        children.append(child)
    stopped = [child for child in children if os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])]
    for child in stopped:  # the others are gone
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def run_alone(number, folder, report):
    run_case("alone", alone, Rank(number, 1, folder), report)


def main(folder, worlds, words):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    gc.freeze()  # or each fork would look at all that was imported, and so copy it
    report = os.open(os.path.join(folder, "report"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    chosen = [(name, function) for name, function in (vars(dcp_cases) | vars(dcp_columns)).items()
              if name.startswith("test_") and (not words or any(word in name for word in words))]
    start(1, run_alone, folder, report)
    for n in worlds:
        start(n, run_rank, n, folder, chosen, report)
    for name in [*DEATHS, *(STOPS if LONG else ())]:
        if not words or name in words:
            start(2, run_rank, 2, folder, [(name, lambda rank, name=name: death(rank, name))], report)


if __name__ == "__main__":
    main(sys.argv[1], [int(n) for n in sys.argv[2].split(",")], sys.argv[3:])
