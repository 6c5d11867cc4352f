# SPDX-License-Identifier: BSD-3-Clause
"""W1 seen by who reads: every read of a command's source fails, one after the other.

Whatever is read then, the error names the file, the record where it is one, the byte, and the
reason; what was to be replaced is as it was, and nothing is left behind.
"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

from commands import BERTH, LONG, QUIET, berth, read

SETTINGS = ["--set", "load.mmap=off", "--set", "io.threads=1", "--set", "load.head_nbytes=65536",
            "--set", "io.chunk_nbytes=65536"]
COMMANDS = [
    ["copy", "SOURCE", "TARGET", "--set", "save.storage_alignment=512"],
    ["convert", "SOURCE", "TARGET"],
    ["convert", "--tensors-only", "SOURCE", "TARGET.safetensors"],
    ["cat", "SOURCE", "model.head.weight"],
    ["diff", "SOURCE", "SAME"],
    ["verify", "SOURCE"],
    ["verify", "--set", "debug=on", "SOURCE"],
]
# A read of the records (a storage's names a tensor), of what lies before and behind them, or of the
# file's kind.
TOLD = (r"{}: (?:(?:(?:\"[^\"]+\": )?[\w./]+ )?at byte \d+: )?"
        r"\d+ bytes not read: Input/output error"
        r"(?:; .* is unchanged: try again, or use another copy of the file)?\n")


def strace(sources, log):
    """Sees reads of the sources alone: the loader of programs reads, too."""
    return ["strace", "-f", "-qq", "-o", log, "-e", "trace=pread64",
            *(word for source in sources for word in ("-P", source))]


def count_reads(sources, command, log):
    subprocess.run([*strace(sources, log), *command], check=True, **QUIET)
    return len(read(log).splitlines())


def run_failing(sources, command, nth, stdout=subprocess.DEVNULL):
    return subprocess.run([*strace(sources, "/dev/null"),
                           f"--inject=pread64:error=EIO:when={nth}", *command],
                          stdin=subprocess.DEVNULL, stdout=stdout,
                          stderr=subprocess.PIPE, timeout=600, check=False)


@unittest.skipUnless(shutil.which("strace") or os.environ.get("CI") == "true", "no strace")
class ReadingTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="berth-reading-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.places = {name: self.path(name.lower() + ".pt")
                       for name in ("SOURCE", "SAME", "TARGET")}
        self.sources = [self.places["SOURCE"], self.places["SAME"]]
        self.places["TARGET.safetensors"] = self.path("target.safetensors")
        berth("demo", self.places["SOURCE"])
        shutil.copy(self.places["SOURCE"], self.places["SAME"])

    def path(self, name):
        return os.path.join(self.folder, name)

    def reset(self):
        for name in ("TARGET", "TARGET.safetensors"):
            with open(self.places[name], "wb") as file:
                file.write(b"as it was")

    def check_failure(self, command, nth, before):
        done = run_failing(self.sources, command, nth)
        told = done.stderr.decode()
        source = "(?:" + "|".join(re.escape(place) for place in self.sources) + ")"
        targets = "(?:(?:" + "|".join(re.escape(place) for place in self.places.values()) + "): )?"
        if done.returncode == 0:
            return False  # it did not matter: another way was found
        self.assertEqual(done.returncode, 2, told)
        self.assertRegex(told, re.compile("^berth: " + targets + TOLD.format(source) + "$", re.S))
        for name in ("TARGET", "TARGET.safetensors"):
            self.assertEqual(read(self.places[name]), b"as it was")
        self.assertEqual(sorted(os.listdir(self.folder)), before)
        return True

    def test_every_read_that_fails(self):
        n_points = n_told = 0
        for words in COMMANDS:
            command = [BERTH, *(self.places.get(word, word) for word in words), *SETTINGS]
            self.reset()
            before = sorted(os.listdir(self.folder))
            n_reads = count_reads(self.sources, command, self.path("log"))
            os.remove(self.path("log"))
            step = 1 if LONG else max(1, n_reads // 12)
            for nth in range(n_reads, 0, -step):
                with self.subTest(command=words, nth=nth):
                    self.reset()
                    n_told += self.check_failure(command, nth, before)
                    n_points += 1
        print(f"fault points W1: {n_points}; reads of a source, {n_told} of them told")
        self.assertGreater(n_told, 40)

    def test_what_can_never_be_read_is_told_record_by_record(self):
        command = [BERTH, "verify", self.places["SOURCE"], *SETTINGS]
        nth = count_reads(self.sources, command, self.path("log")) - 3
        done = run_failing(self.sources, command, f"{nth}+", subprocess.PIPE)
        lines = done.stdout.decode().splitlines()
        self.assertEqual((done.returncode, done.stderr), (1, b""))
        self.assertGreater(len(lines), 2)
        for line in lines[:-1]:
            self.assertRegex(line, r"^\S+ at byte \d+: \d+ bytes not read: Input/output error")
        verdict = lines[-1].split("; it names what cannot be listed: ")[0]
        self.assertEqual(verdict, f"bad: {len(lines) - 1} of 14 records")


if __name__ == "__main__":
    unittest.main()
