# SPDX-License-Identifier: BSD-3-Clause
"""How fast the package for Python saves and loads, against PyTorch, safetensors (fast or not) and Berth's C.

By default (--fresh) every turn is a process of its own: the table has the first call of a process, and
one after large pages were touched; see fresh.py. With --weights it is berth.safetensors, against safetensors,
fastsafetensors and the Run:ai model streamer, in new processes, too; see weights.py. With --no-fresh all is warmed,
and there are more sides:

All have the same tensors, in this process. They take turns (A B A B ...), each round in another
order. Before each turn the file system is synced; a file that is loaded is in the page cache. A ratio
is taken within each round; its median is printed. One more round goes first and is not counted: in it
the bytes of both files are compared, and what was loaded. fastsafetensors takes part if it is installed;
the tables say so if it is not.

Cases of --no-fresh: many (100,000 tensors of 2 KiB), some (10,000 of 4 KiB), large (64 MiB tensors),
busy (50,000 of 2 KiB, beside a Python thread that never waits).
"""

import argparse
import gc
import os
import random
import sys
import threading
import time

import fresh
import raw
import report as reports
import tool
import weights
from tool import MIB, note

# Name, what it is, tensors, bytes of each.
CASES = {"many": ("a", "100,000 tensors of 2 KiB", 100_000, 2048),
         "some": ("b", "10,000 tensors of 4 KiB", 10_000, 4096),
         "large": ("c", "64 MiB tensors", 16, 64 * MIB),
         "busy": ("d", "50,000 tensors of 2 KiB, beside a busy thread", 50_000, 2048)}

# Label, ours, theirs, aim.
AIMS = {"many": (8, None, 12, 15), "some": (8, 3, 8, 10), "large": (None, None, None, None)}


def rows(case):
    if case == "busy":
        return [("a save alone, against beside the thread", "berth.save, busy", "berth.save, none",
                 1 / 1.2)]
    save, durable, load, mmap = AIMS[case]
    listed = [("save, not durable", "berth.save, none", "torch.save", save),
              ("save, durable", "berth.save, full", "torch.save + fsync", durable),
              ("load", "berth.load", "torch.load", load),
              ("load, mapped", "berth.load, mmap", "torch.load, mmap", mmap),
              # safetensors maps the file.
              ("load, mapped, against safetensors", "berth.load, mmap", "safetensors", None),
              # It reads the file into one piece of memory, which lives as long as any tensor.
              ("load, against fastsafetensors", "berth.load", "fastsafetensors", None)]
    if case == "large":
        listed.append(("save, durable, against the same in C", "berth.save, full", "C, full", 0.95))
    return listed


def arguments():
    parser = tool.parser("python", __doc__)
    parser.add_argument("--fresh", action=argparse.BooleanOptionalAction, default=True,
                        help="the table of fresh and warmed processes (default), or one warmed process")
    parser.add_argument("--cases", help=f"with --no-fresh: some of {','.join(CASES)}; with --weights: "
                                        f"{','.join(weights.CASES)}")
    parser.add_argument("--weights", action="store_true", help="berth.safetensors, against those who read its files")
    parser.add_argument("--contestants", action="append", default=[], metavar="FOLDER",
                        help="with --weights: a folder of `pip install --target` that has some; may be repeated")
    parser.add_argument("--size", type=tool.nbytes, help="with --weights: bytes of the tensors (512MiB)")
    parsed = tool.parse(parser)
    if not parsed.weights and (parsed.contestants or parsed.size and not parsed.quick):
        parser.error("--contestants and --size are for --weights")
    parsed.size = parsed.size or 512 * MIB
    if parsed.fresh and parsed.cases and not parsed.weights:
        parser.error("--cases is for --no-fresh and --weights")
    known = weights.CASES if parsed.weights else tuple(CASES)
    parsed.cases = (parsed.cases or ",".join(known)).split(",")
    for case in parsed.cases:
        if case not in known:
            parser.error(f"there is no case '{case}'; there are {', '.join(known)}")
    return parsed


def load_fast(path):
    """The tensors that fastsafetensors loads: they keep its buffer alive."""
    from fastsafetensors import fastsafe_open

    with fastsafe_open(filenames=[path], nogds=True, device="cpu") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def without_fast():
    """Why fastsafetensors takes no part; None: it does."""
    try:
        import fastsafetensors  # noqa: F401
    except Exception as error:  # it is not installed, or its libraries do not load here
        return f"without fastsafetensors, which can be installed by pip: {error}"
    return None


class Case:
    def __init__(self, options, name, folder):
        import contestants
        import torch

        self.name, self.options = name, options
        self.letter, self.what, n, nbytes = CASES[name]
        if options.quick:
            n = max(2, n // 100) if name != "large" else 2
            nbytes = min(nbytes, 4 * MIB)
        torch.manual_seed(1)
        self.state = {f"layer.{i}.weight": torch.rand(nbytes // 4) for i in range(n)}
        self.nbytes = n * nbytes
        self.tree = contestants.Tree(self.state) if name == "large" else None
        self.folder = folder
        self.mine, self.theirs, self.flat, self.other = (
            os.path.join(folder, file) for file in ("mine/v.pt", "v.pt", "v.safetensors", "c.pt"))
        os.makedirs(os.path.dirname(self.mine), exist_ok=True)

    def turns(self):
        import berth
        import berth_ctypes as c
        import safetensors.torch
        import torch

        def durability(value, save, path):
            with berth.config.patch(save_durability=value):
                save(path)

        def mine(path):
            berth.save(self.state, path)

        def synced():
            torch.save(self.state, self.theirs)
            descriptor = os.open(self.theirs, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

        found = {"berth.save, none": lambda: durability("none", mine, self.mine)}
        if self.name == "busy":
            found["berth.save, busy"] = found["berth.save, none"]
            return found
        found |= {"berth.save, full": lambda: durability("full", mine, self.mine),
                  "torch.save": lambda: torch.save(self.state, self.theirs),
                  "torch.save + fsync": synced,
                  "berth.load": lambda: berth.load(self.mine),
                  "berth.load, mmap": lambda: berth.load(self.mine, mmap=True),
                  "torch.load": lambda: torch.load(self.theirs, weights_only=True),
                  "torch.load, mmap": lambda: torch.load(self.theirs, weights_only=True, mmap=True),
                  "safetensors": lambda: safetensors.torch.load_file(self.flat)}
        if not without_fast():
            found["fastsafetensors"] = lambda: load_fast(self.flat)
        if self.tree:
            found["C, full"] = lambda: c.check(c.berth_save, self.other.encode(), self.tree.root, None)
        return found

    def check(self):
        import berth
        import safetensors.torch
        import torch

        berth.save(self.state, self.mine)
        torch.save(self.state, self.theirs)
        safetensors.torch.save_file(self.state, self.flat)
        with open(self.mine, "rb") as mine, open(self.theirs, "rb") as theirs:
            while block := mine.read(64 * MIB):
                if block != theirs.read(64 * MIB):
                    raise OSError("berth.save and torch.save differ")
        for mmap in (False, True):
            self.check_loaded("berth.load", berth.load(self.mine, mmap=mmap))
        if not without_fast():
            self.check_loaded("fastsafetensors", load_fast(self.flat))

    def check_loaded(self, who, loaded):
        import torch

        if not all(torch.equal(loaded[key], tensor) for key, tensor in self.state.items()):
            raise OSError(f"{who} gives other tensors")

    def prepare(self, name):
        """A turn pays neither for what others have not yet written, nor for memory that the host took."""
        gc.collect()
        raw.sync_file_system(self.folder)
        raw.warm_memory(self.folder, self.nbytes)
        loaded = {"berth.load": self.mine, "torch.load": self.theirs, "safetensors": self.flat,
                  "fastsafetensors": self.flat}
        path = loaded.get(name.removesuffix(", mmap"))
        if path:
            raw.warm(path)
        raw.warm_large_pages(self.nbytes)

    def seconds(self, name, run):
        self.prepare(name)
        if name.endswith("busy"):
            return beside_a_busy_thread(run)
        began = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - began
        del result
        return seconds

    def section(self):
        self.check()
        turns, rounds = self.turns(), []
        for number in range(self.options.rounds):
            note(f"({self.name}) round {number + 1} of {self.options.rounds}")
            order = random.Random(number).sample(list(turns), len(turns))
            rounds.append({name: self.seconds(name, turns[name]) for name in order})
        figures = {name: reports.figure([each[name] for each in rounds], self.nbytes)
                   for name in turns}
        made = {"letter": self.letter, "what": self.what, "nbytes": self.nbytes,
                "tensors": len(self.state), "figures": figures,
                "ratios": reports.ratios(rows(self.name), rounds), "costs": [],
                "remarks": [without_fast()] if without_fast() and self.name != "busy" else []}
        reports.print_section(made)
        return made


def beside_a_busy_thread(run):
    stop = threading.Event()

    def work():
        while not stop.is_set():
            sum(range(100))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began
    finally:
        stop.set()
        thread.join()


def main():
    options = arguments()
    sys.path.insert(0, os.path.join(os.environ["BERTH_BUILD"], "python"))
    import torch

    torch.set_num_threads(1)

    def measure(folder):
        import berth

        with berth.config.patch(" ".join(options.set)):
            return measure_patched(folder)

    def measure_patched(folder):
        whole = tool.head(options, folder)
        if options.weights:
            whole["contestants"] = list(weights.contestants_in(options.contestants))
            whole["sections"] = weights.Table(options, folder).measure()
            return whole
        if options.fresh:
            whole["fresh"] = fresh.Table(options, folder).measure()
            return whole
        whole["fastsafetensors"] = tool.version_of("fastsafetensors")
        whole["sections"] = [Case(options, name, folder).section() for name in options.cases]
        return whole

    tool.run(options, measure)


if __name__ == "__main__":
    tool.start("python", main)
