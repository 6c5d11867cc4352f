# SPDX-License-Identifier: BSD-3-Clause
"""W12: with any base the file is that of a save without one, on file systems that share blocks, and that do not."""

import io
import os
import struct
import subprocess
import sys
import threading
import unittest
import zipfile

import berth
import safetensors.torch
import torch

import blocks_shared
from folder import Folder

# Until its stdin ends: each file is one of two, by the sum of a tensor that is not in the other.
LOAD_OFTEN = """
import select, sys, berth
seen, n = set(), 0
while n == 0 or not select.select([sys.stdin], [], [], 0)[0]:
    value = berth.load(sys.argv[1])
    seen.add(tuple(float(each.double().sum()) for each in value.values()))
    n += 1
    if n == 1:
        print("ready", flush=True)
assert len(seen) <= 2, seen
print(n)
"""
N, MIB = 8, 1 << 20
NOBODY = 0xffffffff  # in an ACL
BLOCKS = "save.storage_alignment"  # 4096: storages begin with blocks, whatever stands before them
OTHER_OFFSETS = "offsets that differ modulo the block"


def state(seed=0, names=N):
    torch.manual_seed(seed)
    return {f"layer.{i}": torch.randn(MIB // 4) for i in range(names)}


def changed():
    """What is saved: one of the tensors of state() is another."""
    value = state()
    value["layer.3"] = value["layer.3"] + 1
    return value


class Bases:
    """name -> (what makes the base at a path, storages that are shared, words of the reason or None)."""

    def __init__(self, volume):
        self.volume = volume

    @staticmethod
    def same(path):
        berth.save(state(), path)

    @staticmethod
    def other_alignment(path):
        with berth.config.patch(BLOCKS, 32768):
            berth.save(state(), path)

    @staticmethod
    def other_order(path):
        berth.save(dict(reversed(state().items())), path)

    @staticmethod
    def other_names(path):
        """Each storage has the number of the one before."""
        berth.save({"first": torch.zeros(MIB // 4), **state()}, path)

    @staticmethod
    def longer(path):
        value = state()
        value["layer.0"] = torch.cat([value["layer.0"], torch.ones(1)])
        berth.save(value, path)

    def cut(self, path):
        self.same(path)
        os.truncate(path, os.path.getsize(path) // 2)

    def one_collides(self, path):
        self.same(path)
        self.collide(path, 5)

    def all_collide(self, path):
        self.same(path)
        for i in range(N):
            self.collide(path, i)

    def collide(self, path, i):
        first = self.offset(path, i)
        for at in range(first + 4096, first + MIB - 5, 4096):
            blocks_shared.collide(path, at)

    def damaged(self, path):
        self.same(path)
        with open(path, "r+b") as file:
            file.seek(self.offset(path, 1) + 300_000)
            file.write(b"damage")

    @staticmethod
    def offset(path, i):
        with open(path, "rb") as file:
            return file.read().index(state()[f"layer.{i}"].numpy().tobytes())

    @staticmethod
    def without_sums(path):
        with berth.config.patch("save.compute_crc32", False):
            berth.save(state(), path)

    @staticmethod
    def tensors(path):
        safetensors.torch.save_file(state(), path)
        os.chmod(path, 0o644)  # the package may make it private

    @staticmethod
    def legacy(path):
        torch.save(state(), path, _use_new_zipfile_serialization=False)

    def compressed(self, path):
        self.same(path + ".stored")
        with zipfile.ZipFile(path + ".stored") as stored, \
                zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as to:
            for name in stored.namelist():
                to.writestr(name, stored.read(name))

    def stored(self, path):
        """By zipfile: its records have no padding, and no descriptors."""
        self.same(path + ".first")
        with zipfile.ZipFile(path + ".first") as first, zipfile.ZipFile(path, "w") as to:
            for name in first.namelist():
                to.writestr(name, first.read(name))

    def lying(self, path):
        """Its directory says of each storage what is true of another one."""
        self.same(path)
        with open(path, "r+b") as file:
            data = file.read()
            start = data.index(b"PK\1\2")
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                sums = [each.CRC.to_bytes(4, "little") for each in archive.infolist() if "/data/" in each.filename]
            table = bytearray(data[start:])
            ends = [table.index(each) for each in sums]
            for at, crc in zip(ends, sums[1:] + sums[:1]):
                table[at:at + 4] = crc
            file.seek(start)
            file.write(table)

    @staticmethod
    def empty(path):
        with open(path, "wb"):
            pass

    @staticmethod
    def folder(path):
        os.mkdir(path)

    @staticmethod
    def pipe(path):
        os.mkfifo(path)

    @staticmethod
    def none(path):
        """It does not exist."""

    def elsewhere(self, path):
        self.same(self.volume.path_beside("old.pt"))
        os.symlink(self.volume.path_beside("old.pt"), path)

    ALL = {"same": (7, None), "other_alignment": (7, None), "other_order": (7, None), "longer": (6, None),
           "cut": (0, "no zip archive, or no whole one"), "one_collides": (6, None),
           "all_collide": (0, "the bytes of the base are others"), "damaged": (None, None),
           "without_sums": (7, None), "tensors": (0, "no zip archive"),
           "legacy": (0, "no zip archive"), "compressed": (0, "same size"), "stored": (None, ""),
           "lying": (7, None), "other_names": (7, None), "empty": (0, "the base is empty"), "folder": (0, "no regular file"),
           "pipe": (0, "no regular file"), "none": (0, "does not exist"), "elsewhere": (0, "another file system")}


class BaseCases:
    """On one kind of file system."""

    KIND = ""

    @classmethod
    def setUpClass(cls):
        cls.volume = blocks_shared.Volume.of_class(cls.KIND, cls)

    def setUp(self):
        self.folder = self.volume.path(self.id().rpartition(".")[2])
        os.mkdir(self.folder)
        self.addCleanup(subprocess.run, ["rm", "-rf", self.folder], check=True)
        self.bases = Bases(self.volume)
        self.value = changed()

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def expected(self, *settings):
        with berth.config.patch({"save.base": "", **dict(settings)}):
            berth.save(self.value, self.path("new.pt"))
        found = self.read("new.pt")
        os.remove(self.path("new.pt"))
        return found

    def check_shared(self, shared, n, why):
        nbytes, reason = shared
        if n is not None:
            self.assertLessEqual(nbytes, n * MIB)
            self.assertGreaterEqual(nbytes, n * (MIB - 8192 * 2))
        if why is None and n:
            self.assertIsNone(reason)
        elif why:
            self.assertIn(why, reason)

    def test_any_base_gives_the_file_of_none(self):
        for settings in (("save.method", "buffered"),), (("save.method", "direct"), ("io.threads", 1)), (("debug", True),):
            with berth.config.patch({BLOCKS: 4096, **dict(settings)}):
                expected = self.expected()
                for name, (n, why) in Bases.ALL.items():
                    base = self.path(name)
                    getattr(self.bases, name)(base)
                    with self.subTest(base=name, settings=settings):
                        job = berth.save_async(self.value, self.path("new.pt"), base=base)
                        job.result()
                        self.assertEqual(self.read("new.pt"), expected)
                        self.check_shared(job.shared, n, why)
                    subprocess.run(["rm", "-rf", base, base + ".first", base + ".stored", self.path("new.pt")], check=True)

    def test_the_path_itself(self):
        """With the usual alignment: the names, and so the offsets, are the same."""
        expected = self.expected()
        for snapshot in (True, False):
            berth.save(state(), self.path("new.pt"))
            old = open(self.path("new.pt"), "rb")  # F3: who has the old file keeps it
            before = old.read()
            job = berth.save_async(self.value, self.path("new.pt"), snapshot=snapshot, base=self.path("new.pt"))
            job.result()
            self.check_shared(job.shared, 7, None)
            self.assertEqual(self.read("new.pt"), expected)
            old.seek(0)
            self.assertEqual(old.read(), before)
            old.close()
            berth.verify(self.path("new.pt"))

    def test_the_path_itself_while_others_load_it(self):
        """W12, F3, W7: another process, and a second save of the same path."""
        path, values = self.path("new.pt"), [state(), changed()]
        berth.save(values[0], path)
        reader = subprocess.Popen([sys.executable, "-c", LOAD_OFTEN, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        self.assertEqual(reader.stdout.readline(), "ready\n")
        n_shared = 0
        for i in range(8):
            jobs = [berth.save_async(values[(i + j) % 2], path, base=path) for j in range(2)]
            for job in jobs:
                job.result()
                n_shared += job.shared[0] >= 7 * (MIB - 16384)
        told, _ = reader.communicate("")
        self.assertEqual((reader.returncode, n_shared), (0, 16))
        self.assertGreater(int(told), 1)
        self.assertEqual(os.listdir(self.folder), ["new.pt"])

    def test_a_storage_that_changed_in_part(self):
        """Its pieces before and behind are shared."""
        self.value["layer.0"] = torch.randn(6 * MIB)
        berth.save(self.value, self.path("old.pt"))
        self.value["layer.0"][3 * MIB] += 1
        for settings in {}, {"debug": True, "save.method": "direct"}:
            with berth.config.patch({BLOCKS: 4096, **settings}):
                berth.save(self.value, self.path("old.pt"))
                self.value["layer.0"][3 * MIB] += 1
                expected = self.expected()
                job = berth.save_async(self.value, self.path("new.pt"), base=self.path("old.pt"))
                job.result()
                self.assertEqual(self.read("new.pt"), expected)
                self.assertEqual(job.shared, (N * MIB - MIB + 22 * MIB, None))

    def test_names_of_other_lengths_move_the_storages(self):
        berth.save(state(), self.path("a_longer_name.pt"))
        expected = self.expected()
        job = berth.save_async(self.value, self.path("new.pt"), base=self.path("a_longer_name.pt"))
        job.result()
        self.assertLess(job.shared[0], 2 * MIB)  # one lies well by chance
        self.assertEqual(self.read("new.pt"), expected)
        self.value = {"layer.1": self.value["layer.1"]}
        job = berth.save_async(self.value, self.path("new.pt"), base=self.path("a_longer_name.pt"))
        job.result()
        self.check_shared(job.shared, 0, OTHER_OFFSETS)
        with berth.config.patch(BLOCKS, 4096):
            berth.save(state(), self.path("a_longer_name.pt"))
            job = berth.save_async(self.value, self.path("new.pt"), base=self.path("a_longer_name.pt"))
        job.result()
        self.check_shared(job.shared, 1, None)

    def test_all_ways_of_a_save(self):
        """Bytes that are not in memory as they are written: swapped, read, copied; little memory; every kind of target."""
        self.bases.same(self.path("old.pt"))
        for settings in (("save.byteorder", "big"),), (("io.memory_nbytes", 1 << 20), ("io.threads", 1)), \
                (("io.memory_nbytes", 65536),), (("io.chunk_nbytes", 65536), ("io.threads", 4)), \
                (("save.durability", "none"), ("save.compute_crc32", True)), (("io.large_pages", "off"),):
            with self.subTest(settings=settings), berth.config.patch(dict(settings)):
                berth.save(state(), self.path("old.pt"))
                expected = self.expected()
                job = berth.save_async(self.value, self.path("new.pt"), snapshot=False, base=self.path("old.pt"))
                job.result()
                self.assertEqual(self.read("new.pt"), expected)
                self.assertTrue(job.shared[0] or "too little" in job.shared[1], job.shared)
        with self.subTest("records of PyTorch's pickler"):
            berth.save(state(), self.path("old.pt"), pickle_protocol=3)
            berth.save(self.value, self.path("new.pt"), pickle_protocol=3)
            expected = self.read("new.pt")
            with self.assertLogs("berth", "INFO") as log:
                berth.save(self.value, self.path("new.pt"), pickle_protocol=3, base=self.path("old.pt").encode())
            self.assertIn("shares", log.output[0])
            self.assertEqual(self.read("new.pt"), expected)

    def test_what_has_no_blocks_to_share_is_saved(self):
        self.bases.same(self.path("old.pt"))
        for settings, why in ((("save.compute_crc32", False), "save.compute_crc32=off"),
                              (("save.replace", "in_place"), "written in place")):
            with berth.config.patch(dict([settings])):
                expected = self.expected()
                job = berth.save_async(self.value, self.path("new.pt"), base=self.path("old.pt"))
                job.result()
                self.assertEqual(self.read("new.pt"), expected)
                self.check_shared(job.shared, 0, why)
        file = io.BytesIO()
        berth.save(self.value, file, base=self.path("old.pt"))
        self.assertTrue(torch.equal(berth.load(io.BytesIO(file.getvalue()))["layer.3"], self.value["layer.3"]))
        berth.save(self.value, self.path("a.safetensors"), base=self.path("old.pt"))
        berth.save(self.value, self.path("b.safetensors"))
        self.assertEqual(self.read("a.safetensors"), self.read("b.safetensors"))

    def test_the_option_names_a_base_and_an_empty_argument_none(self):
        self.bases.same(self.path("old.pt"))
        with berth.config.patch("save.base", self.path("old.pt")):
            for base, n in ((None, 7), ("", 0), (self.path("old.pt"), 7)):
                job = berth.save_async(self.value, self.path("new.pt"), base=base)
                job.result()
                self.check_shared(job.shared, n, None)

    def test_a_base_that_fewer_may_read(self):
        """X1: the new file has the rights that it would have."""
        self.bases.same(self.path("old.pt"))
        expected = self.expected()
        for mode, readers, new in (0o600, "all", 0o644), (0o600, "owner", 0o600), (0o644, "all", 0o644), (0o640, "group", 0o640):
            os.chmod(self.path("old.pt"), mode)
            with self.subTest(mode=oct(mode), readers=readers), berth.config.patch("save.readers", readers):
                job = berth.save_async(self.value, self.path("new.pt"), base=self.path("old.pt"))
                job.result()
                self.check_shared(job.shared, 7, None)
                self.assertEqual(self.read("new.pt"), expected)
                self.assertEqual(os.stat(self.path("new.pt")).st_mode & 0o777, new)
                os.remove(self.path("new.pt"))

    def test_the_acl_of_the_folder(self):
        """X1: closed and opened again, the new file has the ACL that it would have."""
        self.bases.same(self.path("old.pt"))
        os.chmod(self.path("old.pt"), 0o600)
        acl = struct.pack("<I" + "HHI" * 6, 2, 1, 7, NOBODY, 2, 4, 1, 4, 5, NOBODY, 8, 6, 1, 16, 7, NOBODY, 32, 0, NOBODY)
        os.setxattr(self.folder, "system.posix_acl_default", acl)
        made = []
        for base in "", self.path("old.pt"):
            job = berth.save_async(self.value, self.path("new.pt"), base=base)
            job.result()
            made.append((os.getxattr(self.path("new.pt"), "system.posix_acl_access"), os.stat(self.path("new.pt")).st_mode))
            os.remove(self.path("new.pt"))
        self.check_shared(job.shared, 7, None)
        self.assertEqual(made[0], made[1])

    @unittest.skipIf(os.geteuid(), "another user needs root")
    def test_a_file_of_another_user(self):
        """X1: who owns the new file may not read the base, of which nothing else than the caller's bytes is in it."""
        self.bases.same(self.path("old.pt"))
        os.chmod(self.path("old.pt"), 0o600)
        expected = self.expected()
        for owner in 65534, 0:
            berth.save({}, self.path("new.pt"))
            os.chown(self.path("new.pt"), owner, owner)
            job = berth.save_async(self.value, self.path("new.pt"), base=self.path("old.pt"))
            job.result()
            self.check_shared(job.shared, 7, None)
            self.assertEqual(self.read("new.pt"), expected)
            self.assertEqual(os.stat(self.path("new.pt")).st_uid, owner)

    @unittest.skipIf(os.geteuid(), "another user needs root")
    def test_a_base_that_may_not_be_read(self):
        self.bases.same(self.path("old.pt"))
        os.chmod(self.path("old.pt"), 0o600)
        os.chmod(self.folder, 0o777)
        expected = self.expected()
        os.seteuid(65534)
        try:
            job = berth.save_async(self.value, self.path("new.pt"), base=self.path("old.pt"))
            job.result()
        finally:
            os.seteuid(0)
        self.assertEqual(self.read("new.pt"), expected)
        self.check_shared(job.shared, 0, "may not be read")

    def test_a_base_that_changes_meanwhile(self):
        """W12: in place, cut and written again, as fast as can be, while ten saves use it."""
        base, stop = self.path("old.pt"), threading.Event()
        self.bases.same(base)
        whole, expected = self.read("old.pt"), self.expected()

        def change():
            n = 0
            while not stop.is_set():
                n += 1
                at = (n * 999_983) % (len(whole) - 65536)
                with open(base, "r+b") as file:
                    if n % 50 == 0:
                        file.truncate(at)
                        file.truncate(len(whole))
                    file.seek(at)
                    file.write(os.urandom(512) if n % 2 else whole[at:at + 65536])
                if n % 10 == 0:
                    with open(base, "r+b") as file:
                        file.write(whole)

        other = threading.Thread(target=change)
        other.start()
        try:
            n_shared = 0
            for _ in range(10):
                job = berth.save_async(self.value, self.path("new.pt"), base=base)
                job.result()
                n_shared += job.shared[0] > 0
                self.assertEqual(self.read("new.pt"), expected)
        finally:
            stop.set()
            other.join()

    def test_a_change_after_the_clone_changes_nothing(self):
        """The blocks are shared, not the file."""
        self.bases.same(self.path("old.pt"))
        expected = self.expected()
        berth.save(self.value, self.path("new.pt"), base=self.path("old.pt"))
        with open(self.path("old.pt"), "r+b") as file:
            file.write(os.urandom(os.path.getsize(self.path("old.pt"))))
        os.sync()
        self.assertEqual(self.read("new.pt"), expected)

    def test_what_is_shared_is_not_written(self):
        """By the device's own counter: at most 1.1 x what changed, and the headers."""
        with berth.config.patch(BLOCKS, 4096):
            self.bases.same(self.path("old.pt"))
            before, used = self.volume.written_nbytes(), self.volume.used_nbytes()
            job = berth.save_async(self.value, self.path("new.pt"), base=self.path("old.pt"))
            job.result()
            nbytes = self.volume.written_nbytes() - before
        self.check_shared(job.shared, 7, None)
        self.assertLess(nbytes, 1.1 * MIB + 2 * N * 8192 + 512 * 1024)
        self.assertLess(self.volume.used_nbytes() - used, 1.1 * MIB + 2 * N * 8192 + 512 * 1024)

    def test_a_disk_with_room_for_the_file(self):
        """W1: as without a base: what is written needs no more than was reserved."""
        self.bases.one_collides(self.path("old.pt"))
        expected = self.expected()
        self.volume.fill(len(expected) + MIB)
        self.addCleanup(os.remove, self.volume.path("fill"))
        for base in "", self.path("old.pt"):
            with self.subTest(base=base):
                berth.save(self.value, self.path("new.pt"), base=base)
                self.assertEqual(self.read("new.pt"), expected)
                os.remove(self.path("new.pt"))
                os.sync()

    def test_a_disk_with_room_for_what_changed(self):
        """W1: what is shared needs no room, not even meanwhile; a full disk is told before a byte is written."""
        self.bases.same(self.path("new.pt"))
        old = self.read("new.pt")
        self.volume.fill(3 * MIB)
        self.addCleanup(os.remove, self.volume.path("fill"))
        self.assertRaises(OSError, berth.save, self.value, self.path("new.pt"), base="")
        self.assertEqual(self.read("new.pt"), old)
        berth.save(self.value, self.path("new.pt"), base=self.path("new.pt"))
        self.assertTrue(torch.equal(berth.load(self.path("new.pt"))["layer.3"], self.value["layer.3"]))
        self.value["more"] = torch.randn(2 * MIB)
        before = self.read("new.pt")
        for save in berth.save, lambda *rest, **named: berth.save_async(*rest, **named).result():
            self.assertRaisesRegex(OSError, "missing", save, self.value, self.path("new.pt"), base=self.path("new.pt"))
        self.assertEqual((self.read("new.pt"), os.listdir(self.folder)), (before, ["new.pt"]))

    def test_a_cancelled_one_leaves_nothing(self):
        self.bases.same(self.path("old.pt"))
        before = set(os.listdir(self.folder))
        for _ in range(5):
            job = berth.save_async(self.value, self.path("new.pt"), base=self.path("old.pt"))
            if job.cancel():
                with self.assertRaises(berth.CancelledError):
                    job.result()
                self.assertEqual(set(os.listdir(self.folder)), before)
            else:
                job.result()
                os.remove(self.path("new.pt"))


class XfsBaseTest(BaseCases, unittest.TestCase):
    KIND = "xfs"


class BtrfsBaseTest(BaseCases, unittest.TestCase):
    KIND = "btrfs"


class OtherBaseTest(Folder):
    """Where blocks cannot be shared."""

    def test_an_ordinary_save_with_the_reason(self):
        berth.save(state(), self.path("old.pt"))
        berth.save(changed(), self.path("new.pt"))
        expected = self.read(self.path("new.pt"))
        with self.assertLogs("berth", "INFO") as log:
            berth.save(changed(), self.path("new.pt"), base=self.path("old.pt"))
        self.assertEqual(self.read(self.path("new.pt")), expected)
        self.assertIn("its base", log.output[0])

    def test_the_first_save_of_a_series(self):
        """base= the path itself, which does not exist yet."""
        berth.save(state(), self.path("new.pt"), base=self.path("new.pt"))
        berth.verify(self.path("new.pt"))
