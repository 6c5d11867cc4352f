# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of hostile files share: running the command on them, and what that cost."""

import os
import resource
import shutil
import subprocess
import tempfile
import unittest

BUILD = os.path.abspath(os.environ["BERTH_BUILD"])
BERTH = os.path.join(BUILD, "berth")
HANG_SECONDS = 1800  # by the clock, for what waits: the machine may be busy
HEAP = os.path.join(BUILD, "tests", "hostile", "heap.so")


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="berth-hostile-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def berth(self, *words, seconds=60):
        """Runs it with its output into files, for so many seconds of a processor at most; exit codes are the
        documented ones, errors a line."""
        def limit():
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

        heap = os.path.join(self.folder, ".heap")
        environment = dict(os.environ, LD_PRELOAD=HEAP, BERTH_HEAP=heap)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run([BERTH, *words], stdout=out, stderr=err, cwd=self.folder,
                                  env=environment, preexec_fn=limit, timeout=HANG_SECONDS)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            done.cpu_seconds = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
            done.out_nbytes = out.tell()
            out.seek(0)
            err.seek(0)
            done.out = out.read(1 << 20)
            done.err = err.read(1 << 20).decode()
        with open(heap, encoding="ascii") as counted:
            done.heap_nbytes = int(counted.read().split()[0])
        os.remove(heap)
        self.assertIn(done.returncode, (0, 1, 2), (words, done.err))
        self.assertLessEqual(done.err.count("\n"), 1, done.err[:500])
        return done

    def everything(self, path, most_out=40 << 20, seconds=60):
        """All subcommands but cat; what each gave."""
        commands = [("ls",), ("ls", "--json"), ("info",), ("show", "-q"), ("show", "--json"), ("verify",),
                    ("diff", path),
                    ("convert",), ("copy",)]
        results = {}
        for command, *more in commands:
            words = [command, path, *more]
            if command in ("convert", "copy"):
                words.append("out.safetensors" if command == "convert" else "out.pt")
            done = self.berth(*words, seconds=seconds)
            self.assertLessEqual(done.out_nbytes, most_out, words)
            results[" ".join([command, *(m for m in more if m[0] == "-")])] = done
        return results
