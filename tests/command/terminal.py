# SPDX-License-Identifier: BSD-3-Clause
"""The command on a real terminal: colours, the progress bar, ^C."""

import json
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import time

from case import BERTH, Case


class Terminal(Case):
    SIZE = 1 << 25
    SLOW = ["--set", "io.threads=1", "--set", "io.chunk_nbytes=512"]  # some tenths of a second

    def start(self, *words, env=None):
        """In a terminal of its own. (pid, its other end)"""
        pid, master = os.forkpty()
        if pid == 0:
            try:
                os.chdir(self.folder)
                os.environ.pop("NO_COLOR", None)
                os.environ.update({"TERM": "xterm", **(env or {})})
                os.execv(BERTH, [BERTH, *words])
            finally:
                os._exit(77)
        return pid, master

    def read_until(self, master, pattern=None):
        """What the terminal gets until the pattern is there, or to the end."""
        seen, until = b"", time.monotonic() + 60
        while not (pattern and re.search(pattern, seen)):
            self.assertLess(time.monotonic(), until, seen)
            if select.select([master], [], [], 1)[0]:
                try:
                    got = os.read(master, 65536)
                except OSError:  # Linux: EIO when the other side has closed it
                    got = b""
                if not got:
                    self.assertIsNone(pattern, seen)
                    break
                seen += got
        return seen

    def hold_for_a_moment(self, pid):
        """Stops a save, once it writes, for so long that the bar is due."""
        until = time.monotonic() + 60
        while not any(name.startswith(".berth-") for name in self.entries()):
            self.assertLess(time.monotonic(), until, "no temporary is seen")
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.7)
        os.kill(pid, signal.SIGCONT)

    def on_terminal(self, *words, env=None, held=False):
        pid, master = self.start(*words, env=env)
        if held:
            self.hold_for_a_moment(pid)
        seen = self.read_until(master)
        os.close(master)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0, seen)
        return seen.decode().replace("\r\n", "\n")

    def big(self):
        header = json.dumps({"a": {"dtype": "U8", "shape": [self.SIZE],
                                   "data_offsets": [0, self.SIZE]}}).encode()
        with open(self.path("big.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + self.SIZE)
        self.berth("convert", "big.safetensors", "big.pt", "--set", "save.durability=none")

    def test_colours(self):
        plain = self.berth("ls", self.demo).out
        coloured = self.berth("ls", "--color=always", self.demo).out
        self.assertNotEqual(coloured, plain)
        self.assertEqual(self.on_terminal("ls", self.demo), coloured)
        self.assertEqual(self.on_terminal("ls", self.demo, env={"NO_COLOR": ""}), coloured)
        for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            self.assertEqual(self.on_terminal("ls", self.demo, env=env), plain)
            self.assertEqual(self.on_terminal("ls", "--color=always", self.demo, env=env), coloured)
        self.assertEqual(self.on_terminal("ls", "--color=never", self.demo), plain)

    def test_a_bar_that_is_cleared(self):
        self.big()
        seen = self.on_terminal("copy", "big.pt", "out.pt", *self.SLOW, held=True)
        self.assertRegex(seen, r"\rcopy \[#*\.+\] +\d+%  [\d.]+ MiB of 32\.0 MiB  [\d.]+ GiB/s  \d+ s left ")
        self.assertTrue(seen.endswith("\r\033[K"), seen[-200:])
        self.assertEqual(self.on_terminal("copy", "-q", "big.pt", "out.pt", *self.SLOW, held=True), "")

    def test_control_c(self):
        self.big()
        self.write("out.pt", b"old")
        before = self.entries()
        pid, master = self.start("copy", "big.pt", "out.pt", *self.SLOW)
        self.hold_for_a_moment(pid)
        self.read_until(master, rb"copy \[")
        os.write(master, b"\x03")
        rest = self.read_until(master)
        os.close(master)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 130)
        self.assertTrue(rest.endswith(b"\r\033[Kberth: out.pt: cancelled\r\n"), rest[-200:])
        self.assertEqual((self.entries(), self.read("out.pt")), (before, b"old"))

    def test_raw_bytes_do_not_go_there(self):
        pid, master = self.start("cat", self.demo, "model.head.weight")
        self.assertIn(b"raw bytes are not written to a terminal", self.read_until(master))
        os.close(master)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 2)

    def test_the_screen_of_a_session(self):
        """What tmux shows in the end: no rest of a bar, and ^C between two commands."""
        if not shutil.which("tmux"):
            self.assertNotEqual(os.environ.get("CI"), "true", "there is no tmux")
            self.skipTest("there is no tmux")
        self.big()
        self.write("slowly", b"import sys, time\nwhile part := sys.stdin.buffer.read(65536):\n"
                             b"    sys.stdout.buffer.write(part)\n    time.sleep(0.005)\n")
        tmux = ["tmux", "-L", os.path.basename(self.folder), "-f", "/dev/null"]
        os.mkdir(self.path("bin"))
        os.symlink(BERTH, self.path("bin/berth"))
        subprocess.run([*tmux, "new-session", "-d", "-x", "120", "-y", "20", "sh"], cwd=self.folder,
                       env=dict(os.environ, PATH=f"{self.path('bin')}:{os.environ['PATH']}"), check=True)
        self.addCleanup(subprocess.run, [*tmux, "kill-server"], stderr=subprocess.DEVNULL, check=False)

        def keys(*words):
            subprocess.run([*tmux, "send-keys", *words], check=True)

        def screen_with(pattern, *words):
            until = time.monotonic() + 60
            while True:
                seen = subprocess.run([*tmux, "capture-pane", "-p", *words], capture_output=True, check=True)
                if re.search(pattern, seen.stdout.decode(), re.MULTILINE):
                    return seen.stdout.decode()
                self.assertLess(time.monotonic(), until, seen.stdout.decode())
                time.sleep(0.05)

        line = "clear; berth copy big.pt - | python3 slowly | berth verify -; echo code $?"
        keys("PS1='> '; clear", "Enter")
        keys(line, "Enter")
        screen_with(r"^copy \[#+\.+\]")
        keys("C-c")
        screen_with(r"^>")
        keys(line, "Enter")
        screen_with(r"^copy \[#+\.+\]")
        seen = screen_with(r"^code 0$")
        self.assertIn("ok: 7 records, 1 storages, 32.0 MiB; 7 checksums match\ncode 0\n", seen)
        self.assertNotIn("[#", seen)
        self.assertIn("\033[32mok\033[39m: ", screen_with("ok", "-e"))
