# SPDX-License-Identifier: BSD-3-Clause
"""Figures and ratios of a run: medians, spread, what is aimed at, tables."""

import statistics

GIB = 1 << 30
LARGE = ("uniform", "llama", "one")

# label, shapes, ours, theirs (the ratio is theirs / ours in seconds), the least that is aimed at.
# A figure "disk: x" was taken in the folder, "tmpfs: x" in memory; "raw" is the best raw write of
# the same round.
RATIOS = [
    ("durable, against the best raw direct write", LARGE, "disk: berth, durable", "raw", 0.95),
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
MOST_PEAK_NBYTES = 64 << 20


def figure(seconds, nbytes):
    middle = statistics.median(seconds)
    return {"seconds": seconds, "median": middle, "min": min(seconds), "max": max(seconds),
            "GiB_per_s": nbytes / middle / GIB}


def best_raw(rounds):
    """The best raw write of each round; rounds without one: an empty list."""
    found = [[seconds for name, seconds in each.items() if name.startswith(("disk: raw", "disk: fio"))]
             for each in rounds]
    return [min(each) for each in found if each]


def ratios(shape, rounds):
    """Each ratio of each round first, then their median: both sides met the same minute."""
    made = []
    for label, shapes, ours, theirs, aim in RATIOS:
        other = best_raw(rounds) if theirs == "raw" else [r[theirs] for r in rounds if theirs in r]
        own = [r[ours] for r in rounds if ours in r]
        if shape not in shapes or not own or len(own) != len(other):
            continue
        each = [b / a for a, b in zip(own, other)]
        made.append({"case": label, "ours": ours, "theirs": theirs, "aim": aim, "rounds": each,
                     "median": statistics.median(each), "min": min(each), "max": max(each)})
    return made


def costs(bench):
    """What `berth bench save --json` told of memory and of the device."""
    above = bench["written_nbytes"] - bench["file_nbytes"]
    return [{"case": "memory above the tensors, MiB", "value": bench["peak_nbytes"] / (1 << 20),
             "at_most": MOST_PEAK_NBYTES / (1 << 20)},
            {"case": "bytes to the device above the file's, MiB", "value": above / (1 << 20),
             "at_most": (bench["file_nbytes"] / 1000 + (1 << 20)) / (1 << 20)}]


def verdict(good):
    return "ok" if good else "below"


def print_shape(report):
    print(f"\n({report['letter']}) {report['what']}: {report['nbytes'] / GIB:.3f} GiB, "
          f"{report['tensors']} in number")
    print(f"  {'':48} {'GiB/s':>7} {'median s':>9} {'min':>9} {'max':>9}")
    for name, row in report["figures"].items():
        print(f"  {name:48} {row['GiB_per_s']:7.2f} {row['median']:9.4f} {row['min']:9.4f} "
              f"{row['max']:9.4f}")
    print(f"  {'ratio':48} {'median':>7} {'min':>9} {'max':>9} {'aim':>9}")
    for row in report["ratios"]:
        aim = f"{row['aim']:9.2f} {verdict(row['median'] >= row['aim'])}" if row["aim"] else ""
        print(f"  {row['case']:48} {row['median']:7.2f} {row['min']:9.2f} {row['max']:9.2f} {aim}")
    for row in report["costs"]:
        good = "ok" if row["value"] <= row["at_most"] else "above"
        print(f"  {row['case']:48} {row['value']:7.2f} {'at most':>19} {row['at_most']:9.2f} {good}")
    for remark in report["remarks"]:
        print(f"  {remark}")
