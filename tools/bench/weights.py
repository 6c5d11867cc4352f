# SPDX-License-Identifier: BSD-3-Clause
"""berth.safetensors beside the packages that read weights; every turn is a process of its own.

The contestants are those of safetensors, fastsafetensors and runai-model-streamer that are installed for this
Python, and those in folders of `pip install --target FOLDER` (--contestants): so several versions of one take part.
"In memory of its own": all bytes are read when load_file returns; "mapped": every byte is looked at then, as the
others have them. A process tells the peak of its memory in the call, above what it had before (VmHWM), and what it
had the disk read (read_bytes of /proc/self/io).
"""

import contextlib
import importlib
import importlib.metadata
import json
import os
import re
import statistics
import subprocess
import sys

import machine
import raw
import report as reports
import turns
from shapes import make
from tool import MIB, note, version_of

PACKAGES = ("safetensors", "fastsafetensors", "runai-model-streamer")
OWN, MAPPED, MADE = "in memory of its own", "mapped, every byte looked at", "mapped, the call alone"
DISK = ("raw*", "fio*")
N_READERS = 4
CASES = ("warm", "cold", "save", "open", "slices", "plan")


# ---- in the process of a turn ----

def modules(who):
    """The modules of the interface: the package's, or Berth's."""
    name = "berth.safetensors" if who == "berth" else "safetensors"
    return importlib.import_module(name), importlib.import_module(f"{name}.torch")


def open_and(who, path, then, **options):
    package, _ = modules(who)

    def run():
        with package.safe_open(path, framework="pt", **options) as file:
            return then(file)
    return run


def slices_of(file, rank):
    """{name: slices}: rows of one matrix, columns of the next, as engines divide them; of vectors a part."""
    plan = {}
    for number, name in enumerate(file.keys()):
        shape = file.get_slice(name).get_shape()
        along = number % 2 if len(shape) == 2 else 0
        first, end = (shape[along] * each // N_READERS for each in (rank, rank + 1))
        plan[name] = (slice(None), ) * along + (slice(first, end), )
    return plan


def read_slices(who, path, rank):
    """Copied, as an engine copies them into its model."""
    def read(file):
        plan = slices_of(file, rank)
        if who != "berth":
            return {name: file.get_slice(name)[part].clone() for name, part in plan.items()}
        with file.prefetch(plan) as loader:
            return {name: tensor.clone() for name, tensor in loader}
    return open_and(who, path, read)


def read_plan(who, path, window_nbytes, backend):
    """All tensors in turn; none is kept."""
    def read(file):
        with file.prefetch(window_nbytes=window_nbytes) as loader:
            for name in loader.names():
                loader.take(name)
    return open_and(who, path, read, backend=backend)


def save(who, path, nbytes, synced):
    import contestants

    state, (_, package) = make("llama", nbytes), modules(who)

    def run():
        package.save_file(state, path)
        if synced:
            contestants.sync(path)
    return run


def compare(path):
    """Berth loads what the package loads, byte for byte."""
    import torch

    ours, theirs = (modules(who)[1].load_file(path) for who in ("berth", "safetensors"))
    if list(ours) != list(theirs) or not all(
            torch.equal(each.view(torch.uint8), theirs[name].view(torch.uint8)) for name, each in ours.items()):
        raise OSError(f"{path}: berth.safetensors loads other tensors than the package")


def call(who, operation, path, detail):
    """What is timed."""
    import loaders

    if operation == OWN and who in PACKAGES[1:]:
        return loaders.fastsafetensors_load(path) if who == PACKAGES[1] else loaders.runai_load(path)
    if operation in (OWN, MAPPED, MADE, "every tensor made"):
        _, package = modules(who)
        backend = "pread" if operation == OWN else "mmap"
        then = loaders.touch_tensors if operation == MAPPED else None
        return loaders.timed(lambda: package.load_file(path, backend=backend), then)
    return loaders.timed({"names listed": lambda: open_and(who, path, lambda file: file.keys()),
                          "slices": lambda: read_slices(who, path, detail),
                          "plan": lambda: read_plan(who, path, *detail),
                          "compare": lambda: lambda: compare(path),
                          "save": lambda: save(who, path, *detail)}[operation]())


def number_in(path, name):
    found = re.search(rf"^{name}:\s+(\d+)", machine.text_of(path), re.MULTILINE)
    return int(found[1]) if found else 0


def turn(who, operation, path, detail, options):
    """Prints "ready", waits for a line, does it, prints the figures."""
    import torch

    sys.path.insert(0, os.path.join(os.environ["BERTH_BUILD"], "python"))
    torch.set_num_threads(1)
    if who == "berth":
        import berth

        for each in options:
            setattr(berth.config, *each.split("=", 1))
    run = call(who, operation, path, detail)
    print("ready", flush=True)
    sys.stdin.readline()
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the peak is what is used now
    peak, nbytes = number_in("/proc/self/status", "VmHWM"), number_in("/proc/self/io", "read_bytes")
    seconds = run()
    print(json.dumps({"seconds": seconds,
                      "peak": (number_in("/proc/self/status", "VmHWM") - peak) * 1024,
                      "read": number_in("/proc/self/io", "read_bytes") - nbytes}))


# ---- the table ----

def contestants_in(folders):
    """{name and version: (package, the folder where it is; None: where Python finds it)}"""
    found = {}
    for folder in map(os.path.abspath, folders):
        for each in importlib.metadata.distributions(path=[folder]):
            package = each.name.lower().replace("_", "-")
            if package in PACKAGES:
                found[f"{package} {each.version}"] = package, folder
    for package in PACKAGES:
        if version_of(package):
            found.setdefault(f"{package} {version_of(package)}", (package, None))
    return dict(sorted(found.items(), key=lambda item: (PACKAGES.index(item[1][0]), item[0])))


class Failed(OSError):
    pass


class Table:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.all = {"berth": ("berth", None), **contestants_in(options.contestants)}
        self.packages = [name for name, (package, _) in self.all.items() if package == PACKAGES[0]]
        self.turns = turns.Turns(options, folder)
        self.turns.n_not_counted = 0  # a new process is not warmed
        self.peaks, self.amounts, self.failed = {}, {}, set()
        self.path, self.many = (os.path.join(folder, name) for name in ("kept.safetensors", "many.safetensors"))

    # ---- a turn ----

    def processes(self, name, operation, path, details, words):
        """What each of them printed; they begin together."""
        package, folder = self.all[name]
        python_path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        environment = dict(os.environ, PYTHONPATH=python_path)
        jobs = [subprocess.Popen([sys.executable, __file__, json.dumps([package, operation, path, detail, words])],
                                 env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE) for detail in details]
        try:
            for job in jobs:
                job.stdout.readline()  # "ready"
            for job in jobs:
                with contextlib.suppress(BrokenPipeError):  # it has ended
                    job.stdin.write("\n")
                    job.stdin.flush()
            printed = [job.communicate() for job in jobs]
        finally:
            for job in jobs:
                job.kill()
                job.wait()
        for job, (_, errors) in zip(jobs, printed):
            if job.returncode:
                last = (errors.strip().splitlines() or ["it said nothing"])[-1]
                raise Failed(f"{operation} by {name} ended with {job.returncode}: {last}")
        return [json.loads(out.splitlines()[-1]) for out, _ in printed]

    def run(self, name, operation, path, details=(None, ), words=(), label=None):
        """Seconds; None: this contestant cannot do it, which a remark says."""
        label = label or f"{name}, {operation}"
        if label in self.failed:
            return None
        try:
            made = self.processes(name, operation, path, details, [*self.options.set, *words])
        except Failed as error:
            if name == "berth":
                raise
            self.failed.add(label)
            self.turns.remark(str(error))
            return None
        self.peaks.setdefault(label, []).append(max(each["peak"] for each in made))
        self.amounts.setdefault(label, []).append(sum(each["read"] for each in made))
        return max(each["seconds"] for each in made)

    def turn(self, name, operation, path, cache, *details, label=None):
        label = label or f"{name}, {operation}"
        return turns.Turn(label, lambda: self.run(name, operation, path, details or (None, ), label=label), path, cache)

    def save(self, name, label, synced=False, durability=None):
        nbytes, path = self.options.size, os.path.join(self.folder, "turn.safetensors")
        words = [f"save.durability={durability}"] if durability else []

        def run():
            raw.sync_file_system(self.folder)
            raw.warm_memory(self.folder, nbytes)
            try:
                return self.run(name, "save", path, [(nbytes, synced)], words, label)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        return turns.Turn(label, run, path, None)

    # ---- the sections ----

    def ratios(self, operation, aim, names=None):
        """One for each of the others; the aim is against the package safetensors."""
        return [(f"{operation}, against {name}", f"berth, {operation}", f"{name}, {operation}",
                 aim if name in self.packages else None) for name in names or list(self.all)[1:]]

    def cost(self, case, values, unit, at_most=None):
        return {"case": case, "value": statistics.median(values) / unit,
                "at_most": at_most} if values else None

    def section(self, case, what, listed, rows, costs=lambda: [], size=None):
        self.peaks.clear()
        made = self.turns.section(case, what, lambda: listed, rows, size=size)
        made["costs"] = [each for each in costs() if each]
        made["remarks"] += self.missing() if case == "warm" else []
        reports.print_section(made)
        sys.stdout.flush()
        return made

    def missing(self):
        """Remarks, of the packages that are not here."""
        here = {package for package, _ in self.all.values()}
        return [f"without {package}, which is not here: pip install --target FOLDER {package}; --contestants FOLDER"
                for package in PACKAGES if package not in here]

    def loads(self, cache):
        names = list(self.all)
        # What every byte costs that is looked at in a map is the reading, which no loader does: without an aim.
        operations = (OWN, MAPPED, MADE) if cache == turns.WARM else (OWN, MAPPED)
        listed = [self.turn(name, operation, self.path, cache) for operation in operations
                  for name in (names if operation == OWN else ["berth", *self.packages])]
        aim = 1.5 if cache == turns.WARM else None
        rows = [row for each in operations for row in self.ratios(
            each, None if each == MAPPED else aim, None if each == OWN else self.packages)]
        if cache == turns.COLD:
            listed += self.turns.limit(self.path)
            rows += [(f"{each}, against the disk's limit", f"berth, {each}", DISK, 0.95) for each in (OWN, MAPPED)]
            return self.section("cold", "load_file, file not in the page cache", listed, rows, size=self.size)
        return self.section("warm", "load_file, file in the page cache", listed, rows, lambda: [
            self.cost(f"memory above the tensors, {name}, MiB",
                      [each - self.size["nbytes"] for each in self.peaks.get(f"{name}, {OWN}", [])], MIB,
                      64 if name == "berth" else None) for name in names], self.size)

    def saves(self):
        listed = [self.save("berth", "berth, durable", durability="full"),
                  self.save("berth", "berth, not durable", durability="none")]
        rows = []
        for name in self.packages:
            listed += [self.save(name, name), self.save(name, f"{name} + fsync", synced=True)]
            rows += [("not durable, against " + name, "berth, not durable", name, 2),
                     (f"durable, against {name}, not durable", "berth, durable", name, 1),
                     (f"durable, against {name} + fsync", "berth, durable", f"{name} + fsync", None)]
        return self.section("save", "save_file", listed, sorted(rows, key=lambda row: row[1]), size=self.size)

    def opening(self):
        names = ["berth", *self.packages]
        listed = [self.turn(name, each, self.many, turns.WARM)
                  for each in ("names listed", "every tensor made") for name in names]
        return self.section("open", f"open {self.n_many:,} tensors", listed, self.ratios(
            "names listed", None, self.packages) + self.ratios("every tensor made", 10, self.packages))

    def slices(self):
        names = ["berth", *self.packages]
        return self.section(
            "slices", f"{N_READERS} processes read their slices, file not in the page cache",
            [self.turn(name, "slices", self.path, turns.COLD, *range(N_READERS), label=name) for name in names],
            [(f"against {name}", "berth", name, None) for name in self.packages],
            costs=lambda: [self.cost(f"bytes from the disk by those of the file, {name}", self.amounts.get(name),
                                     os.path.getsize(self.path), 1.02 if name == "berth" else None)
                           for name in names], size=self.size)

    def plan(self):
        window = self.options.size // 4
        return self.section(
            "plan", "a prefetch of all tensors, none kept, file not in the page cache",
            [self.turn("berth", "plan", self.path, turns.COLD, (window, each), label=f"berth, {each}")
             for each in ("mmap", "pread")], [],
            costs=lambda: [self.cost(f"memory, {each}, MiB; at most the window", self.peaks[f"berth, {each}"], MIB,
                                     window / MIB) for each in ("mmap", "pread")], size=self.size)

    def make_files(self):
        """By the package, if there is one."""
        import torch

        name = (self.packages or ["berth"])[-1]
        self.processes(name, "save", self.path, [(self.options.size, True)], [])
        sys.path.insert(0, os.path.join(os.environ["BERTH_BUILD"], "python"))
        from berth.safetensors.torch import save_file

        self.n_many = 1000 if self.options.quick else 10_000
        save_file({f"layer.{i}.weight": torch.zeros(16, 16) for i in range(self.n_many)}, self.many)
        with open(self.path, "rb") as file:
            head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        head.pop("__metadata__", None)
        self.size = {"nbytes": sum(end - first for first, end in (each["data_offsets"] for each in head.values())),
                     "tensors": len(head)}

    def measure(self):
        self.make_files()
        note(f"contestants: {', '.join(self.all)}")
        for name in self.packages:
            self.processes(name, "compare", self.path, [None], [])
        cases = {"warm": lambda: self.loads(turns.WARM), "cold": lambda: self.loads(turns.COLD), "save": self.saves,
                 "open": self.opening, "slices": self.slices, "plan": self.plan}
        return [cases[case]() for case in self.options.cases]


if __name__ == "__main__":
    turn(*json.loads(sys.argv[1]))
