# SPDX-License-Identifier: BSD-3-Clause
"""What the coordinator of a joint save does for many writers, in time, memory and bytes.

One process is the coordinator, on one processor. Another one is all the writers, one after the other: it
calls berth_joint_write for each of them, with slices of zeros, and gives the receipts. Nothing is faked: they
are the receipts of real writes into the real file. What was written is made a hole again, and zeros it stays;
so a file of many GiB takes no room. In the case "own" it is synced instead, since headers are in it. The
writers of a real save write at the same time: theirs is not measured. In the case "exchanged" they get the
slices that an exchange would leave them: no bytes are sent, but the receipts are those that an exchange makes.

Started as a program, it is one coordinator: scale.py FOLDER CASE TENSORS SLICE WRITERS [NAME=VALUE]...
"""

import ctypes as c
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import machine
from raw import LIBC, MIB
from tool import note, start

# Of each case: what it is, its options.
CASES = {
    "aligned": ("every tensor in slices of all writers, whole blocks", "save.storage_alignment=4096"),
    "fragments": ("the same, not aligned: every slice has fragments", "save.storage_alignment=64"),
    "exchanged": ("the same, fragments exchanged among the writers", "save.storage_alignment=64"),
    "own": ("every writer has tensors of its own", "save.storage_alignment=4096")}
# What is measured: its key, what it is.
PHASES = [("begin", "outline -> plan, ticket, temporary"), ("receipts", "receipts added"),
          ("finish", "checks, headers, directory, rename"), ("sync", "fsync of the file"),
          ("all", "all of the coordinator's"), ("writer", "one writer: ticket, slices, receipt")]
MAX_SECONDS, MAX_NBYTES = 10, 4 << 30
SPARSE_AFTER = 32  # writers; then their bytes become a hole
KEEP_SIZE, PUNCH_HOLE = 1, 2
BLOCK, WINDOW = 4096, 8 << 20  # of an exchange: window g belongs to writer g mod n


# ---- one coordinator, and its writers ----


class Outline:
    """What is saved: float32 tensors of one row a writer, or one a writer and tensor."""

    def __init__(self, b, case, n_tensors, n_writers, slice_nbytes):
        self.is_own, self.n_writers, self.n_tensors = case == "own", n_writers, n_tensors
        self.rows = 1 if self.is_own else n_writers
        self.columns, self.b = slice_nbytes // 4, b
        self.writers = ExchangedWriters if case == "exchanged" else Writers

    def name(self, number):
        return b"model.layers.%d.self_attn.q_proj.weight" % number

    def numbers_of(self, writer):
        first = writer * self.n_tensors if self.is_own else 0
        return range(first, first + self.n_tensors)

    def make(self):
        b, shape = self.b, (c.c_int64 * 2)(self.rows, self.columns)
        tensor = b.Tensor(dtype=b.DTYPES["float32"], rank=2, shape=shape, data=c.c_void_p(-1).value)
        tree = b.check(b.berth_tree_new)
        root = b.berth_make_dict(tree, b.KINDS["DICT"])
        for number in range(self.n_tensors * (self.n_writers if self.is_own else 1)):
            key = self.name(number)
            b.berth_dict_set_value(root, b.berth_make_str(tree, key, len(key)),
                                   b.berth_make_tensor(tree, c.byref(tensor)))
        b.check(b.berth_tree_error, tree)
        return tree, root


class Writers:
    """All writers of a save, in this process."""

    def __init__(self, outline, folder, ticket):
        self.b, self.outline, self.folder, self.ticket = outline.b, outline, folder, ticket
        self.bytes = c.create_string_buffer(outline.columns * 4)
        self.starts, self.lengths = (c.c_int64 * 2)(0, 0), (c.c_int64 * 2)(1, outline.columns)
        self.slices = (self.b.Slice * outline.n_tensors)()

    def slices_of(self, writer):
        self.starts[0] = 0 if self.outline.is_own else writer
        if writer and not self.outline.is_own:
            return self.slices  # the same tensors, another row
        for made, number in zip(self.slices, self.outline.numbers_of(writer)):
            made.kind, made.name = self.b.SLICES["BOX"], self.outline.name(number)
            made.starts, made.lengths = c.addressof(self.starts), c.addressof(self.lengths)
            made.data = c.addressof(self.bytes)
        return self.slices

    def write(self, writer):
        """Its receipt, and the seconds that were neither writing nor waiting for the disk."""
        slices, stats = self.slices_of(writer), self.b.Stats()
        receipt, nbytes = c.c_void_p(), c.c_size_t()
        params = self.b.Call(stats=c.addressof(stats))
        self.b.check(self.b.berth_joint_write, self.ticket, len(self.ticket), writer, slices,
                     len(slices), c.byref(params), c.byref(receipt), c.byref(nbytes))
        made = c.string_at(receipt, nbytes.value)
        self.b.berth_free(receipt)
        return made, stats.total_seconds - stats.transfer_seconds - stats.sync_seconds

    def settle(self):
        """Of all but the first block, which names the save, makes a hole, if it is all zeros; or syncs it."""
        [name] = os.listdir(self.folder)
        fd = os.open(os.path.join(self.folder, name), os.O_RDWR)
        try:
            if self.outline.is_own:
                os.fdatasync(fd)
                return os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            nbytes = os.fstat(fd).st_size - 4096
            if LIBC.fallocate(fd, KEEP_SIZE | PUNCH_HOLE, c.c_long(4096), c.c_long(nbytes)) != 0:
                number = c.get_errno()
                raise OSError(number, f"holes cannot be made here: {os.strerror(number)}", self.folder)
        finally:
            os.close(fd)


class ExchangedWriters(Writers):
    """The same after an exchange: without the blocks that they share; and with those of their windows."""

    def __init__(self, outline, folder, ticket):
        super().__init__(outline, folder, ticket)
        self.bytes = c.create_string_buffer(max(WINDOW, outline.columns * 4))
        self.nbytes, (tree, root) = outline.columns * 4, outline.make()
        plan = self.b.check(self.b.berth_plan_new, self.b.to_path(b"scale.pt"), self.b.of_value(root), None,
                            None)
        self.offsets, record, i = [], self.b.Record(), 0
        while self.b.berth_plan_at(plan, i, c.byref(record)) == 0:
            self.offsets += [record.offset] if record.name.startswith(b"data/") else []
            i += 1
        self.b.berth_plan_free(plan)
        self.b.berth_tree_free(tree)

    def inner(self, offset):
        """The whole blocks of a tensor."""
        return -(-offset // BLOCK) * BLOCK, (offset + self.outline.n_writers * self.nbytes) // BLOCK * BLOCK

    def own(self, offset, writer):
        """What it keeps of its slice, in the file."""
        (first, behind), begin = self.inner(offset), offset + writer * self.nbytes
        end = begin + self.nbytes
        return (-(-begin // BLOCK) * BLOCK if first <= begin < behind else begin,
                end // BLOCK * BLOCK if first < end <= behind else end)

    def shared(self, offset, window):
        """Ranges of blocks of a tensor in which one slice ends and another begins."""
        first, behind = self.inner(offset)
        first, behind, ranges = max(first, window), min(behind, window + WINDOW), []
        rows = range(max(1, -(-(first - offset) // self.nbytes)),
                     min(self.outline.n_writers - 1, (behind - 1 - offset) // self.nbytes) + 1)
        for at in (offset + row * self.nbytes for row in rows):
            block = at // BLOCK * BLOCK
            if at != block and ranges and block <= ranges[-1][1]:
                ranges[-1] = ranges[-1][0], block + BLOCK
            elif at != block:
                ranges.append((block, block + BLOCK))
        return ranges

    def slices_of(self, writer):
        ranges, n = [], self.outline.n_writers
        length = n * self.nbytes
        for number, offset in enumerate(self.offsets):
            ranges.append((number, *self.own(offset, writer)))
            first = offset // WINDOW
            for index in range(first + (writer - first) % n, (offset + length - 1) // WINDOW + 1, n):
                ranges += [(number, *each) for each in self.shared(offset, index * WINDOW)]
        ranges = [each for each in ranges if each[1] < each[2]]
        slices = (self.b.Slice * len(ranges))()
        for made, (number, begin, end) in zip(slices, ranges):
            made.kind, made.name = self.b.SLICES["BYTES"], self.outline.name(number)
            made.offset, made.nbytes = begin - self.offsets[number], end - begin
            made.data = c.addressof(self.bytes)
        return slices


def run_writers(pipe, outline, folder):
    """Writes for all of them. Ends without a word if the coordinator has."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        write_for_all(pipe, outline, folder)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)


def write_for_all(pipe, outline, folder):
    ticket = pipe.recv_bytes()
    seconds = []
    with outline.b.patched("save.method=buffered"):  # what is never synced may become a hole
        writers = outline.writers(outline, folder, ticket)
        for writer in range(outline.n_writers):
            receipt, spent = writers.write(writer)
            seconds.append(spent)
            if writer % SPARSE_AFTER == SPARSE_AFTER - 1 or writer == outline.n_writers - 1:
                writers.settle()
            pipe.send_bytes(receipt)
    pipe.send(min(seconds))


def peak_nbytes():
    """The most memory that this process had since clear_peak()."""
    [line] = [line for line in machine.text_of("/proc/self/status").splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def clear_peak():
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


class Coordinator:
    def __init__(self, outline, folder, pipe):
        self.b, self.outline, self.pipe = outline.b, outline, pipe
        self.path = os.path.join(folder, "scale.pt")
        self.seconds = {key: {"wall": 0, "processor": 0} for key, _ in PHASES[:4]}
        self.joint, self.info = c.c_void_p(), outline.b.JointInfo()

    def timed(self, phase, function, *args):
        wall, processor = time.perf_counter(), time.process_time()
        function(*args)
        self.seconds[phase]["wall"] += time.perf_counter() - wall
        self.seconds[phase]["processor"] += time.process_time() - processor

    def begin(self, root):
        self.timed("begin", self.b.check, self.b.berth_joint_begin, self.path.encode(), root,
                   self.outline.n_writers, None, c.byref(self.joint), c.byref(self.info))
        self.pipe.send_bytes((c.c_char * self.info.ticket_nbytes).from_address(self.info.ticket))  # no copy

    def add_receipts(self):
        """Their bytes."""
        nbytes = 0
        for _ in range(self.outline.n_writers):
            receipt = self.pipe.recv_bytes()
            nbytes += len(receipt)
            self.timed("receipts", self.b.check, self.b.berth_joint_add_receipt, self.joint, receipt,
                       len(receipt))
        return nbytes

    def run(self):
        tree, root = self.outline.make()
        before = peak_nbytes()
        clear_peak()
        self.begin(root)
        receipts_nbytes = self.add_receipts()
        self.timed("finish", self.b.check, self.b.berth_joint_finish, self.joint)
        fd = os.open(self.path, os.O_RDONLY)
        self.timed("sync", os.fsync, fd)
        os.close(fd)
        peak = peak_nbytes()
        self.b.berth_tree_free(tree)
        all_of_it = {kind: sum(each[kind] for each in self.seconds.values()) for kind in ("wall", "processor")}
        alone = self.pipe.recv()
        return {"writers": self.outline.n_writers, "tensors": self.outline.n_tensors,
                "file_nbytes": self.info.nbytes, "ticket_nbytes": self.info.ticket_nbytes,
                "receipts_nbytes": receipts_nbytes, "peak_nbytes": peak, "outline_nbytes": before,
                "seconds": {**self.seconds, "all": all_of_it, "writer": {"wall": alone, "processor": alone}}}


def coordinate(folder, case, n_tensors, slice_nbytes, n_writers, options):
    """Prints the figures. The writers are another process, on another processor if there is one."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/peers"))
    import berth_ctypes as b

    outline = Outline(b, case, n_tensors, n_writers, slice_nbytes)
    mine, theirs = multiprocessing.Pipe()
    writers = multiprocessing.get_context("fork").Process(target=run_writers, daemon=True,
                                                          args=(theirs, outline, folder))
    writers.start()
    theirs.close()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with b.patched(" ".join(["save.durability=none", CASES[case][1], *options])):
        made = Coordinator(outline, folder, mine).run()
    writers.join()
    if n_writers * n_tensors * slice_nbytes <= 2 << 30:
        b.check(b.berth_verify, b.from_path(os.path.join(folder, "scale.pt")), None, None, None, None)
    print(json.dumps(made))


# ---- all of them ----


def room(case, options, n_writers):
    """Whether there is memory for so many writers: by bytes for each slice or tensor, a quarter more than was measured."""
    each = {"aligned": 400, "fragments": options.slice + 400, "own": 1300, "exchanged": 800}[case]
    return n_writers * options.tensors * each < machine.available_nbytes() * 0.8


def one(folder, case, options, n_writers):
    words = [folder, case, options.tensors, options.slice, n_writers, *options.set]
    done = subprocess.run([sys.executable, __file__, *map(str, words)], stdout=subprocess.PIPE, check=False)
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    if done.returncode:
        raise OSError(f"no figures of {n_writers} writers: their coordinator ended with {done.returncode}")
    return json.loads(done.stdout)


def section(folder, case, options):
    runs, remarks = [], []
    for n_writers in sorted({max(1, options.simulate // part) for part in (8, 4, 2, 1)}):
        if not room(case, options, n_writers):
            remarks.append(f"no memory for {n_writers} writers")
            continue
        note(f"({case}) {n_writers} writers")
        runs.append(one(folder, case, options, n_writers))
    return {"case": case, "what": CASES[case][0], "slice_nbytes": options.slice, "runs": runs,
            "at_most": {"seconds": MAX_SECONDS, "peak_nbytes": MAX_NBYTES}, "remarks": remarks}


def growth(values):
    """By which power of the writers the last value grew from the one before, if there are two."""
    return f"{math.log2(values[-1] / values[-2]):9.2f}" if len(values) > 1 and min(values[-2:]) > 0 else ""


def print_row(name, values, text, aim=None):
    verdict = "" if aim is None or not values else " ok" if values[-1] <= aim else " above"
    print(f"  {name:40} {''.join(f'{text(value):>10}' for value in values)} {growth(values)}{verdict}")


def print_section(report):
    runs = report["runs"]
    print(f"\n({report['case']}) {report['what']}: {runs[0]['tensors'] if runs else 0} tensors a writer, "
          f"slices of {report['slice_nbytes']} bytes")
    print(f"  {'writers':40} {''.join(f'''{run['writers']:10}''' for run in runs)}    growth")
    for key, what in PHASES:
        for kind in ("wall", "processor") if key == "all" else ("wall",):
            unit = "s" if kind == "wall" else "s of a processor"
            print_row(f"{what}, {unit}", [run["seconds"][key][kind] for run in runs], "{:.3f}".format,
                      MAX_SECONDS if key == "all" else None)
    for key, what in (("ticket_nbytes", "one ticket"), ("receipts_nbytes", "all receipts"),
                      ("outline_nbytes", "memory before, with the outline"),
                      ("peak_nbytes", "peak memory"), ("file_nbytes", "file")):
        print_row(f"{what}, MiB", [run[key] / MIB for run in runs], "{:.2f}".format,
                  MAX_NBYTES / MIB if key == "peak_nbytes" else None)
    for remark in report["remarks"]:
        print(f"  {remark}")


if __name__ == "__main__":
    folder, case, *numbers = sys.argv[1:6]
    start("writers", lambda: coordinate(folder, case, *map(int, numbers), sys.argv[6:]))
