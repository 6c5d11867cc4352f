# SPDX-License-Identifier: BSD-3-Clause
"""How fast Berth saves from and loads to a GPU, against PyTorch, safetensors and the hardware.

One run, in one process, of the same tensors on the same device and file system. All take turns,
each round in another order. Before each turn the device is idle, memory of earlier turns is free,
and the file system is synced. A ratio is taken within each round; its median is printed. One more
round goes first and is not counted: in it files are verified, and what is loaded to the device is
compared with what PyTorch reads.

Saving: torch.save by default, with pinned memory, with CRC off, with both; Berth with CRCs on and
off, durable and into the page cache, and with pageable staging buffers. Loading, cold and warm:
torch.load to the device, also with mmap; safetensors; Berth, also with CRCs verified. The limits: a
plain loop of copies between pinned memory and the device; bare direct writes with fsync, or reads
(fio's too, if installed). Both in their best settings; the slower one of them counts.

Needs a build of Berth and a Python with PyTorch (safetensors takes part if it is installed). Without
a GPU nothing is measured and the exit code is 2. `--device simulated` runs everything but the peers
on a simulated device; its figures mean nothing. Run it on a machine that does nothing else.
"""

import os
import sys

import machine
import report as reports
import save
import shapes
import tool
from tool import MIB
from turns import COLD, WARM, Turn, Turns

SIZE = 8192 * MIB
RAW = ("raw *", "fio *")
COPY, SLOWER = "copy loop", "the slower limit"
CHECKED = "load.check=data load.mmap=off"  # or open would sum what it could map, before its device is set
BEST_TORCH = "torch.save, pinned, CRC off"

# label, ours, theirs, the aim
SAVE_RATIOS = [
    ("durable, against the slower limit", "berth, durable", SLOWER, 0.9),
    ("page cache, against torch.save", "berth, page cache", "torch.save", 4),
    ("page cache, against it with pinned memory, CRC off", "berth, page cache", BEST_TORCH, 2),
    ("durable, against torch.save + fsync", "berth, durable", "torch.save + fsync", 4),
    ("durable, against it with pinned memory, CRC off", "berth, durable", f"{BEST_TORCH} + fsync", 2),
    ("CRC on against off, durable", "berth, durable", "berth, durable, CRC off", None),
    ("CRC on against off, page cache", "berth, page cache", "berth, page cache, CRC off", None),
    ("pinned against pageable staging, page cache", "berth, page cache", "berth, page cache, pageable",
     None),
    ("durable, against safetensors + fsync", "berth, durable", "safetensors + fsync", None)]
LOAD_RATIOS = [
    ("against the slower limit", "berth", SLOWER, 0.9),
    ("against torch.load(mmap)", "berth", "torch.load(mmap)", 2),
    ("against torch.load", "berth", "torch.load", None),
    ("against safetensors", "berth", "safetensors", None),
    ("CRCs verified, against the slower limit", "berth, CRCs verified", SLOWER, None),
    ("CRCs verified, against torch.load(mmap)", "berth, CRCs verified", "torch.load(mmap)", None)]


def arguments():
    parser = tool.parser("device", __doc__)
    parser.add_argument("--device", default="cuda:0", help="cuda:0 (the default), cuda:1 ...; simulated")
    parser.add_argument("--size", type=tool.nbytes, metavar="NBYTES",
                        help="of each shape (8GiB; linear: 4GB; small: 100,000 tensors at most)")
    parser.add_argument("--scale", type=float, default=1, metavar="PART",
                        help="a part of the sizes: 0.25 where the device has 4 GB")
    parser.add_argument("--shapes", default=",".join(shapes.SHAPES), help="some of %(default)s")
    parsed = tool.parse(parser)
    parsed.shapes = parsed.shapes.split(",")
    if not 0 < parsed.scale <= 1:
        parser.error(f"--scale {parsed.scale}: must be above 0 and at most 1")
    for shape in parsed.shapes:
        if shape not in shapes.SHAPES:
            parser.error(f"there is no shape '{shape}'; there are {', '.join(shapes.SHAPES)}")
    return parsed


def aims(rows, device):
    """A simulated device has none."""
    return [(*row[:3], row[3] if device.is_real else None) for row in rows]


def add_slower_limit(figures):
    raw = reports.seconds_of(figures, RAW)
    if raw and COPY in figures:
        figures[SLOWER] = max(raw, figures[COPY])


class Save(save.Bench):
    """Saves of one shape whose tensors are on the device."""

    def __init__(self, options, shape, folder, device):
        self.device = device
        self.command_words = ("--device", device.device_name, "--stats")
        super().__init__(options, shape, folder, None)

    def wanted(self, natural):
        if self.shape == "small":
            return int(super().wanted(natural) * self.options.scale)
        size = min(self.options.size or natural, natural) if self.shape == "linear" else \
            self.options.size or SIZE
        return int(size * self.options.scale)

    def room(self):
        """Bytes of tensors for which there is room: twice on the device; in memory in the page cache
        and as a peer's copy; on disk as three files."""
        return min(self.device.room() / 2.2 - 512 * MIB, machine.available_nbytes() / 2.3 - 512 * MIB,
                   machine.free_nbytes(self.folder) / 3.3 - 64 * MIB)

    def make(self):
        return self.device.make(self.shape, self.asked)

    def turn(self, contestant, folder, then=None):
        self.device.settle()
        return super().turn(contestant, folder, then)

    def contestants(self):
        durable, cached = "save.durability=full", "save.durability=none"
        off = "save.compute_crc32=off"
        return [self.berth("berth, durable", durable), self.berth("berth, durable, CRC off", durable, off),
                self.berth("berth, page cache", cached),
                self.berth("berth, page cache, CRC off", cached, off),
                self.berth("berth, page cache, pageable", cached, "save.use_pinned_memory_for_d2h=off"),
                *self.device.savers(self.state), *self.raw_writes(),
                lambda _: {COPY: self.device.copy(self.nbytes, to_host=True)}]

    def keep(self):
        """The files that are loaded next; (the .pt, the .safetensors or None)."""
        pt = os.path.join(self.folder, "kept.pt")
        self.berth("", "save.durability=full")(pt)
        if not (self.device.is_real and tool.version_of("safetensors")):
            return pt, None
        import safetensors.torch

        other = os.path.join(self.folder, "kept.safetensors")
        safetensors.torch.save_file(self.state, other)
        self.raw.sync_file_system(self.folder)
        return pt, other

    def what_limits(self, report):
        stats = report.get("stats", {})
        found = [f"{key.removesuffix('_seconds')} {stats[key]:.3f} s" for key in
                 ("device_seconds", "render_seconds", "crc32_seconds", "disk_seconds") if key in stats]
        if stats.get("limited_by"):
            found.insert(0, f"limited by {stats['limited_by']}")
        return f"; of all workers: {', '.join(found)}" if found else ""

    def measure(self):
        made = self.rounds(self.contestants(), self.folder, "save")
        rounds = [{name.removeprefix("save: "): seconds for name, seconds in each.items()}
                  for each in made]
        for each in rounds:
            add_slower_limit(each)
        n_tensors, kept = len(self.state), self.keep()
        self.tree.free()
        self.state.clear()
        self.device.settle()
        report = self.command(kept[0], n_tensors)
        self.remark(f"method {report['method']} ({report['reason']}){self.what_limits(report)}")
        figures = {name: reports.figure([each[name] for each in rounds], self.nbytes)
                   for name in sorted(rounds[0])}
        return {"case": "save", "shape": self.shape, "letter": f"{self.letter}: save",
                "what": f"{self.what}, from {self.device.device_name}", "tensors": n_tensors,
                "nbytes": self.nbytes, "figures": figures,
                "ratios": reports.ratios(aims(SAVE_RATIOS, self.device), rounds),
                "costs": reports.costs(report)[1:], "command": report, "remarks": self.remarks}, kept


class Load(Turns):
    """Loads of one file to the device."""

    def __init__(self, options, folder, device, saved, kept):
        super().__init__(options, folder)
        self.device, self.saved, (self.pt, self.safetensors) = device, saved, kept
        self.set = " ".join(["debug=off", *options.set])

    def measure_turn(self, turn):
        self.device.settle()
        return super().measure_turn(turn)

    def ours(self, cache):
        import devices

        return [Turn(name, devices.berth_load(self.pt, f"{self.set} {option}", self.device.device_name), self.pt,
                     cache) for name, option in (("berth", "load.check=directory"),
                                                 ("berth, CRCs verified", CHECKED))]

    def limits(self, cache):
        nbytes = self.saved["nbytes"]
        copy = Turn(COPY, lambda: self.device.copy(nbytes, to_host=False), self.pt, None)
        if cache == COLD:
            return [*self.limit(self.pt), copy]
        reads = self.raw.RawReads(self.pt)
        return [Turn("raw buffered, 4 MiB x 2", lambda: reads.read(4 * MIB, 2, False), self.pt, WARM), copy]

    def check(self):
        import devices

        for options in ("load.method=direct", "load.method=read load.check=data"):
            devices.compare(self.pt, f"{self.set} {options}", self.device.device_name)

    def measure(self):
        size = {key: self.saved[key] for key in ("nbytes", "tensors", "shape")}
        letter, what = self.saved["letter"][0], f"{shapes.SHAPES[size['shape']][1]}, to {self.device.device_name}"
        for cache in (COLD, WARM):
            yield self.section(
                f"{letter}: load, {cache}", f"{what}, {cache}",
                lambda: [*self.ours(cache), *self.device.loaders(self.pt, self.safetensors, cache),
                         *self.limits(cache)],
                aims(LOAD_RATIOS, self.device), self.check if cache == COLD else None, size,
                add_slower_limit)


def run(options, folder):
    import devices

    device = devices.device_of(options.device)
    whole = tool.head(options, folder)
    whole["device"], whole["sections"] = device.facts(), []
    print(f"{whole['device']['device']}: {whole['device']['name']}")
    if not device.is_real:
        print("a simulated device: nothing here says how fast anything is")

    def show(section):
        whole["sections"].append(section)
        reports.print_section(section)
        sys.stdout.flush()

    for shape in options.shapes:
        saved, kept = Save(options, shape, folder, device).measure()
        show(saved)
        for section in Load(options, folder, device, saved, kept).measure():
            show(section)
        for path in kept:
            if path:
                os.unlink(path)
    return whole


def main():
    options = arguments()
    tool.run(options, lambda folder: run(options, folder))


if __name__ == "__main__":
    tool.start("device", main)
