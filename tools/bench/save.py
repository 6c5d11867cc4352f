# SPDX-License-Identifier: BSD-3-Clause
"""How fast Berth saves, against PyTorch, safetensors and the disk itself, in one run.

All save the same tensors, in this process, from the same memory, to the same file system. They take
turns (A B A B ...), each round in another order. Before each turn the last file is removed, the file
system is synced, and free memory is touched, so that no turn pays for the one before. A ratio is
taken within each round; its median is printed. One more round goes first and is not counted: in it
every file of Berth is verified, and read back with PyTorch.

Shapes: uniform (a: 64 MiB tensors), llama (b: those of a 1.1B model in bfloat16), small
(c: 100,000 of 1 to 4 KiB), one (d: a single tensor). "raw" is a bare loop of direct writes with
fsync; "fio" is the same by fio, if installed, without its sync. The best settings of a first try
take part. Run it on a machine that does nothing else.
"""

import contextlib
import os
import random
import sys
import tempfile

import machine
import report as reports
import shapes
import tool
from tool import MIB, note


def arguments():
    parser = tool.parser("save", __doc__)
    parser.add_argument("--size", type=tool.nbytes, metavar="NBYTES",
                        help="of shapes a and d (4GiB); b and c have their own size, unless this is smaller")
    parser.add_argument("--shapes", default=",".join(shapes.USUAL), help="some of %(default)s")
    parser.add_argument("--tmpfs", default="/dev/shm", metavar="FOLDER",
                        help="a folder in memory (%(default)s); '': none")
    parser.add_argument("--also", action="append", default=[], metavar="'NAME=VALUE ...'",
                        help="add a durable save with these options; may be repeated")
    parsed = tool.parse(parser)
    parsed.shapes = parsed.shapes.split(",")
    for shape in parsed.shapes:
        if shape not in shapes.SHAPES:
            parser.error(f"there is no shape '{shape}'; there are {', '.join(shapes.SHAPES)}")
    return parsed


class Bench:
    """One shape: its tensors, those who save them, the figures."""

    command_words = ()

    def __init__(self, options, shape, folder, tmpfs):
        import contestants
        import raw

        self.who, self.raw, self.options, self.shape = contestants, raw, options, shape
        self.folder, self.tmpfs, self.remarks = folder, tmpfs, []
        self.letter, self.what, natural = shapes.SHAPES[shape]
        self.asked = self.fitting(self.wanted(natural))
        self.state, self.tree = self.make()
        self.nbytes = shapes.nbytes_of(self.state)

    def wanted(self, natural):
        if self.options.quick and self.shape == "small":
            return 4 * MIB  # not for its bytes but for its tensors
        size = self.options.size
        return size if size and (self.shape in ("uniform", "one") or size < natural) else natural

    def room(self):
        """Bytes of tensors for which there is room: in memory beside their copy in the page cache,
        and on disk as two files."""
        return min(machine.available_nbytes() / 2.3 - 512 * MIB,
                   machine.free_nbytes(self.folder) / 2.2 - 64 * MIB)

    def make(self):
        state = shapes.make(self.shape, self.asked)
        return state, self.who.Tree(state)

    def fitting(self, wanted):
        """The size, halved until there is room for it."""
        room, asked = self.room(), wanted
        while asked > room and asked > MIB:
            asked //= 2
        if asked < wanted:
            self.remark(f"{wanted / MIB:.0f} MiB have no room in memory and on disk: "
                        f"{asked / MIB:.0f} MiB instead")
        return asked

    def remark(self, text):
        note(f"({self.letter}) {text}")
        self.remarks.append(text)

    # ---- who takes part ----

    def berth(self, name, *options):
        return self.who.berth_save(name, self.tree, " ".join([*options, *self.options.set]))

    def on_disk(self):
        durable, cached = "save.durability=full", "save.durability=none"
        off = "save.compute_crc32=off"
        also = [self.berth(f"berth, durable, {each}", durable, each) for each in self.options.also]
        return [self.berth("berth, durable", durable),
                self.who.torch_save(self.state, True),
                *self.raw_writes(),
                self.berth("berth, page cache", cached),
                self.who.torch_save(self.state, False),
                self.berth("berth, durable, CRC off", durable, off),
                self.who.safetensors_save(self.state),
                self.berth("berth, page cache, CRC off", cached, off),
                self.who.memory_copy(self.nbytes), *also]

    def in_memory(self):
        return [self.berth("berth"), self.who.torch_save(self.state, True, synced=False),
                self.berth("berth, CRC off", "save.compute_crc32=off"),
                self.who.torch_save(self.state, False, synced=False)]

    def raw_writes(self):
        """The two best settings of our bare loop and the best one of fio, after one try of each."""
        quick, loop = self.options.quick, self.raw.RawWrites(self.nbytes)
        blocks = [4] if quick else [1, 4, 16]

        def bare(block, n_threads):
            name = f"raw direct, {block} MiB x {n_threads}"
            return lambda path: {name: loop.write(path, block * MIB, n_threads)[1]}

        def fio(block, depth):
            name = f"fio direct, {block} MiB x {depth}"
            return lambda path: {name: self.raw.fio_write(path, self.nbytes, block * MIB, depth)}

        chosen = self.best([bare(block, n) for block in blocks for n in ((2,) if quick else (1, 2, 4))],
                           2, "no raw direct writes")
        if self.raw.fio_version() is None:
            self.remark("fio is not installed: the limit is our own loop's")
            return chosen
        if quick and self.shape != self.options.shapes[0]:
            return chosen  # fio alone takes half a second to start and end
        return chosen + self.best([fio(block, depth) for block in blocks[:2]
                                   for depth in ((4,) if quick else (2, 8))], 1, "no fio")

    def best(self, contestants, n, otherwise):
        tried = []
        for contestant in contestants:
            try:
                tried.append((sum(self.turn(contestant, self.folder).values()), len(tried), contestant))
            except OSError as error:
                self.remark(f"{otherwise}: {error.strerror or error}")
                break
        return [contestant for _, _, contestant in sorted(tried)[:n]]

    # ---- taking turns ----

    def turn(self, contestant, folder, then=None):
        """One save into a new file, after all earlier writes are done."""
        path = os.path.join(folder, "bench.pt")
        self.raw.warm_memory(folder, self.nbytes)
        self.raw.sync_file_system(folder)
        try:
            seconds = contestant(path)
            if then and os.path.exists(path):
                then(seconds, path)
            return seconds
        finally:
            if os.path.exists(path):
                os.unlink(path)

    def verify(self, seconds, path):
        if any(name.startswith("berth") for name in seconds):
            self.who.verify(path, self.state)

    def rounds(self, contestants, folder, where):
        """[{figure: seconds}], one a round; the first round is only for verifying."""
        made = []
        for number in range(self.options.rounds + 1):
            note(f"({self.letter}) {where}: " +
                 (f"round {number} of {self.options.rounds}" if number else "warming up, verifying"))
            figures = {}
            for contestant in random.Random(number).sample(contestants, len(contestants)):
                figures.update(self.turn(contestant, folder, None if number else self.verify))
            if number:
                made.append({name if name == "memcpy" else f"{where}: {name}": seconds
                             for name, seconds in figures.items()})
        return made

    def command(self, path, n_tensors):
        """Runs `berth bench save` with the same tensors: memory and traffic of a process of its own."""
        words = ["save", path, *self.command_words]
        for each in self.options.set:
            words += ["--set", each]
        report = tool.berth_bench(self.folder, *words)
        if (report["tensors"], report["nbytes"]) != (n_tensors, self.nbytes):
            raise AssertionError(f"`berth bench save` saved other tensors: {report}")
        return report

    def measure(self):
        rounds = self.rounds(self.on_disk(), self.folder, "disk")
        if self.shape in reports.LARGE and self.tmpfs:
            if machine.free_nbytes(self.tmpfs) < self.nbytes * 1.05 + 64 * MIB:
                self.remark(f"no room in {self.options.tmpfs}: tmpfs was not measured")
            else:
                extra = self.rounds(self.in_memory(), self.tmpfs, "tmpfs")
                rounds = [{**a, **b} for a, b in zip(rounds, extra)]
        n_tensors = len(self.state)
        path = os.path.join(self.folder, "kept.pt")
        self.who.berth_save("", self.tree, "save.durability=none")(path)
        self.tree.free()
        self.state.clear()  # room for the command's own
        report = self.command(path, n_tensors)
        os.unlink(path)
        self.remark(f"method {report['method']} ({report['reason']}); making the tree of values, in C: "
                    f"{report['build_seconds']:.4f} s, not counted")
        for each in rounds if self.shape == "small" else []:
            name = "disk: berth, page cache"
            each[f"{name}, with its tree"] = each[name] + report["build_seconds"]
        figures = {name: reports.figure([each[name] for each in rounds], self.nbytes)
                   for name in sorted(rounds[0])}
        return {"shape": self.shape, "letter": self.letter, "what": self.what,
                "tensors": n_tensors, "nbytes": self.nbytes, "figures": figures,
                "ratios": reports.save_ratios(self.shape, rounds), "costs": reports.costs(report),
                "command": report, "remarks": self.remarks}


def run(options, folder):
    whole = tool.head(options, folder)
    whole["shapes"] = []
    has_tmpfs = options.tmpfs and os.path.isdir(options.tmpfs)
    with (tempfile.TemporaryDirectory(prefix="berth-bench-", dir=options.tmpfs) if has_tmpfs
          else contextlib.nullcontext()) as tmpfs:
        for shape in options.shapes:
            done = Bench(options, shape, folder, tmpfs).measure()
            whole["shapes"].append(done)
            reports.print_section(done)
            sys.stdout.flush()
    return whole


def main():
    options = arguments()
    tool.run(options, lambda folder: run(options, folder))


if __name__ == "__main__":
    tool.start("save", main)
