# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a table: which rows are taken, and how others than Berth take them.

Started as a program, in a process of its own: rows.py WAY FILE OFFSET IDS prints seconds and sum.
"""

import array
import json
import mmap
import os
import random
import subprocess
import sys
import time

ROW_NBYTES = 512


def uniform(n_rows, n):
    """n ids; every row is as likely as any other."""
    choose = random.Random(1)
    return [choose.randrange(n_rows) for _ in range(n)]


def zipf(n_rows, n):
    """n ids by Zipf's law with exponent 1, in steps of two: each doubling of the rank is as likely as
    any other. Frequent rows lie anywhere in the table."""
    choose, ids = random.Random(1), []
    while len(ids) < n:
        first = 1 << choose.randrange(n_rows.bit_length())
        rank = first + choose.randrange(first)
        if rank <= n_rows:
            ids.append(rank * 11400714819323198485 % 2**64 % n_rows)
    return ids


def write_ids(path, ids):
    """Writes them as `berth bench rows --ids` reads them; returns the path."""
    with open(path, "wb") as file:
        array.array("q", ids).tofile(file)
    return path


def run_process(way, path, offset, ids_path, enter):
    """The report of one run in a process of its own, which calls enter() first."""
    command = [sys.executable, "-S", __file__, way, path, str(offset), ids_path]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, preexec_fn=enter, check=True).stdout)


def sum_of(row):
    """The sum of its 64-bit words, as `berth bench rows` takes it."""
    return sum(memoryview(row).cast("Q"))


def by_pread(fd, offset, ids):
    return sum(sum_of(os.pread(fd, ROW_NBYTES, offset + i * ROW_NBYTES)) for i in ids)


def by_map(fd, offset, ids, advice):
    with mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped:
        mapped.madvise(advice)
        return sum(sum_of(mapped[offset + i * ROW_NBYTES:offset + (i + 1) * ROW_NBYTES]) for i in ids)


def main(way, path, offset, ids_path):
    ids, fd = array.array("q"), os.open(path, os.O_RDONLY)
    with open(ids_path, "rb") as file:
        ids.frombytes(file.read())
    begin = time.perf_counter()
    if way == "pread":
        found = by_pread(fd, int(offset), ids)
    else:
        found = by_map(fd, int(offset), ids, mmap.MADV_RANDOM if way == "random" else mmap.MADV_NORMAL)
    print(json.dumps({"seconds": time.perf_counter() - begin, "sum": f"{found % 2**64:x}"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
