# SPDX-License-Identifier: BSD-3-Clause
"""Figures and ratios of a run: medians, spread, aims, tables."""

import statistics

GIB = 1 << 30
LARGE = ("uniform", "llama", "one", "linear")

# label, shapes, ours, theirs (the ratio is theirs / ours in seconds), the aim.
# A figure "disk: x" was taken in the folder, "tmpfs: x" in memory. A name that ends in "*" stands for
# the best figure of the round whose name begins like this.
RAW = ("disk: raw*", "disk: fio*")
SAVE_RATIOS = [
    ("durable, against the best raw direct write", LARGE, "disk: berth, durable", RAW, 0.95),
    ("durable, against torch.save + fsync", LARGE, "disk: berth, durable",
     "disk: torch.save + fsync", 2.5),
    ("durable, against torch.save into the page cache", LARGE, "disk: berth, durable",
     "disk: torch.save", 1.2),
    ("page cache, against torch.save", LARGE, "disk: berth, page cache", "disk: torch.save", 2),
    ("page cache, against torch.save with CRC off", LARGE, "disk: berth, page cache",
     "disk: torch.save, CRC off", 1.3),
    ("tmpfs, against torch.save", LARGE, "tmpfs: berth", "tmpfs: torch.save", 1.5),
    ("CRC on against off, durable", LARGE, "disk: berth, durable", "disk: berth, durable, CRC off",
     0.98),
    ("CRC on against off, tmpfs", LARGE, "tmpfs: berth", "tmpfs: berth, CRC off", 0.85),
    ("page cache, against torch.save", ("small",), "disk: berth, page cache", "disk: torch.save",
     20),
    ("the same, with making the tree of values", ("small",), "disk: berth, page cache, with its tree",
     "disk: torch.save", None),
    ("durable, against torch.save + fsync", ("small",), "disk: berth, durable",
     "disk: torch.save + fsync", None),
    ("durable, against safetensors + fsync", (*LARGE, "small"), "disk: berth, durable",
     "disk: safetensors + fsync", None),
    ("page cache, against safetensors", (*LARGE, "small"), "disk: berth, page cache",
     "disk: safetensors", None),
]
MAX_PEAK_NBYTES = 64 << 20


def figure(seconds, nbytes=None):
    middle = statistics.median(seconds)
    made = {"seconds": seconds, "median": middle, "min": min(seconds), "max": max(seconds)}
    if nbytes:
        made["GiB_per_s"] = nbytes / middle / GIB
    return made


def seconds_of(figures, who):
    """One figure of a round, or the best of several; None: there is none."""
    names = [who] if isinstance(who, str) else who
    found = [seconds for name, seconds in figures.items() for wanted in names
             if (name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted)]
    return min(found, default=None)


def ratios(rows, rounds):
    """The ratio of each round, then their median: both sides had the same conditions.

    A row: label, ours, theirs, aim. A round in which one side is missing does not count."""
    made = []
    for label, ours, theirs, aim in rows:
        sides = [(seconds_of(each, ours), seconds_of(each, theirs)) for each in rounds]
        each = [b / a for a, b in sides if a and b]
        if each:
            made.append({"case": label, "ours": ours, "theirs": theirs, "aim": aim, "rounds": each,
                         "median": statistics.median(each), "min": min(each), "max": max(each)})
    return made


def save_ratios(shape, rounds):
    return ratios([(label, ours, theirs, aim) for label, shapes, ours, theirs, aim in SAVE_RATIOS
                   if shape in shapes], rounds)


def costs(bench):
    """Memory and disk traffic from the report of `berth bench save --json`."""
    above = bench["written_nbytes"] - bench["file_nbytes"]
    return [{"case": "memory above the tensors, MiB", "value": bench["peak_nbytes"] / (1 << 20),
             "at_most": MAX_PEAK_NBYTES / (1 << 20)},
            {"case": "bytes to the device above the file's, MiB", "value": above / (1 << 20),
             "at_most": (bench["file_nbytes"] / 1000 + (1 << 20)) / (1 << 20)}]


def verdict(good):
    return "ok" if good else "below"


def print_section(report):
    """Prints one table: figures, ratios, costs with their limits, remarks."""
    size = f": {report['nbytes'] / GIB:.3f} GiB, {report['tensors']} in number" \
        if report.get("nbytes") else ""
    print(f"\n({report['letter']}) {report['what']}{size}")
    print(f"  {'':48} {'GiB/s' if size else '':>7} {'median s':>9} {'min':>9} {'max':>9}")
    for name, row in report["figures"].items():
        rate = f"{row['GiB_per_s']:7.2f}" if "GiB_per_s" in row else " " * 7
        print(f"  {name:48} {rate} {row['median']:9.4f} {row['min']:9.4f} {row['max']:9.4f}")
    if report["ratios"]:
        print(f"  {'ratio':48} {'median':>7} {'min':>9} {'max':>9} {'aim':>9}")
    for row in report["ratios"]:
        aim = f"{row['aim']:9.2f} {verdict(row['median'] >= row['aim'])}" if row["aim"] else ""
        print(f"  {row['case']:48} {row['median']:7.2f} {row['min']:9.2f} {row['max']:9.2f} {aim}")
    for row in report["costs"]:
        limit = f"{'at most':>19} {row['at_most']:9.2f} {'ok' if row['value'] <= row['at_most'] else 'above'}" \
            if row["at_most"] is not None else ""
        print(f"  {row['case']:48} {row['value']:7.2f} {limit}".rstrip())
    for remark in report["remarks"]:
        print(f"  {remark}")
