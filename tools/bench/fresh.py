# SPDX-License-Identifier: BSD-3-Clause
"""The first call of a process, and a later one: every turn is a process of its own.

The process makes its tensors, or takes the file as it lies in the page cache, and times one call: the
fresh figure. Then large pages are touched and given back, and the same call is timed again: the warmed
figure. Berth and PyTorch have the same operations; the call of save_async is compared with cloning the
tensors, which PyTorch's own asynchronous save does first. Saves are not synced on either side, but "save
durable": there torch.save is followed by fsync. For "load cold" the file is evicted first. Both wait for
the disk, and are timed once in a process.
"""

import gc
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time

import machine
import raw
import report as reports
from tool import MIB, note

# Name, tensors, bytes of each.
CASES = {"8 x 64 MiB": (8, 64 * MIB), "1,000 x 1 MiB": (1000, MIB), "100,000 x 2 KiB": (100_000, 2048)}
QUICK_CASES = {"2 x 4 MiB": (2, 4 * MIB)}
OPERATIONS = ("load", "load mmap", "save", "save_async", "open", "save durable", "load cold")
READING = ("load", "load mmap", "open", "load cold")
ONCE = ("save durable", "load cold")  # timed once in a process
MIN_COLD_NBYTES = MIB  # a file of smaller tensors takes many times longer to parse than to read
STATES = ("fresh", "warmed")


def operations(case):
    _, nbytes = (CASES | QUICK_CASES)[case]
    return [each for each in OPERATIONS if each != "load cold" or nbytes >= MIN_COLD_NBYTES]


def make(case):
    import torch

    n, nbytes = (CASES | QUICK_CASES)[case]
    return {f"layer.{i}.weight": torch.full((nbytes // 4,), float(i)) for i in range(n)}


def save_and_sync(state, path):
    import torch

    torch.save(state, path)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def calls(who, operation, options):
    """What each operation calls, with the state and the path."""
    import torch

    if who == "torch":
        return {"load": lambda _, path: torch.load(path, weights_only=True),
                "load mmap": lambda _, path: torch.load(path, weights_only=True, mmap=True),
                "open": lambda _, path: torch.load(path, weights_only=True, mmap=True),
                "load cold": lambda _, path: torch.load(path, weights_only=True),
                "save": lambda state, path: torch.save(state, path),
                "save durable": save_and_sync,
                "save_async": lambda state, path: {name: each.clone() for name, each in state.items()}}
    import berth

    berth.config.save.durability = "full" if operation == "save durable" else "none"
    for each in options:
        setattr(berth.config, *each.split("=", 1))
    return {"load": lambda _, path: berth.load(path),
            "load cold": lambda _, path: berth.load(path),
            "load mmap": lambda _, path: berth.load(path, mmap=True),
            "open": lambda _, path: berth.open(path),
            "save": lambda state, path: berth.save(state, path),
            "save durable": lambda state, path: berth.save(state, path),
            "save_async": lambda state, path: berth.save_async(state, path)}


def large_nbytes():
    """This process's own memory that is in large pages."""
    found = re.search(r"^AnonHugePages:\s+(\d+)", machine.text_of("/proc/self/smaps_rollup"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def timed(call, state, path):
    """Seconds of the call alone; bytes in large pages that it added. A job ends before the next one."""
    before = large_nbytes()
    began = time.perf_counter()
    result = call(state, path)
    seconds = time.perf_counter() - began
    if hasattr(result, "wait"):
        result.wait()
    added = large_nbytes() - before
    del result
    gc.collect()
    return seconds, added


def turn(who, operation, case, path, *options):
    """In a process of its own: prints the seconds of both states, and the part of the first call's bytes
    that got large pages."""
    import torch

    sys.path.insert(0, os.path.join(os.environ["BERTH_BUILD"], "python"))
    torch.set_num_threads(1)
    call = calls(who, operation, options)[operation]
    state = None if operation in READING else make(case)
    n, nbytes = (CASES | QUICK_CASES)[case]
    if operation == "load cold":
        raw.evict(path)
        if raw.residency(path) > 0.01:
            note(f"{path} could not be evicted: \"load cold\" is not cold here")
    first, large = timed(call, state, path)
    seconds = [first]
    if operation not in ONCE:
        if operation not in READING and os.path.exists(path):
            os.unlink(path)
        raw.warm_large_pages(n * nbytes)
        seconds.append(timed(call, state, path)[0])
    print(json.dumps({"seconds": seconds, "large": large / (n * nbytes)}))


class Table:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.cases, self.n_rounds = (QUICK_CASES, 1) if options.quick else (CASES, options.rounds)

    def run_turn(self, who, operation, case, path):
        """After everything that was written before it is on the disk."""
        raw.sync_file_system(self.folder)
        if operation in READING:
            raw.warm(path)
        done = subprocess.run([sys.executable, __file__, who, operation, case, path, *self.options.set],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise OSError(f"{operation} of {case} by {who} ended with {done.returncode}: {last}")
        if operation not in READING and os.path.exists(path):
            os.unlink(path)
        made = json.loads(done.stdout)
        sys.stderr.write(done.stderr)
        return dict(zip(STATES, made["seconds"]), large=made["large"])

    def rows_of(self, case, number):
        """One round: {operation: {who: {state: seconds}}}."""
        made = {}
        order = random.Random(number)
        for operation in order.sample(operations(case), len(operations(case))):
            path = self.kept if operation in READING else os.path.join(self.folder, "turn.pt")
            made[operation] = {who: self.run_turn(who, operation, case, path)
                               for who in order.sample(("berth", "torch"), 2)}
        return made

    def section(self, case):
        import torch

        self.kept = os.path.join(self.folder, "kept.pt")
        torch.save(make(case), self.kept)
        rounds = []
        for number in range(self.n_rounds):
            note(f"({case}) round {number + 1} of {self.n_rounds}")
            rounds.append(self.rows_of(case, number))
        os.unlink(self.kept)
        return [self.row(case, operation, state, [each[operation] for each in rounds])
                for operation in operations(case) for state in STATES[:1 if operation in ONCE else 2]]

    def row(self, case, operation, state, rounds):
        ours, theirs = ([each[who][state] for each in rounds] for who in ("berth", "torch"))
        ratios = [b / a for a, b in zip(ours, theirs)]
        return {"case": case, "operation": operation, "state": state, "berth": reports.figure(ours),
                "torch": reports.figure(theirs), "ratios": ratios, "ratio": statistics.median(ratios),
                "large": statistics.median(each["berth"]["large"] for each in rounds)}

    def measure(self):
        """The rows of all cases; each is printed when it is there."""
        rows = []
        print("\nSeconds, medians of {} rounds; files in the page cache; each turn a new process\n\n"
              "| tensors | operation | process | Berth | PyTorch | PyTorch / Berth |\n"
              "|---|---|---|---|---|---|".format(self.n_rounds))
        for case in self.cases:
            for row in self.section(case):
                print(f"| {case} | {row['operation']} | {row['state']} | {row['berth']['median']:.4f} | "
                      f"{row['torch']['median']:.4f} | {row['ratio']:.2f} ({min(row['ratios']):.2f} to "
                      f"{max(row['ratios']):.2f}) |")
                rows.append(row)
            sys.stdout.flush()
        return rows


if __name__ == "__main__":
    turn(*sys.argv[1:])
