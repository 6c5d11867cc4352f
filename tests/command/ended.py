# SPDX-License-Identifier: BSD-3-Clause
"""The command when a signal ends it, its terminal or its output closes, or a file may not grow."""

import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time

from case import BERTH, Case, old

PR_SET_CHILD_SUBREAPER = 36
LIMIT = 512


def processes_in(folder):
    """Those of the command whose present folder it is."""
    for number in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.path.samefile(f"/proc/{number}/exe", BERTH) and \
                    os.readlink(f"/proc/{number}/cwd") == folder:
                yield int(number)


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

    SIZE = 1 << 25
    SAVES = [["convert", "big.safetensors", "out.pt"], ["copy", "big.pt", "out.pt"],
             ["bench", "save", "--size", "32MiB"]]
    # So that it takes some seconds.
    SLOW = ["--set", "io.threads=1", "--set", "io.chunk_nbytes=512"]

    def wait_for_temporary(self, pid):
        """In the folder, or in one in it; or until the process has ended."""
        until = time.monotonic() + 60
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if any(name.startswith(".berth-") for _, _, names in os.walk(self.folder)
                   for name in names):
                return
            self.assertLess(time.monotonic(), until, "no temporary is seen")
            time.sleep(0.0005)

    def check(self, words, save_and_hang_up):
        """save_and_hang_up() returns how the save ended: if it was too quick, that is nothing."""
        for _ in range(10):
            code = os.waitstatus_to_exitcode(save_and_hang_up())
            if code:
                break
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.path("out.pt"))
        self.assertEqual(code, 129, words)
        self.assertEqual(self.entries(), self.before, words)

    def test_two_signals_at_once(self):
        def save(words):
            pid = os.fork()
            if pid == 0:
                self.become(BERTH, *words, *self.SLOW)
            self.wait_for_temporary(pid)
            for _ in range(3):
                os.kill(pid, signal.SIGHUP)
            return os.waitpid(pid, 0)[1]

        for words in self.SAVES:
            for _ in range(3):
                self.check(words, lambda words=words: save(words))

    def become(self, *words):
        try:
            os.chdir(self.folder)
            null = os.open("/dev/null", os.O_RDWR)
            for fd in range(3):
                if not os.isatty(fd):
                    os.dup2(null, fd)
            os.execv(words[0], words)
        finally:
            os._exit(77)

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
                    stderr=subprocess.PIPE, check=False, timeout=600)
                self.assertEqual(done.returncode, 129, (words, second, done.stderr))
                self.assertEqual(self.entries(), self.before, (words, second))

    def test_a_terminal_that_closes(self):
        def save(words):
            pid, master = os.forkpty()
            if pid == 0:
                self.become(BERTH, *words, *self.SLOW)
            try:
                self.wait_for_temporary(pid)
            finally:
                os.close(master)
                status = os.waitpid(pid, 0)[1]
            return status

        for words in self.SAVES:
            self.check(words, lambda words=words: save(words))

    def test_a_terminal_that_closes_under_a_shell(self):
        """The shell tells its jobs, and then ends, of which the kernel tells them."""
        shell = shutil.which("bash")
        if not shell:
            self.skipTest("there is no bash")
        libc = ctypes.CDLL(None, use_errno=True)
        # So that the shell's children are this process's when it is gone.
        self.assertEqual(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0)
        self.addCleanup(libc.prctl, PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

        def save(words):
            pid, master = os.forkpty()
            if pid == 0:
                os.environ.update(HISTFILE="", PS1="", TERM="dumb")
                self.become(shell, "--norc", "--noprofile", "-i")
            saves = []
            try:
                os.write(master, f"{BERTH} {' '.join([*words, *self.SLOW])}; exit\n".encode())
                self.wait_for_temporary(pid)
                saves = list(processes_in(self.folder))
            finally:
                os.close(master)
                os.waitpid(pid, 0)
            if not saves:
                return 0  # it has ended already
            try:
                return os.waitpid(saves[0], 0)[1]
            except ChildProcessError:  # the shell has asked for it
                return 0 if os.path.exists(self.path("out.pt")) else 129 << 8

        for words in self.SAVES:
            self.check(words, lambda words=words: save(words))


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
                        extra_groups=[], restore_signals=False, timeout=600,
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
                                          preexec_fn=limit, timeout=600)
                said, written = done.stderr.decode(), self.read("out")
                self.assertEqual(written, whole[:len(written)], words)
                if len(whole) <= LIMIT:
                    self.assertEqual((done.returncode, written), (0, whole), words)
                    continue
                n_limited += 1
                self.assertEqual((done.returncode, said),
                                 (2, "berth: standard output: File too large\n"), (words, was))
        self.assertGreaterEqual(n_limited, 10)


class Signals(Case):
    """SIGHUP gives 129, SIGINT 130, SIGTERM 143; what is there stays, nothing else is left (X14)."""

    SIZE = 1 << 27
    SLOWLY = ["--set", "io.threads=1", "--set", "io.chunk_nbytes=512"]

    def big_safetensors(self):
        header = json.dumps({"a": {"dtype": "U8", "shape": [self.SIZE],
                                   "data_offsets": [0, self.SIZE]}}).encode()
        with open(self.path("big.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + self.SIZE)

    def catches(self, pid):
        """Whether the process has readied itself for signals."""
        try:
            with open("/proc/%d/status" % pid) as status:
                mask = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
        except (OSError, StopIteration):
            return False
        return bool(mask >> (signal.SIGINT - 1) & 1)

    def interrupt(self, *words, writes=True):
        """Sends each signal, several times, as soon as the work has begun."""
        before = self.entries()
        for number, code in ((signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143)):
            job = subprocess.Popen([BERTH, *words], cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline and job.poll() is None:
                if self.catches(job.pid) and (not writes or len(self.entries()) > len(before)):
                    break
                time.sleep(0.0005)
            for _ in range(20):  # who is impatient
                job.send_signal(number)
                time.sleep(0.005)
            out, err = job.communicate(timeout=600)
            self.assertEqual((job.returncode, out), (code, b""), err)
            self.assertRegex(err, rb"\Aberth: .*: cancelled\n\Z")
            self.assertEqual(self.entries(), before)
            if writes:
                self.assertEqual(self.read(words[2]), b"old")

    def test_convert_from_safetensors(self):
        self.big_safetensors()
        self.write("out.pt", b"old")
        self.interrupt("convert", "big.safetensors", "out.pt", *self.SLOWLY)

    def test_everything_that_begins_with_a_checkpoint(self):
        self.big_safetensors()
        self.berth("convert", "big.safetensors", "big.pt", "--set", "save.durability=none")
        os.unlink(self.path("big.safetensors"))
        self.write("out.pt", b"old")
        self.write("out.safetensors", b"old")
        self.interrupt("copy", "big.pt", "out.pt", *self.SLOWLY)
        other = "big" if sys.byteorder == "little" else "little"
        self.interrupt("copy", "big.pt", "out.pt", "--set", "save.byteorder=" + other, *self.SLOWLY)
        self.interrupt("convert", "big.pt", "out.pt", *self.SLOWLY)
        self.interrupt("convert", "big.pt", "out.safetensors")
        self.interrupt("verify", "big.pt", "--set", "load.method=read", *self.SLOWLY, writes=False)

    def test_who_writes_no_file_just_dies(self):
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            job = subprocess.Popen([BERTH, "cat", self.demo, "model.head.weight"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            job.stdout.read(1)  # more than a pipe holds follows
            job.send_signal(number)
            self.assertEqual((job.wait(60), job.stderr.read()), (-number, b""))
            job.stdout.close()
            job.stderr.close()


    def test_what_is_ignored_stays_so(self):
        """As under nohup."""
        self.big_safetensors()
        job = subprocess.Popen(["nohup", BERTH, "convert", "big.safetensors", "out.pt"],
                               cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               stdin=subprocess.DEVNULL)
        time.sleep(0.1)
        job.send_signal(signal.SIGHUP)
        self.assertEqual(job.wait(120), 0)
        job.stdout.close()
        job.stderr.close()


class Closed(Case):
    """Started without descriptors 0, 1 or 2: files are whole, what cannot be told is trouble (X10)."""

    def without(self, closed, *words):
        script = "exec \"$@\" " + " ".join("%d>&-" % fd for fd in closed)
        return ["sh", "-c", script, "sh", BERTH, *words]

    def start(self, closed, *words):
        return subprocess.run(self.without(closed, *words), cwd=self.folder, capture_output=True,
                              timeout=600)

    def test_no_file_gets_a_low_descriptor(self):
        self.write("header", json.dumps({"a": {"dtype": "U8", "shape": [1 << 27],
                                               "data_offsets": [0, 1 << 27]}}).encode())
        with open(self.path("big.safetensors"), "wb") as file:
            header = self.read("header")
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + (1 << 27))
        self.berth("convert", "big.safetensors", "big.pt", "--set", "save.durability=none")
        for words in (["big.safetensors", "out.pt"], ["big.pt", "out.safetensors"]):
            job = subprocess.Popen(self.without([0, 1, 2], "convert", *words), cwd=self.folder)
            seen = set()
            while job.poll() is None:
                for fd in range(3):
                    try:
                        seen.add(os.readlink("/proc/%d/fd/%d" % (job.pid, fd)))
                    except OSError:
                        pass
            self.assertEqual(job.returncode, 0)
            # The shell that becomes the command has its own for a moment.
            self.assertEqual([name for name in seen if name.startswith(self.folder)], [])

    def test_in_all_ways(self):
        whole = {}
        for bits in range(8):
            closed = [fd for fd in range(3) if bits >> fd & 1]
            for words in (["convert", self.demo, "new.pt", "--stats"],
                          ["convert", self.demo, "new.safetensors", "--tensors-only"]):
                done = self.start(closed, *words)
                self.assertEqual(done.returncode, 0, (closed, done))
                written = self.read(words[2])
                self.assertEqual(written, whole.setdefault(words[2], written))
            self.berth("verify", "new.pt")
            done = self.start(closed, "verify", "new.pt")
            self.assertEqual(done.returncode, 2 if 1 in closed else 0, (closed, done))
