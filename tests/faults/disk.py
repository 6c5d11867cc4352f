# SPDX-License-Identifier: BSD-3-Clause
"""W5: power cuts of a real file system.

An ext4 on a loop device, mounted so that it syncs nothing by itself. The command is killed at a
system call, or ends; what is in the file behind the loop device at that moment is what a disk would
have. A copy of it is mounted: the path holds the old file or the new one, whole, and the new one if
the command said that it was done.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import unittest

from commands import (BERTH, DIRECT, LONG, QUIET, TEMPORARY, THREADS, TILES, berth, count_calls,
                      has_direct, make_sources, read, run_killed)

# auto_da_alloc would repair programs that forget to sync before they rename. commit: seconds
# between syncs that nobody asked for.
MOUNTED = "loop,noauto_da_alloc,commit=300"
NBYTES = 16 << 20
# What changes files or their names, and what is between.
CALLS = ["openat", "fchmod", "fallocate", "ftruncate", "pwrite64", "pwritev", "pwritev2",
         "fsync", "fdatasync", "sync_file_range", "fcntl", "close", "renameat", "unlinkat",
         "newfstatat"]


@contextlib.contextmanager
def mounted(image, folder, options=MOUNTED):
    subprocess.run(["mount", "-o", options, image, folder], check=True, **QUIET)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True, **QUIET)


def may_mount():
    with tempfile.TemporaryDirectory(prefix="berth-disk-") as folder:
        image = os.path.join(folder, "image")
        with open(image, "wb") as file:
            file.truncate(NBYTES)
        try:
            subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True, **QUIET)
            with mounted(image, folder):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


class Disk:
    """A disk with old.pt and source.pt on it, as often as wanted."""

    def __init__(self, data):
        # In memory where that can be: it is copied for every point.
        above = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = tempfile.mkdtemp(prefix="berth-disk-", dir=above)
        self.mount, self.copy_mount = (self.path(name) for name in ("mount", "copy"))
        os.mkdir(self.mount)
        os.mkdir(self.copy_mount)
        self.options = f"{MOUNTED},data={data}"
        self.fresh, self.image, self.cut = (self.path(name) for name in ("fresh", "image", "cut"))
        with open(self.fresh, "wb") as file:
            file.truncate(NBYTES)
        subprocess.run(["mkfs.ext4", "-q", "-F", self.fresh], check=True, **QUIET)
        self.old, self.source, _ = make_sources(self.folder)
        with mounted(self.fresh, self.mount):
            shutil.copy(self.old, os.path.join(self.mount, "model.pt"))
        self.target = os.path.join(self.mount, "model.pt")
        self.command = [BERTH, "copy", self.source, self.target, *TILES]
        self.versions = [read(self.old), None]
        with self.inserted():
            subprocess.run(self.command, check=True, **QUIET)
            self.versions[1] = read(self.target)

    def path(self, name):
        return os.path.join(self.folder, name)

    def close(self):
        shutil.rmtree(self.folder)

    @contextlib.contextmanager
    def inserted(self):
        """The disk as it was in the beginning."""
        shutil.copyfile(self.fresh, self.image)
        with mounted(self.image, self.mount, self.options):
            yield

    def cut_power(self):
        """Copies what the disk has. Twice: nothing may be on its way meanwhile."""
        for _ in range(20):
            shutil.copyfile(self.image, self.cut)
            if read(self.image) == read(self.cut):
                return
        raise AssertionError("the disk does not come to rest")

    def found(self):
        """After the power is back: which version the path holds; the rest are temporaries."""
        with mounted(self.cut, self.copy_mount, self.options):
            target = os.path.join(self.copy_mount, "model.pt")
            berth("verify", target)
            left = set(os.listdir(self.copy_mount)) - {"model.pt", "lost+found"}
            if not all(TEMPORARY.match(name) for name in left):
                raise AssertionError(f"left behind: {left}")
            version = self.versions.index(read(target))
            berth("copy", self.old, target)
            # What had no owner yet on the disk is of another boot, for all that is known.
            berth("clean", self.copy_mount, "--remove", "--older-than", "0")
            left = set(os.listdir(self.copy_mount)) - {"model.pt", "lost+found"}
            if left:
                raise AssertionError(f"not removed by berth clean: {left}")
            return version


@unittest.skipUnless(may_mount(), "loop mounts are not allowed here")
class DiskTest(unittest.TestCase):
    LEAST = 340 if LONG else 38

    def setUp(self):
        self.n_points = 0

    def cut_everywhere(self, disk, options, calls):
        command = [*disk.command, *options]
        with disk.inserted():
            counts = count_calls(command, disk.path("calls"))
        for name in calls:
            for nth in range(1, counts[name] + 1):
                with disk.inserted():
                    killed = run_killed(command, name, nth)
                    disk.cut_power()
                with self.subTest(options=options, call=name, nth=nth):
                    version = disk.found()
                    self.assertTrue(killed or version == 1, "told, but not durable")
                self.n_points += 1

    def test_a_power_cut_leaves_the_old_file_or_the_new_one(self):
        for data in ("ordered", "writeback") if LONG else ("writeback",):
            disk = Disk(data)
            self.addCleanup(disk.close)
            variants = [THREADS[1], THREADS[4]] if LONG else [THREADS[1]]
            if has_direct():
                variants.append([*THREADS[4], *DIRECT])
            for options in variants:
                self.cut_everywhere(disk, options, CALLS)
        print(f"fault points W5: {self.n_points}")
        self.assertGreaterEqual(self.n_points, self.LEAST)

    def test_what_was_told_to_be_durable_is(self):
        disk = Disk("ordered")
        self.addCleanup(disk.close)
        for _ in range(20 if LONG else 4):
            for options in [*THREADS.values(), *([DIRECT] if has_direct() else [])]:
                with disk.inserted():
                    subprocess.run([*disk.command, *options], check=True, **QUIET)
                    disk.cut_power()
                self.assertEqual(disk.found(), 1)
                self.n_points += 1
        print(f"fault points W5: {self.n_points}")

    def test_this_test_would_notice_a_sync_left_out(self):
        disk = Disk("ordered")
        self.addCleanup(disk.close)
        with disk.inserted():
            subprocess.run(["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync",
                            "--inject=fsync:retval=0", *disk.command], check=True, **QUIET)
            disk.cut_power()
        self.assertEqual(disk.found(), 0, "nobody synced, and yet it is there")
