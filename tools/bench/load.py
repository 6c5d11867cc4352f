# SPDX-License-Identifier: BSD-3-Clause
"""How fast Berth loads, against PyTorch, safetensors and the disk itself, in one run.

All load the same tensors, in this process, from the same file system. They take turns
(A B A B ...), each round in another order. Before each turn as much memory as it needs is touched
and freed, so that no turn pays for the one before. A ratio is taken within each round; its median is
printed. One more round goes first and is not counted: in it what Berth loads is compared with what
PyTorch loads.

Cold: before each turn the file is evicted from the page cache, and its pages are counted. If more
than one of a hundred stayed, this is reported and the turn does not count. Warm: the file is read
first, and its pages are counted too.

Cases: open (until every tensor can be asked for), cold and warm (all bytes into fresh memory), map
(mapped, every byte looked at by one thread), startup (the same after 200 ms of other work, during which
a prefetch may run; the seconds are those beyond the other work), passes (map with a prefetch in passes),
rows (of a table, by the batch), verify (every CRC), parse (data.pkl alone). "raw" is a bare loop of reads
into fresh memory; "fio" is the same by fio, if installed, into a few buffers. The best settings of a
first try take part. fastsafetensors and the Run:ai model streamer take part if BERTH_PYTHON has
them. Debug mode is off. Run it on a machine that does nothing else.
"""

import importlib.util
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import time
import zipfile

import machine
import report as reports
import rows
import shapes
import tool
from tool import MIB
from turns import COLD, WARM, Turn, Turns

CASES = ["open", "cold", "warm", "map", "startup", "passes", "rows", "verify", "parse"]
LIMIT = ("raw *", "fio *")
# What the disk gives in about the time of the other work: a prefetch can hide no more.
STARTUP_NBYTES = 256 * MIB
WITHOUT = ("faulting", "one MADV_WILLNEED", "MAP_POPULATE", "plain reads")  # those without Berth


def arguments():
    parser = tool.parser("load", __doc__)
    parser.add_argument("--size", type=tool.nbytes, metavar="NBYTES",
                        help="of all tensors (2GiB; llama and small: their own)")
    parser.add_argument("--shape", default="uniform", choices=list(shapes.SHAPES),
                        help="of the large file (%(default)s)")
    parser.add_argument("--cases", default=",".join(CASES), help="some of %(default)s")
    parser.add_argument("--read-ahead", type=tool.nbytes, metavar="NBYTES",
                        help="startup: once more with this read-ahead of the block device, 128KiB say. It is "
                             "set for the whole machine, and set back; only root may")
    parser.add_argument("--cgroup", metavar="FOLDER",
                        help="a memory cgroup with a limit, to take rows in: the table is then twice as "
                             "large (none: a table of --size, and no limit but that of our cache)")
    parsed = tool.parse(parser)
    parsed.cases = parsed.cases.split(",")
    for case in parsed.cases:
        if case not in CASES:
            parser.error(f"there is no case '{case}'; there are {', '.join(CASES)}")
    return parsed


class Bench(Turns):
    """The files, and the cases."""

    def __init__(self, options, folder):
        import devices  # before loaders, which adds a folder that has another module of this name
        import loaders

        super().__init__(options, folder)
        self.who, self.devices, self.large = loaders, devices, None
        if options.quick:
            loaders.OTHER_SECONDS = 0.02
        self.set = " ".join(["debug=off", *options.set])

    def path(self, name):
        return os.path.join(self.folder, name)

    # ---- files ----

    def make(self, shape, asked, name):
        """Makes name.pt and name.safetensors; returns the bytes and the number of tensors."""
        import contestants
        import safetensors.torch

        state = shapes.make(shape, asked)
        tree = contestants.Tree(state)
        contestants.berth_save("", tree, "save.durability=full")(self.path(f"{name}.pt"))
        tree.free()
        safetensors.torch.save_file(state, self.path(f"{name}.safetensors"))
        self.raw.sync_file_system(self.folder)
        return shapes.nbytes_of(state), len(state)

    def need_large(self):
        """Makes the large file, halved until there is room for the file, its pages and what is loaded."""
        if self.large:
            return
        natural = {"uniform": 2048 * MIB, "one": 2048 * MIB}.get(
            self.options.shape, shapes.SHAPES[self.options.shape][2])
        wanted = asked = self.options.size or natural
        room = min(machine.available_nbytes() / 3.3 - 512 * MIB,
                   machine.free_nbytes(self.folder) / 2.2 - 64 * MIB)
        while asked > room and asked > MIB:
            asked //= 2
        if asked < wanted:
            self.remark(f"{wanted / MIB:.0f} MiB have no room in memory and on disk: "
                        f"{asked / MIB:.0f} MiB instead")
        nbytes, n = self.make(self.options.shape, asked, "large")
        self.large = {"nbytes": nbytes, "tensors": n}
        self.pt, self.safetensors = self.path("large.pt"), self.path("large.safetensors")

    # ---- who takes part ----

    def can(self, options):
        """Whether this build of Berth accepts these options."""
        try:
            with self.who.b.patched(f"{self.set} {options}"):
                return True
        except self.who.b.BerthError as error:
            self.remark(f"left out: {error}")
            return False

    def berth(self, name, options, cache, load_bytes=None):
        if not self.can(options):
            return []
        load_bytes = load_bytes or self.who.Checkpoint.fetch
        return [Turn(name, self.who.berth(self.pt, f"{self.set} {options}", load_bytes), self.pt, cache)]

    def streamers(self, cache):
        """Peers that are not installed everywhere."""
        for module, name, load in (
                ("fastsafetensors", "fastsafetensors", self.who.fastsafetensors_load),
                ("runai_model_streamer", "Run:ai streamer", self.who.runai_load)):
            if importlib.util.find_spec(module) is None:
                self.remark(f"{module} is not installed")
                continue
            try:
                run = load(self.safetensors)
                run()
                yield Turn(name, run, self.safetensors, cache)
            except Exception as error:  # another's trouble is a remark here
                self.remark(f"{module} does not work here: {type(error).__name__}: {error}"[:200])

    # ---- open ----

    def requests(self, run):
        """Read calls of this process during run(), as the kernel counts them."""
        def count():
            return int(os.pread(io, 4096, 0).split(b"syscr: ")[1].split()[0])

        io = os.open("/proc/self/io", os.O_RDONLY)
        try:
            own = -count() + count()  # what counting takes
            before = count()
            run()
            return count() - before - own
        finally:
            os.close(io)

    def count_requests(self, name, n):
        """Costs: the reads of an open, and their aim; nothing where the kernel does not count them."""
        def reads(run):
            run()  # Python reads its own modules, once
            return self.requests(run)

        if not os.path.exists("/proc/self/io"):
            return []
        max_reads = 1 if n < 5000 else 2 if n < 50000 else 3
        path = self.path(f"{name}.pt")
        costs = [{"case": f"reads to open {n:,}, check={check}", "at_most": max_reads + extra,
                  "value": reads(self.who.berth_open(path, f"{self.set} load.check={check}"))}
                 for check, extra in (("none", 0), ("directory", 2))]
        for calculated in (False, True):
            n_reads = reads(self.who.torch_load(path, mapped=True, calculated=calculated))
            self.remark(f"reads by torch.load(mmap), {'calculated offsets' if calculated else 'as it is'}"
                        f": {n_reads:,}")
        return costs

    def open_turns(self, name):
        path, other = self.path(f"{name}.pt"), self.path(f"{name}.safetensors")
        return [Turn("berth", self.who.berth_open(path, f"{self.set} load.check=directory"), path, None),
                Turn("berth, in C, with all addresses",
                     lambda: self.command("load", "--open", path)["seconds"], path, None),
                Turn("berth, check=none", self.who.berth_open(path, f"{self.set} load.check=none"),
                     path, None),
                Turn("torch.load(mmap)", self.who.torch_load(path, mapped=True), path, None),
                Turn("torch.load(mmap), calculated offsets",
                     self.who.torch_load(path, mapped=True, calculated=True), path, None),
                Turn("safetensors", self.who.safetensors_open(other), path, None)]

    def open(self):
        self.remarks = []
        for n, is_timed in (((100, False), (2000, True)) if self.options.quick else
                            ((100, False), (10000, True), (100000, True))):
            name = f"small{n}"
            n = self.make("small", n * 2560, name)[1]
            what = f"open {n:,} tensors, until all can be asked for"
            if is_timed:
                made = self.section("open", what, lambda: self.open_turns(name), [
                    ("against torch.load(mmap)", "berth", "torch.load(mmap)", 100),
                    ("against torch.load(mmap), calculated offsets", "berth",
                     "torch.load(mmap), calculated offsets", 100),
                    ("with all addresses, against torch.load(mmap)",
                     "berth, in C, with all addresses", "torch.load(mmap)", 100),
                    ("against safetensors", "berth", "safetensors", None)])
            else:
                self.remarks = []
                made = {"case": "open", "letter": "open", "what": what, "figures": {}, "ratios": [],
                        "remarks": self.remarks}
            made["costs"] = self.count_requests(name, n)
            yield made

    # ---- all bytes into memory ----

    def check_loaded(self):
        for options in ("load.mmap=off", "load.method=map"):
            self.who.compare(self.pt, f"{self.set} {options} load.check=data")

    def peers(self, cache):
        who = self.who
        return [Turn("torch.load", who.torch_load(self.pt), self.pt, cache),
                Turn("torch.load(mmap) + touch",
                     who.torch_load(self.pt, mapped=True, then=who.touch_tensors), self.pt, cache),
                Turn("safetensors, pread", who.safetensors_load(self.safetensors, "pread"),
                     self.safetensors, cache),
                Turn("safetensors, mmap + touch",
                     who.safetensors_load(self.safetensors, then=who.touch_tensors),
                     self.safetensors, cache), *self.streamers(cache)]

    def ours(self, cache):
        return [*self.berth("berth", "load.mmap=off", cache),
                *self.berth("berth, read", "load.method=read", cache),
                *(self.berth("berth, direct", "load.method=direct", cache) if cache == COLD else []),
                *self.berth("berth, CRCs verified", "load.mmap=off load.check=data", cache)]

    def cold(self):
        self.need_large()
        yield self.section(
            COLD, "cold, all bytes into fresh memory",
            lambda: [*self.limit(self.pt), *self.ours(COLD), *self.peers(COLD)],
            [("against the best cold read of fio", "berth", "fio *", 0.95),
             ("against our bare loop", "berth", "raw *", None),
             ("against torch.load", "berth", "torch.load", 1.7),
             ("with CRCs verified, against torch.load", "berth, CRCs verified", "torch.load", None),
             ("against torch.load(mmap), every byte touched", "berth", "torch.load(mmap) + touch", None),
             ("against safetensors, the better way", "berth", "safetensors*", None),
             ("against fastsafetensors", "berth", "fastsafetensors", None),
             ("against the Run:ai streamer", "berth", "Run:ai streamer", None)],
            self.check_loaded, self.large)

    def warm(self):
        self.need_large()
        yield self.section(
            WARM, "warm, all bytes into fresh memory",
            lambda: [*self.ours(WARM), *self.peers(WARM)],
            [("against torch.load", "berth", "torch.load", 6),
             ("with CRCs verified, against torch.load", "berth, CRCs verified", "torch.load", 4),
             ("against safetensors, pread", "berth", "safetensors, pread", None),
             ("against fastsafetensors", "berth", "fastsafetensors", None),
             ("against the Run:ai streamer", "berth", "Run:ai streamer", None)],
            None, self.large)

    # ---- mapped ----

    def map_turns(self):
        turns = self.berth("berth, fetch", "load.method=map", COLD,
                           self.who.Checkpoint.fetch_and_touch)
        for way in ("off", "advise", "populate", "read"):
            name = f"berth, prefetch={way}" if way != "off" else "berth, faulting"
            turns += self.berth(name, f"load.method=map load.prefetch={way}", COLD,
                                self.who.Checkpoint.touch)
        for name, advice in (("one MADV_WILLNEED", 3), ("one MADV_POPULATE_READ", 22), ("faulting", 0)):
            turns.append(Turn(name, self.who.map_file(self.pt, advice), self.pt, COLD))
        return turns + self.limit(self.pt)

    def map(self):
        self.need_large()
        ours = "berth, prefetch=*"
        yield self.section(
            "map", "mapped, cold, every byte looked at by one thread", self.map_turns,
            [("the best prefetch, against the disk's limit", ours, LIMIT, 0.9),
             ("berth_load, against the disk's limit", "berth, fetch", LIMIT, None),
             ("against one MADV_WILLNEED", ours, "one MADV_WILLNEED", None),
             ("against one MADV_POPULATE_READ", ours, "one MADV_POPULATE_READ", None),
             ("against faulting", ours, "faulting", None)], None, self.large)

    # ---- startup ----

    def startup_turns(self, path, parts):
        def ours(name, options, *rest):
            options = f"{self.set} load.method=map {options}"
            return Turn(name, self.who.berth_startup(path, options, parts.setdefault(name, []), *rest),
                        path, COLD)

        ways = [ours(f"berth, load.prefetch={way}", f"load.prefetch={way}", self.who.Checkpoint,
                     self.who.Checkpoint.touch) for way in ("advise", "populate", "read")]
        theirs = [parts.setdefault(name, []) for name in WITHOUT]
        others = [self.who.map_startup(path, theirs[0]),
                  self.who.map_startup(path, theirs[1], advice=mmap.MADV_WILLNEED),
                  self.who.map_startup(path, theirs[2], flags=mmap.MAP_POPULATE),
                  self.who.read_startup(path, theirs[3])]
        return [ours("berth", ""), *ways,
                *(Turn(name, run, path, COLD) for name, run in zip(WITHOUT, others))]

    def startup_section(self, path, size):
        ahead, parts = machine.read_ahead_nbytes(self.folder), {}
        made = self.section(
            "startup", f"mapped, cold, after {self.who.OTHER_SECONDS * 1000:.0f} ms of other work; "
            f"read-ahead {ahead // 1024} KiB",
            lambda: self.startup_turns(path, parts),
            [("against faulting", "berth", "faulting", 2.5),
             ("against the best of the others", "berth", WITHOUT, 0.9),
             *((f"against {name}", "berth", name, None) for name in WITHOUT[1:]),
             ("against the best of its methods", "berth", "berth, *", None)], None, size)
        self.remark("of one processor the other work got, in the median: " + ", ".join(
            f"{statistics.median(each):.0%} beside {name}" for name, each in parts.items()))
        return made

    def device_turns(self, path):
        """Loads to a simulated device that is set up meanwhile."""
        simulated = self.devices.device_of("simulated")

        def load(started):
            checkpoint, prefetch = started
            checkpoint.send(simulated.device_name)
            checkpoint.fetch()
            if prefetch:
                self.who.b.berth_prefetch_free(prefetch)

        def turn(name, start):
            return Turn(name, self.who.berth_startup(path, f"{self.set}", [], start, load),
                        path, COLD)

        return [turn("berth, with a prefetch", lambda _: self.who.prefetched(path, self.devices.DeviceCheckpoint)),
                turn("berth, without", lambda _: (self.devices.DeviceCheckpoint(path), None))]

    def device_section(self, path, size):
        return self.section(
            "startup", "cold, to simulated:0, which takes 200 ms to set up; says nothing of a real device",
            lambda: self.device_turns(path),
            [("with a prefetch, against without", "berth, with a prefetch", "berth, without", None)], None, size)

    def startup(self):
        nbytes, n = self.make("uniform", self.options.size or STARTUP_NBYTES, "startup")
        path, size = self.path("startup.pt"), {"nbytes": nbytes, "tensors": n}
        yield self.startup_section(path, size)
        if self.options.read_ahead:
            try:
                with machine.with_read_ahead(self.folder, self.options.read_ahead):
                    yield self.startup_section(path, size)
            except OSError as error:
                tool.note(f"--read-ahead: {error}: left out")
        try:
            yield self.device_section(path, size)
        except (OSError, self.who.b.BerthError) as error:  # a build without simulated devices
            tool.note(f"a simulated device: {error}: left out")
        for name in ("startup.pt", "startup.safetensors"):
            os.unlink(self.path(name))

    # ---- passes ----

    def passes(self):
        self.need_large()
        names = {n: f"{n} passes" if n > 1 else "1 pass" for n in (1, 2, 4, 12)}

        def options(n):
            return f"{self.set} load.method=map load.prefetch_passes={n}"

        def turns():
            return [Turn(name, self.who.prefetch_and_touch(self.pt, options(n), []), self.pt, COLD)
                    for n, name in names.items()]

        made = self.section("passes", "mapped, cold, a prefetch in passes, a consumer of every byte",
                            turns, [(f"{n} passes, against one", f"{n} passes", "1 pass", 0.95)
                                    for n in (2, 4, 12)], None, self.large)
        for n, name in names.items():
            counted, stats = self.count_ahead(options(n))
            made["costs"].append({"case": f"MiB ahead of a slow consumer, {name}", "value": counted / MIB,
                                  "told": stats.peak_ahead_nbytes / MIB,
                                  "at_most": self.large["nbytes"] / n / MIB * 1.05})
            self.remark(f"{name} of {stats.pass_nbytes / MIB:.1f} MiB ({stats.method.decode()}): by its own "
                        f"count at most {stats.peak_ahead_nbytes / MIB:.1f} MiB ahead")
        yield made

    def count_ahead(self, options):
        """The maximum of bytes in the page cache ahead of a consumer of 512 MiB a second, as the kernel
        counts them; and the statistics of the prefetch."""
        max_nbytes, stats, begin = 0, [], time.perf_counter()

        def ahead(offset):
            nonlocal max_nbytes
            time.sleep(max(0, begin + offset / (512 * MIB) - time.perf_counter()))
            max_nbytes = max(max_nbytes, self.raw.resident_nbytes(self.pt, offset))

        self.raw.evict(self.pt)
        self.who.prefetch_and_touch(self.pt, options, stats, ahead)()
        return max_nbytes, stats[0]

    # ---- rows ----

    def rows(self):
        quick, limit = self.options.quick, self.cgroup_nbytes()
        table = limit * 2 if limit else self.options.size or 1024 * MIB
        self.make_table(table)
        batch, batches = (512, 4) if quick else (4096, 16)
        size = {"nbytes": batch * batches * rows.ROW_NBYTES, "tensors": 1}
        cache = limit * 3 // 4 or table // 2
        for kind, draw in (("uniform", rows.uniform), ("zipf", rows.zipf)):
            self.sums, self.peak = set(), 0
            ids = rows.write_ids(self.path("ids"), draw(table // rows.ROW_NBYTES, batch * batches))
            turns = [Turn("berth_rows", lambda: self.rows_by_berth(cache, batch, batches), None, None)]
            turns += [Turn(name, lambda way=way: self.rows_by_peer(way, ids), None, None)
                      for name, way in (("one pread a row", "pread"), ("faulting a map", "map"),
                                        ("faulting, MADV_RANDOM", "random"))]
            what = (f"{batch * batches:,} rows of 512 bytes, {kind} ids, of {table / MIB:.0f} MiB, "
                    f"cold, cache of {cache / MIB:.0f} MiB")
            made = self.section("rows", what, lambda: turns, [
                ("against one pread a row", "berth_rows", "one pread a row", 3),
                ("against faulting a map", "berth_rows", "faulting a map", 3),
                ("against faulting a map with MADV_RANDOM", "berth_rows", "faulting, MADV_RANDOM", None)],
                None, size)
            if len(self.sums) != 1:
                raise OSError(f"rows differ by who takes them: {self.sums}")
            made["costs"].append({"case": "memory of berth_rows, MiB", "value": self.peak / MIB,
                                  "at_most": cache / MIB + 16})
            self.remark(f"all in a memory cgroup of {limit / MIB:.0f} MiB" if limit else
                        "without --cgroup the page cache is not bounded: maps and preads keep all they read")
            yield made
        os.unlink(self.path("table.pt"))

    def make_table(self, nbytes):
        import contestants

        state = shapes.make("one", nbytes // 512 * 512)
        state = {"table": state["tensor.0"].view(-1, 128)}
        tree = contestants.Tree(state)
        contestants.berth_save("", tree, "save.durability=full")(self.path("table.pt"))
        tree.free()

    def rows_by_berth(self, cache_nbytes, batch, batches):
        report = self.command("rows", self.path("table.pt"), "--ids", self.path("ids"), "--batch", str(batch),
                            "--batches", str(batches), "--cache", str(cache_nbytes), enter=self.enter_cgroup)
        self.peak = max(self.peak, report["peak_nbytes"])
        return self.counted_if_cold("berth_rows", report)

    def rows_by_peer(self, way, ids):
        path = self.path("table.pt")
        self.raw.evict(path)
        cold = self.raw.residency(path) <= 0.01
        report = rows.run_process(way, path, self.who.Checkpoint(path).first_offset(), ids, self.enter_cgroup)
        return self.counted_if_cold(way, dict(report, cold=cold))

    def counted_if_cold(self, name, report):
        self.sums.add(report["sum"])
        if report["cold"]:
            return report["seconds"]
        self.remark(f"a turn of {name} was not cold; it is not counted")
        return None

    def enter_cgroup(self):
        """Moves this process, a child of ours, into the cgroup; without --cgroup: nothing."""
        if self.options.cgroup:
            with open(os.path.join(self.options.cgroup, "cgroup.procs"), "w", encoding="utf-8") as file:
                file.write("0")

    def cgroup_nbytes(self):
        """The limit of the memory cgroup that rows are taken in; 0: none."""
        if not self.options.cgroup:
            return 0
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = machine.text_of(os.path.join(self.options.cgroup, name)).strip()
            if text.isdigit() and int(text) < machine.available_nbytes():
                return int(text)
        raise OSError(f"{self.options.cgroup} is no memory cgroup with a limit")

    # ---- verify ----

    def verify_turns(self):
        ours, path = self.who.berth_verify(self.pt, self.set), self.pt
        turns = [Turn("berth verify, warm", ours, path, WARM),
                 Turn("berth verify, cold", ours, path, COLD),
                 Turn("zipfile.testzip, warm", self.who.timed(self.testzip), path, WARM)]
        if shutil.which("unzip"):
            turns.append(Turn("unzip -t, warm", self.who.timed(self.unzip), path, WARM))
        else:
            self.remark("unzip is not installed")
        return turns + self.limit(self.pt)

    def testzip(self):
        with zipfile.ZipFile(self.pt) as archive:
            if archive.testzip() is not None:
                raise OSError(f"{self.pt}: zipfile finds it broken")

    def unzip(self):
        subprocess.run(["unzip", "-t", "-qq", self.pt], check=True)

    def verify(self):
        self.need_large()
        yield self.section(
            "verify", "every CRC of the file", self.verify_turns,
            [("warm, against unzip -t", "berth verify, warm", "unzip -t, warm", 10),
             ("warm, against zipfile.testzip", "berth verify, warm", "zipfile.testzip, warm", 10),
             ("cold, against the disk's limit", "berth verify, cold", LIMIT, 0.9)], None, self.large)

    # ---- what only the command reports ----

    def command(self, *words, enter=None):
        """`berth bench ...` in a process of its own: its report."""
        options = [word for each in self.set.split() for word in ("--set", each)]
        return tool.berth_bench(self.folder, *words, *options, enter=enter)

    def parse(self):
        self.remarks = []
        n = 2000 if self.options.quick else 100000
        path = self.path(f"small{n}.pt")
        if not os.path.exists(path):
            self.make("small", n * 2560, f"small{n}")
        runs = [self.command("load", "--open", path) for _ in range(self.options.rounds)]
        seconds = [each["parse"]["seconds"] for each in runs]
        nbytes = runs[0]["parse"]["nbytes"]
        row = reports.figure(seconds)
        rates = sorted(nbytes / each / 1e6 for each in seconds)
        phases = ", ".join(f"{name} {seconds:.4f} s" for name, seconds in runs[0]["phases"].items())
        self.remark(f"data.pkl has {nbytes / 1e6:.1f} MB; all of the opening: {phases}")
        yield {"case": "parse", "letter": "parse", "what": f"data.pkl of {n:,} tensors, in C, from memory",
               "figures": {"parsing": row},
               "ratios": [{"case": "MB/s", "aim": 300, "rounds": rates,
                           "median": nbytes / row["median"] / 1e6, "min": rates[0], "max": rates[-1]}],
               "costs": [], "command": runs[0], "remarks": self.remarks}


def run(options, folder):
    whole = tool.head(options, folder)
    whole["sections"] = []
    bench = Bench(options, folder)
    for case in options.cases:
        for done in getattr(bench, case)():
            whole["sections"].append(done)
            reports.print_section(done)
            sys.stdout.flush()
    return whole


def main():
    options = arguments()
    tool.run(options, lambda folder: run(options, folder))


if __name__ == "__main__":
    tool.start("load", main)
