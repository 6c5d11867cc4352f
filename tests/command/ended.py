# SPDX-License-Identifier: BSD-3-Clause
"""The command when its terminal closes, nobody reads its remarks, or a file may grow no more."""

import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import time

from case import BERTH, Case

OWNER = "user.berth.owner"
PR_SET_CHILD_SUBREAPER = 36
LIMIT = 512


def writer_in(folder):
    """The process that writes a temporary in it, or in a folder in it, once there is one."""
    for above, _, names in os.walk(folder):
        for name in names:
            if name.startswith(".berth-"):
                with contextlib.suppress(OSError, IndexError, ValueError):
                    return int(os.getxattr(os.path.join(above, name), OWNER).split()[4])
    return None


class HangUp(Case):
    """SIGHUP comes twice: from the shell and from the kernel (X14)."""

    def setUp(self):
        super().setUp()
        header = json.dumps({"a": {"dtype": "U8", "shape": [self.SIZE],
                                   "data_offsets": [0, self.SIZE]}}).encode()
        with open(self.path("big.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + self.SIZE)
        self.berth("convert", "big.safetensors", "big.pt", "--set", "save.durability=none")
        self.before = self.entries()

    SIZE = 1 << 26
    SAVES = [["convert", "big.safetensors", "out.pt"], ["copy", "big.pt", "out.pt"],
             ["bench", "save", "--size", "64MiB"]]
    # So that it takes some seconds.
    SLOW = ["--set", "io.threads=1", "--set", "io.chunk_nbytes=512"]

    def wait_for_writer(self, ended=lambda: False):
        until = time.monotonic() + 20
        while time.monotonic() < until and not ended():
            writer = writer_in(self.folder)
            if writer:
                return writer
            time.sleep(0.0005)
        return None

    def ended_well(self, status, what):
        self.assertEqual(os.waitstatus_to_exitcode(status), 129, what)
        self.assertEqual(self.entries(), self.before, what)

    def test_two_signals_at_once(self):
        for words in self.SAVES:
            for _ in range(3):
                job = subprocess.Popen([BERTH, *words, *self.SLOW], cwd=self.folder,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                self.assertTrue(self.wait_for_writer(lambda: job.poll() is not None))
                for _ in range(3):
                    job.send_signal(signal.SIGHUP)
                self.assertEqual(job.wait(60), 129, words)
                self.assertEqual(self.entries(), self.before, words)

    def test_one_at_every_write_and_while_it_cleans_up(self):
        """However late the second one comes: until it has cleaned up."""
        if not shutil.which("strace"):
            self.assertNotEqual(os.environ.get("CI"), "true", "there is no strace")
            self.skipTest("there is no strace")
        calls = "pwrite64,unlinkat"
        for words in self.SAVES:
            for second in (["--inject=pwrite64:signal=SIGHUP"],
                           ["--inject=pwrite64:signal=SIGHUP:when=1",
                            "--inject=unlinkat:signal=SIGHUP"]):
                done = subprocess.run(
                    ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", *second,
                     BERTH, *words, *self.SLOW], cwd=self.folder, stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE, check=False, timeout=60)
                self.assertEqual(done.returncode, 129, (words, second, done.stderr))
                self.assertEqual(self.entries(), self.before, (words, second))

    def test_a_terminal_that_closes(self):
        for words in self.SAVES:
            pid, master = os.forkpty()
            if pid == 0:
                try:
                    os.chdir(self.folder)
                    os.execv(BERTH, [BERTH, *words, *self.SLOW])
                finally:
                    os._exit(77)
            try:
                self.assertTrue(self.wait_for_writer(), words)
            finally:
                os.close(master)
                status = os.waitpid(pid, 0)[1]
            self.ended_well(status, words)

    def test_a_terminal_that_closes_under_a_shell(self):
        """The shell tells its jobs, and then ends, of which the kernel tells them."""
        shell = shutil.which("bash")
        if not shell:
            self.skipTest("there is no bash")
        libc = ctypes.CDLL(None, use_errno=True)
        # So that the shell's children are this process's when it is gone.
        self.assertEqual(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0)
        self.addCleanup(libc.prctl, PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for words in self.SAVES:
            pid, master = os.forkpty()
            if pid == 0:
                try:
                    os.chdir(self.folder)
                    os.environ.update(HISTFILE="", PS1="", TERM="dumb")
                    os.execv(shell, [shell, "--norc", "--noprofile", "-i"])
                finally:
                    os._exit(77)
            try:
                os.write(master, f"{BERTH} {' '.join([*words, *self.SLOW])}\n".encode())
                writer = self.wait_for_writer()
            finally:
                os.close(master)
                os.waitpid(pid, 0)
            self.assertTrue(writer, words)
            self.ended_well(os.waitpid(writer, 0)[1], words)


class Remarks(Case):
    """X14: to a pipe that nobody reads."""

    def test_a_remark_that_nobody_reads_ends_no_save(self):
        if os.geteuid():
            self.skipTest("other users need root")
        os.chmod(self.folder, 0o777)
        shutil.copy(BERTH, self.path("berth"))
        os.chmod(self.path("berth"), 0o755)
        self.berth("convert", "--tensors-only", self.demo, "plain.safetensors")
        self.berth("convert", "plain.safetensors", "lone.pt")
        for name in ("demo.pt", "lone.pt", "plain.safetensors"):
            os.chmod(self.path(name), 0o644)
        for words, target in ((["copy", "demo.pt"], "out.pt"),
                              (["convert", "plain.safetensors"], "converted.pt"),
                              (["convert", "lone.pt"], "out.safetensors")):
            self.berth(*words, f"expected-{target}")
            expected = self.read(f"expected-{target}")
            for was in (signal.SIG_DFL, signal.SIG_IGN):
                for reader in (True, False):
                    self.write(target, b"old")
                    os.chown(self.path(target), 4101, 4101)
                    os.chmod(self.path(target), 0o666)
                    before = self.entries()
                    ours, theirs = os.pipe()
                    if not reader:
                        os.close(ours)
                    done = subprocess.run(
                        [self.path("berth"), *words, target], cwd=self.folder, check=False,
                        stdout=subprocess.DEVNULL, stderr=theirs, user=4102, group=4102,
                        extra_groups=[], restore_signals=False, timeout=60,
                        preexec_fn=lambda was=was: signal.signal(signal.SIGPIPE, was))
                    os.close(theirs)
                    if reader:
                        with os.fdopen(ours, "rb") as said:
                            self.assertIn(b"its owner becomes user 4102", said.read())
                    what = (words, was, "read" if reader else "not read")
                    self.assertEqual(done.returncode, 0, what)
                    self.assertEqual(self.entries(), before, what)
                    if target.endswith(".safetensors"):
                        self.assertEqual(self.read(target), expected, what)
                    else:  # its records are named after it
                        self.assertIn("ok: ", self.berth("verify", target).out, what)


class Limited(Case):
    def test_output_beyond_a_limit_of_file_sizes_is_told(self):
        """X14: and no signal kills it, whatever its parent ignores."""
        commands = [["ls", "demo.pt", "--json"], ["ls", "demo.pt"], ["ls", "--records", "demo.pt"],
                    ["cat", "demo.pt", "model.head.weight"], ["info", "demo.pt", "--json"],
                    ["cat", "demo.pt", "model.layers.0.bias"], ["config"], ["config", "--json"],
                    ["verify", "demo.pt", "--json"], ["--help"]]
        n_limited = 0
        for words in commands:
            whole = self.berth(*words).stdout
            for was in (signal.SIG_DFL, signal.SIG_IGN):
                def limit(was=was):
                    signal.signal(signal.SIGXFSZ, was)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, resource.RLIM_INFINITY))

                with open(self.path("out"), "wb") as out:
                    done = subprocess.run([BERTH, *words], stdout=out, stderr=subprocess.PIPE,
                                          cwd=self.folder, check=False, restore_signals=False,
                                          preexec_fn=limit, timeout=60)
                said, written = done.stderr.decode(), self.read("out")
                self.assertEqual(written, whole[:len(written)], words)
                if len(whole) <= LIMIT:
                    self.assertEqual((done.returncode, written), (0, whole), words)
                    continue
                n_limited += 1
                self.assertEqual((done.returncode, said),
                                 (2, "berth: standard output: File too large\n"), (words, was))
        self.assertGreaterEqual(n_limited, 10)
