# SPDX-License-Identifier: BSD-3-Clause
"""File systems whose files can share blocks, on loop devices; and storages that are alike, and are not."""

import os
import shutil
import subprocess
import tempfile
import time
import unittest

KINDS = {"xfs": (["mkfs.xfs", "-q", "-f"], 320 << 20), "btrfs": (["mkfs.btrfs", "-q", "-f"], 320 << 20),
         "ext4": (["mkfs.ext4", "-q", "-F"], 160 << 20)}
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
# XORed over any five bytes it leaves the CRC-32 of all as it was: the polynomial, whose multiples have the CRC 0.
SAME_CRC = (0xEDB88320 << 1 | 1).to_bytes(5, "little")


class Refused(Exception):
    """This machine has no such file system, or does not let it be mounted."""


class Volume:
    """A file system of this kind on a loop device, until close(). Its image is in memory where that can be."""

    def __init__(self, kind, nbytes=0):
        words, least = KINDS[kind]
        self.folder = tempfile.mkdtemp(prefix="berth-volume-",
                                       dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        os.chmod(self.folder, 0o755)
        self.image, self.mount = self.path_beside("image"), self.path_beside("mount")
        os.mkdir(self.mount)
        self.device = None
        try:
            with open(self.image, "wb") as file:
                file.truncate(nbytes or least)
            subprocess.run([*words, self.image], check=True, **QUIET)
            self.insert()
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            raise Refused(f"{kind} cannot be mounted on a loop device here: {error}") from error

    @classmethod
    def of_class(cls, kind, tests):
        """For setUpClass: closed behind the last of the tests; they are skipped where there is no such file system."""
        try:
            volume = cls(kind)
        except Refused as error:
            raise unittest.SkipTest(str(error)) from None
        tests.addClassCleanup(volume.close)
        return volume

    def insert(self):
        self.device = subprocess.run(["losetup", "--find", "--show", self.image], check=True, text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()
        subprocess.run(["mount", self.device, self.mount], check=True, **QUIET)
        os.chmod(self.mount, 0o777)

    def eject(self):
        if self.device:
            if subprocess.run(["umount", self.mount], check=False, **QUIET).returncode:
                subprocess.run(["umount", "-l", self.mount], check=False, **QUIET)
            subprocess.run(["losetup", "--detach", self.device], check=False, **QUIET)
            for _ in range(500):  # the device is given up when nobody has it open any more
                if not os.path.exists(f"/sys/block/{os.path.basename(self.device)}/loop/backing_file"):
                    break
                time.sleep(0.02)
        self.device = None

    def replace(self, image):
        """While it is ejected. A file of its own: what the last device had of the old one is not in the way."""
        subprocess.run(["cp", "--sparse=always", image, self.path_beside("next")], check=True)
        os.replace(self.path_beside("next"), self.image)

    def close(self):
        self.eject()
        shutil.rmtree(self.folder, ignore_errors=True)

    def path_beside(self, name):
        return os.path.join(self.folder, name)

    def path(self, name):
        return os.path.join(self.mount, name)

    def written_nbytes(self):
        """That have reached the device, by its own counter."""
        subprocess.run(["sync", "-f", self.mount], check=True, **QUIET)
        with open(f"/sys/block/{os.path.basename(self.device)}/stat", encoding="ascii") as file:
            return int(file.read().split()[6]) * 512

    def used_nbytes(self):
        subprocess.run(["sync", "-f", self.mount], check=True, **QUIET)
        status = os.statvfs(self.mount)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    def fill(self, rest):
        """Makes a file that leaves the room for files of that many bytes, and little more."""
        with open(self.path("fill"), "wb") as fill, open(self.path("rest"), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, rest)
            at, step = 0, 64 << 20
            while step >= 65536:
                try:
                    os.posix_fallocate(fill.fileno(), at, step)
                    at += step
                except OSError:
                    step //= 2
        os.remove(self.path("rest"))
        subprocess.run(["sync", "-f", self.mount], check=True, **QUIET)


def collide(path, offset):
    """Other bytes there, with the same CRC-32 of whatever they belong to."""
    with open(path, "r+b") as file:
        file.seek(offset)
        old = file.read(len(SAME_CRC))
        file.seek(offset)
        file.write(bytes(a ^ b for a, b in zip(old, SAME_CRC)))
