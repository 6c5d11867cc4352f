# SPDX-License-Identifier: BSD-3-Clause
"""W12, W1, W3, W4, W5 of saves with a base, on XFS and btrfs on loop devices: each ioctl refused, each read of a clone
failing, kills at every call, power cuts, and disks that become full while blocks are shared."""

import filecmp
import json
import os
import shutil
import subprocess
import sys
import time
import unittest

from commands import BERTH, LONG, QUIET, TEMPORARY, berth, count_calls, read, run_killed

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import blocks_shared

NBYTES = 160 * 1024  # of a tensor
NAMES = "abcd"
REFUSALS = ["EOPNOTSUPP", "EXDEV", "EINVAL", "EIO", "ENOSPC", "EDQUOT", "EPERM", "EACCES", "ETXTBSY", "EINTR", "ENOMEM",
            "EBADF", "EISDIR", "ENOTTY", "EROFS"]
if not LONG:
    REFUSALS = REFUSALS[:5] + ["EINTR"]
KILLED = ["ioctl", "openat", "fallocate", "ftruncate", "pread64", "pwrite64", "pwritev", "fsync", "sync_file_range", "close",
          "renameat", "newfstatat", "fstatfs", "unlinkat"]
if not LONG:
    KILLED = ["ioctl", "fallocate", "ftruncate", "pwrite64", "pwritev", "fsync", "renameat"]
CUT = KILLED if LONG else ["ioctl", "pwrite64", "fsync", "renameat"]
ALIGNED = ["--set", "save.storage_alignment=4096", "--set", "io.threads=1", "--set", "io.chunk_nbytes=131072"]


def make_checkpoint(path, changed):
    """Tensors of bytes that do not repeat; one of them is other ones."""
    header, data = {}, b""
    for i, name in enumerate(NAMES):
        header[name] = {"dtype": "U8", "shape": [NBYTES], "data_offsets": [len(data), len(data) + NBYTES]}
        first = 1000 * i + 500_000 * (name == changed)
        data += b"".join(j.to_bytes(4, "little") for j in range(first, first + NBYTES // 4))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
    berth("convert", path + ".safetensors", path, *ALIGNED)


def copy(image, to):
    if os.path.exists(to):  # a loop device that lingers keeps its own
        os.remove(to)
    subprocess.run(["cp", "--sparse=always", image, to], check=True)


class BaseFaults:
    KIND = ""

    @classmethod
    def setUpClass(cls):
        cls.volume = blocks_shared.Volume.of_class(cls.KIND, cls)
        cls.source, cls.old = cls.volume.path_beside("model.pt"), cls.volume.path_beside("old.pt")
        make_checkpoint(cls.source, "c")
        os.mkdir(cls.volume.path_beside("before"))
        before = cls.volume.path_beside("before/model.pt")
        make_checkpoint(before, None)
        os.rename(before, cls.old)
        cls.target = cls.volume.path("model.pt")
        cls.command = [BERTH, "copy", cls.source, cls.target, "--base", cls.target, *ALIGNED]
        cls.versions = [read(cls.old), read(cls.source)]
        cls.reset()
        shared = json.loads(berth(*cls.command[1:], "--json", "--stats").stdout)["stats"]
        if cls.found() != 1 or shared["shared_nbytes"] < (len(NAMES) - 1) * NBYTES:
            raise AssertionError(f"nothing to try: {shared}")

    def setUp(self):
        self.n_points = 0

    @classmethod
    def reset(cls):
        """The old file, with blocks on the disk, and no other."""
        for name in os.listdir(cls.volume.mount):
            if name.startswith((".berth-", "model", "fill")):
                os.remove(cls.volume.path(name))
        shutil.copyfile(cls.old, cls.target)
        subprocess.run(["sync", "-f", cls.volume.mount], check=True)

    @classmethod
    def found(cls):
        return cls.versions.index(read(cls.target))

    def left(self):
        return [name for name in os.listdir(self.volume.mount) if name.startswith(".berth-")]

    def injected(self, what, code=None):
        """Runs the command with one fault. Returns its exit code."""
        self.reset()
        name = what.partition(":")[0]
        done = subprocess.run(["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={name}", f"--inject={what}",
                               *self.command], check=False, timeout=600, **QUIET)
        self.n_points += 1
        with self.subTest(fault=what):
            if what != "fsync:error=EIO:when=2":  # of the folder: the new file is there, and may not be durable
                self.assertEqual(self.found(), int(done.returncode == 0))
            self.assertEqual(self.left(), [])
            if code is not None:
                self.assertEqual(done.returncode, code)
        return done.returncode

    def tell(self, line, least):
        print(f"fault points {line}: {self.n_points}")
        self.assertGreaterEqual(self.n_points, least)

    def test_w12_a_refused_clone_is_no_failure(self):
        self.reset()
        n = count_calls(self.command, self.volume.path_beside("calls"))["ioctl"]
        self.assertGreaterEqual(n, 2)
        for nth in range(1, n + 1):
            for each in REFUSALS:
                self.injected(f"ioctl:error={each}:when={nth}", 0)
                if each != "EINTR":
                    self.injected(f"ioctl:error={each}:when={nth}+", 0)
        self.tell("W3", 2 * len(REFUSALS))

    def test_w1_reads_and_writes_fail(self):
        self.reset()
        counts = count_calls(self.command, self.volume.path_beside("calls"))
        for name, error in (("pread64", "EIO"), ("pwrite64", "ENOSPC"), ("pwritev", "EIO"), ("fsync", "EIO"),
                            ("fallocate", "ENOSPC"), ("fchmod", "EPERM"), ("ftruncate", "ENOSPC"), ("fstatfs", "EIO"), ("renameat", "EIO")):
            for nth in range(1, counts[name] + 1, 1 if LONG or name != "pread64" else 3):
                self.injected(f"{name}:error={error}:when={nth}")
        self.tell("W1", 20)

    def test_w4_killed_at_every_call(self):
        self.reset()
        counts = count_calls(self.command, self.volume.path_beside("calls"))
        for name in KILLED:
            for nth in range(1, counts[name] + 1):
                self.reset()
                killed = run_killed(self.command, name, nth)
                with self.subTest(call=name, nth=nth):
                    self.assertTrue(killed or self.found() == 1)
                    self.assertIn(self.found(), (0, 1))
                    self.assertTrue(all(TEMPORARY.match(each) for each in self.left()))
                    berth(*self.command[1:])  # and the next one has nothing of what was left
                    self.assertEqual(self.found(), 1)
                self.n_points += 1
        self.tell("W4", 10)

    def test_w5_a_power_cut_leaves_the_old_file_or_the_new_one(self):
        volume = self.volume
        self.reset()
        counts = count_calls(self.command, volume.path_beside("calls"))
        points = [(name, nth) for name in CUT for nth in range(1, counts[name] + 1)] + [("renameat", 99)] * (9 if LONG else 3)
        self.reset()
        volume.eject()
        copy(volume.image, volume.path_beside("fresh"))
        for name, nth in points:
            volume.replace(volume.path_beside("fresh"))
            volume.insert()
            killed = run_killed(self.command, name, nth)
            while True:  # nothing may be on its way
                copy(volume.image, volume.path_beside("cut"))
                if filecmp.cmp(volume.image, volume.path_beside("cut"), shallow=False):
                    break
            volume.eject()
            os.replace(volume.path_beside("cut"), volume.image)
            volume.insert()
            with self.subTest(call=name, nth=nth):
                self.assertTrue(killed or self.found() == 1, "told, but not durable")
                self.assertIn(self.found(), (0, 1))
                berth("verify", self.target)
            volume.eject()
            self.n_points += 1
        volume.replace(volume.path_beside("fresh"))
        volume.insert()
        self.tell("W5", 6)

    def test_w1_the_disk_becomes_full_while_blocks_are_shared(self):
        """What is written over a shared block needs a new one (copy on write)."""
        n_full = 0
        for nth in range(1, 4):
            self.reset()
            log = self.volume.path_beside("log")
            running = subprocess.Popen(["strace", "-f", "-qq", "-o", log, "-e", "trace=ioctl,pwrite64,pwritev",
                                        f"--inject=pwrite64,pwritev:delay_enter=1000000:when={nth}", *self.command], **QUIET)
            while running.poll() is None and not self.is_cloned(log):
                time.sleep(0.01)
            with open(self.volume.path("fill"), "wb") as file:
                step, at = 64 << 20, 0
                while step >= 4096 and running.poll() is None:
                    try:
                        os.posix_fallocate(file.fileno(), at, step)
                        at += step
                    except OSError:
                        step //= 2
            code = running.wait(timeout=600)
            with self.subTest(nth=nth):
                self.assertEqual(self.found(), int(code == 0))
                self.assertEqual(self.left(), [])
            n_full += code != 0
            self.n_points += 1
        print(f"of {self.n_points} saves, {n_full} found the disk full")
        self.reset()

    @staticmethod
    def is_cloned(log):
        return os.path.exists(log) and read(log).count(b"FICLONERANGE") >= 2


class XfsBaseFaults(BaseFaults, unittest.TestCase):
    KIND = "xfs"


class BtrfsBaseFaults(BaseFaults, unittest.TestCase):
    KIND = "btrfs"
