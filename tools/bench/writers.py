# SPDX-License-Identifier: BSD-3-Clause
"""How fast several processes save one file, against one process, gathering, and a directory.

The state is float32 tensors of 4096 columns, as DTensors on 1, 2 and 4 processes of torch.distributed (gloo),
sharded by rows, then by columns. They save it durably with berth.dcp.save, which does what
berth_joint_begin, berth_joint_write and berth_joint_finish do, and sends what they need. Against it:
- one process that has the whole state: berth.save, durable;
- gather: rank 0 receives all parts, then torch.save and fsync;
- dcp: torch.distributed.checkpoint.save, a directory; and the same with its files synced.
They take turns, each round in another order; a ratio is taken within a round. Before each turn the file
system is synced. One more round goes first and is not counted: in it the file is compared, byte for byte,
with that of one process. Memory: the most that a rank had in a save, beyond what it had before.

--simulate N measures the coordinator instead, for N/8, N/4, N/2 and N writers: the case "aligned" has TENSORS
tensors, of which every writer has a slice, of whole blocks; in "fragments" blocks are shared; in "exchanged",
too, but by writers with an exchange; in "own" every writer has TENSORS tensors of its own. docs/scale.md says how to read it.
"""

import os
import random
import shutil
import sys
import tempfile

import machine
import report as reports
import scale
import tool
from tool import MIB, note

SHARDS = ("rows", "columns")
ONE, WRITERS = "one process, berth.save", "writers, berth.dcp.save"
WAYS = {WRITERS: "writers", "gather + torch.save + fsync": "gather", "dcp, a directory": "directory",
        "dcp, a directory, synced": "synced directory"}
MAX_RISE_NBYTES = 64 * MIB


def arguments():
    parser = tool.parser("writers", __doc__)
    parser.add_argument("--size", type=tool.nbytes, default=2 << 30, metavar="NBYTES",
                        help="of the whole state (2GiB)")
    parser.add_argument("--writers", default="1,2,4", help="numbers of processes (%(default)s)")
    parser.add_argument("--shards", default=",".join(SHARDS), help="some of %(default)s")
    parser.add_argument("--simulate", type=int, metavar="N", help="measure the coordinator of N writers")
    parser.add_argument("--tensors", type=int, default=1000, help="with --simulate: as above (1000)")
    parser.add_argument("--slice", type=tool.nbytes, default=4096, metavar="NBYTES",
                        help="with --simulate: of each tensor and writer (4KiB)")
    parser.add_argument("--cases", default=",".join(scale.CASES), help="with --simulate: some of %(default)s")
    parsed = tool.parse(parser)
    for name, known in (("shards", SHARDS), ("cases", scale.CASES)):
        setattr(parsed, name, getattr(parsed, name).split(","))
        for each in getattr(parsed, name):
            if each not in known:
                parser.error(f"--{name}: there is no '{each}'; there are {', '.join(known)}")
    if any(not each.isdigit() or not 1 <= int(each) <= 64 for each in parsed.writers.split(",")):
        parser.error("--writers: numbers from 1 to 64, such as 1,2,4")
    parsed.writers = [int(each) for each in parsed.writers.split(",")]
    if parsed.simulate is not None and not 1 <= parsed.simulate <= 1 << 20:
        parser.error("--simulate: 1 to 1048576 writers")
    if parsed.tensors < 1 or parsed.slice % 4:
        parser.error("--tensors: at least 1; --slice: a multiple of 4")
    return parsed


def rows(shards, n):
    is_rows = shards == "rows"
    return [("against one process", WRITERS, ONE, 0.9 if is_rows else 0.5),
            ("against gather + torch.save + fsync", WRITERS, "gather + torch.save + fsync",
             5 if is_rows and n > 1 else None),
            ("against a directory of dcp.save", WRITERS, "dcp, a directory", None),
            ("against the same, synced", WRITERS, "dcp, a directory, synced", None)]


def compare(one, other):
    with open(one, "rb") as mine, open(other, "rb") as theirs:
        while block := mine.read(16 * MIB):
            if block != theirs.read(len(block)):
                raise OSError(f"{other} is not the file that one process saves")
        if theirs.read(1):
            raise OSError(f"{other} is longer than the file that one process saves")


class Case:
    """A number of writers and a way to shard. `one`: a world of one process, with the whole state."""

    def __init__(self, options, shards, n, folder, one):
        self.options, self.shards, self.n, self.folder, self.one = options, shards, n, folder, one
        self.memory = {name: 0 for name in (ONE, *WAYS)}

    def turn(self, world, name, way, place="turn"):
        """One save; the file stays if it has a place of its own."""
        import raw

        path = os.path.join(self.folder, place, "bench.pt")
        os.makedirs(os.path.dirname(path))
        raw.warm_memory(self.folder, self.options.size)
        raw.sync_file_system(self.folder)
        seconds, nbytes = world.turn(way, path)
        self.memory[name] = max(self.memory[name], nbytes)
        if place == "turn":
            shutil.rmtree(os.path.dirname(path))
        return seconds

    def check(self, world):
        self.turn(self.one, ONE, "one", "a")
        self.turn(world, WRITERS, "writers", "b")
        compare(*(os.path.join(self.folder, place, "bench.pt") for place in "ab"))
        for place in "ab":
            shutil.rmtree(os.path.join(self.folder, place))
        for name in list(WAYS)[1:]:
            self.turn(world, name, WAYS[name])
        self.memory = dict.fromkeys(self.memory, 0)  # first calls import what they need

    def round(self, world, number):
        note(f"({self.shards}) {self.n} writers: round {number} of {self.options.rounds}")
        turns = [(self.one, ONE, "one"), *((world, name, way) for name, way in WAYS.items())]
        return {name: self.turn(of, name, way)
                for of, name, way in random.Random(number).sample(turns, len(turns))}

    def section(self):
        import ranks

        store = os.path.join(self.folder, f"store-{self.shards}-{self.n}")
        world = ranks.Ranks(self.options.set, self.n, SHARDS.index(self.shards), self.options.size, store)
        try:
            note(f"({self.shards}) {self.n} writers: warming up, comparing")
            self.check(world)
            rounds = [self.round(world, number + 1) for number in range(self.options.rounds)]
        finally:
            world.end()
        return self.report(rounds)

    def report(self, rounds):
        import ranks

        n_tensors, n_rows = ranks.dimensions(self.options.size)
        nbytes = n_tensors * n_rows * ranks.COLUMNS * 4
        made = {"letter": str(self.n), "what": f"{self.n} writers, shards of {self.shards}",
                "shards": self.shards, "writers": self.n, "nbytes": nbytes, "tensors": n_tensors,
                "figures": {name: reports.figure([each[name] for each in rounds], nbytes)
                            for name in (ONE, *WAYS)},
                "ratios": reports.ratios(rows(self.shards, self.n), rounds),
                "costs": [{"case": "memory of a rank beside its shards, MiB",
                           "value": self.memory[WRITERS] / MIB, "at_most": MAX_RISE_NBYTES / MIB}],
                "memory": self.memory,
                "remarks": [f"memory of the largest rank beyond that before, MiB: {name}: {nbytes / MIB:.0f}"
                            for name, nbytes in self.memory.items()]}
        reports.print_section(made)
        sys.stdout.flush()
        return made


def fit(options, folder):
    """Halves the size until there is room: the state in one process and in all ranks, and gathered."""
    asked = options.size
    while options.size > MIB and (options.size * 4 > machine.available_nbytes() - 1024 * MIB
                                  or options.size * 2.2 > machine.free_nbytes(folder)):
        options.size //= 2
    if options.size < asked:
        note(f"{asked / MIB:.0f} MiB have no room: {options.size / MIB:.0f} MiB instead")


def measure(options, folder):
    import torch._dynamo  # noqa: F401: DTensor imports it at its first use, in each process
    import torch.distributed.tensor  # noqa: F401

    import ranks

    fit(options, folder)
    whole = tool.head(options, folder)
    one = ranks.Ranks(options.set, 1, 0, options.size, os.path.join(folder, "store"))
    try:
        whole["sections"] = [Case(options, shards, n, folder, one).section()
                             for shards in options.shards for n in options.writers
                             if shards == "rows" or n > 1]
    finally:
        one.end()
    return whole


def simulate(options, folder):
    whole = tool.head(options, folder)
    whole["sections"] = []
    for case in options.cases:
        with tempfile.TemporaryDirectory(dir=folder) as inner:
            whole["sections"].append(scale.section(inner, case, options))
        scale.print_section(whole["sections"][-1])
        sys.stdout.flush()
    return whole


def main():
    options = arguments()
    sys.path.insert(0, os.path.join(os.environ["BERTH_BUILD"], "python"))
    tool.run(options, lambda folder: (simulate if options.simulate else measure)(options, folder))


if __name__ == "__main__":
    tool.start("writers", main)
