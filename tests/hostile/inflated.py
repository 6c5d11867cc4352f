# SPDX-License-Identifier: BSD-3-Clause
"""Compressed files that unfold to a thousand times their size (Z12): opened at once, and inflated only
within bounds."""

import os
import resource
import struct
import subprocess
import zlib

from case import BERTH, HANG_SECONDS, Case
from pickles import PROTO, tensor, text

LONG = os.environ.get("BERTH_LONG") == "1"
BLOCK_NBYTES = 1 << 24
MAX_OPEN_SECONDS = 0.050
MAX_OPEN_NBYTES = 16 << 20
MAX_VERIFY_NBYTES = 16 << 20


# ---- zeros, deflated without deflating them all ----


def deflated_zeros(n_blocks):
    """Raw deflate of n_blocks x 16 MiB of zeros."""
    writer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = writer.compress(bytes(BLOCK_NBYTES)) + writer.flush(zlib.Z_FULL_FLUSH)
    return block * n_blocks + b"\x03\x00"


def times(matrix, vector):
    result, row = 0, 0
    while vector:
        if vector & 1:
            result ^= matrix[row]
        vector >>= 1
        row += 1
    return result


def crc32_of_zeros(nbytes):
    """A zero byte is a linear step of the register: squared again and again."""
    step = [(1 << i >> 8) ^ zlib.crc32(bytes([1 << i])) ^ zlib.crc32(b"\0") if i < 8 else 1 << i - 8
            for i in range(32)]
    register = 0xffffffff
    while nbytes:
        if nbytes & 1:
            register = times(step, register)
        step = [times(step, row) for row in step]
        nbytes >>= 1
    return register ^ 0xffffffff


# ---- a checkpoint ----


def zipped(records):
    """records: (name, method, compressed, nbytes, crc32)."""
    body, central = b"", b""
    for name, method, data, nbytes, crc32 in records:
        name = ("m/" + name).encode()
        large = struct.pack("<HHQQ", 1, 16, nbytes, len(data))
        sizes = struct.pack("<III", crc32, 0xffffffff, 0xffffffff)
        central += (b"PK\1\2" + struct.pack("<HHHHHH", 45, 45, 0, method, 0, 33) + sizes +
                    struct.pack("<HHHHHII", len(name), len(large), 0, 0, 0, 0, len(body)) + name + large)
        body += (b"PK\3\4" + struct.pack("<HHHHH", 45, 0, method, 0, 33) + sizes +
                 struct.pack("<HH", len(name), len(large)) + name + large + data)
    return body + central + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, len(records), len(records), len(central),
                                                   len(body), 0)


def stored(name, data):
    return (name, 0, data, len(data), zlib.crc32(data))


def unfolding(n_blocks, data=None, crc32=None):
    """A tensor "w" of n_blocks x 16 MiB; maybe with other deflated bytes, or another sum."""
    nbytes = n_blocks * BLOCK_NBYTES
    numel = b"\x8a\x05" + struct.pack("<Q", nbytes // 4)[:5]
    pickle = PROTO + b"}" + text("w") + tensor(size=numel).replace(b"K\x01tQ", numel + b"tQ") + b"s."
    return zipped([stored("data.pkl", pickle), stored("byteorder", b"little"),
                   ("data/0", 8, data or deflated_zeros(n_blocks), nbytes,
                    crc32_of_zeros(nbytes) if crc32 is None else crc32),
                   stored("version", b"3\n")])


class Inflated(Case):
    def limited(self, max_nbytes, *words):
        """Runs it with so much memory of its own, all private writable pages; the processor's time that it took."""
        def limit():
            resource.setrlimit(resource.RLIMIT_DATA, (max_nbytes, max_nbytes))

        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = self.run_plainly(*words, preexec_fn=limit)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def run_plainly(self, *words, **options):
        return subprocess.run([BERTH, *words], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=HANG_SECONDS, text=True, check=False, **options)

    def test_the_sum_of_zeros(self):
        for nbytes in (0, 1, 7, 1000, 65537):
            self.assertEqual(crc32_of_zeros(nbytes), zlib.crc32(bytes(nbytes)), nbytes)

    def test_10_MiB_that_unfold_to_10_GiB(self):
        path = self.write("huge.pt", unfolding(640))
        self.assertLess(os.path.getsize(path), 11 << 20)
        for words in (("ls",), ("info",), ("ls", "--json"), ("ls", "-r")):
            seconds = []
            for _ in range(12):
                done, took = self.limited(MAX_OPEN_NBYTES, *words, path)
                self.assertEqual((done.returncode, done.stderr), (0, ""), words)
                seconds.append(took)
                if took < MAX_OPEN_SECONDS:
                    break
            self.assertLess(min(seconds), MAX_OPEN_SECONDS, words)
        self.assertIn("10737418240", self.run_plainly("ls", "-b", path).stdout)
        asked = self.run_plainly("cat", path, "w", "--set", "io.memory_nbytes=1GiB")
        self.assertEqual(asked.returncode, 2)
        self.assertIn("io.memory_nbytes=1073741824 is too small to inflate its 10737418240 bytes", asked.stderr)
        refused = self.run_plainly("cat", path, "w", "--set", "load.inflate=off")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("load.inflate=on inflates it", refused.stderr)

    def test_verify_streams(self):
        path = self.write("large.pt", unfolding(640 if LONG else 16))
        done, _ = self.limited(MAX_VERIFY_NBYTES, "verify", path, "--set", "io.threads=1")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(done.stdout.startswith("ok: "), done.stdout)

    def test_a_tensor_takes_its_own_memory_and_no_more(self):
        path = self.write("large.pt", unfolding(4))
        done, _ = self.limited((64 + 48) << 20, "convert", path, "mended.pt", "--set", "io.threads=1")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(self.run_plainly("verify", "mended.pt").stdout.startswith("ok: "))

    def test_what_does_not_unfold_as_told(self):
        """Longer, shorter, cut off, of other bytes: each command that reads it refuses it with a sentence."""
        whole = deflated_zeros(1)
        writer = zlib.compressobj(1, zlib.DEFLATED, -15)
        fewer = writer.compress(bytes(BLOCK_NBYTES - 1)) + writer.flush()
        lies = {"longer": unfolding(1, deflated_zeros(2)), "shorter": unfolding(1, fewer),
                "cut off": unfolding(1, whole[:-2]), "no deflate": unfolding(1, b"\x07" + whole),
                "more behind": unfolding(1, whole + whole), "another sum": unfolding(1, crc32=1)}
        for name, content in lies.items():
            path = self.write("broken.pt", content)
            self.assertEqual(self.run_plainly("ls", path).returncode, 0, name)
            for words in (("verify", path), ("diff", path, path), ("convert", path, "out.pt"),
                          ("copy", path, "out.pt")):
                done = self.run_plainly(*words)
                self.assertEqual(done.returncode, 1, (words, name, done.stderr))
                self.assertEqual((done.stderr + done.stdout).count("data/0 at byte"), 1, (words, done))
                self.assertNotIn('"w": "w"', done.stderr)
            self.assertFalse(os.path.exists(os.path.join(self.folder, "out.pt")))
        path = self.write("broken.pt", unfolding(2, whole))
        self.assertIn("nothing is deflated more than 1032 to 1", self.run_plainly("ls", path).stderr)
