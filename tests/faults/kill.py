# SPDX-License-Identifier: BSD-3-Clause
"""W4: kill -9 at every system call of a command that replaces a file.

The path then holds the old file or the new one, whole; the next save removes what was left, and
nothing else.
"""

import concurrent.futures
import fcntl
import os
import shutil
import subprocess
import tempfile
import unittest

from commands import (BERTH, DIRECT, LONG, QUIET, TEMPORARY, THREADS, TILES, berth, count_calls,
                      has_direct, make_sources, read, run_killed)

# These come and go with the scheduler, and change no file.
NOT_COUNTED = {"execve", "exit", "exit_group"}
FORGOTTEN_IN_SHORT = {"mmap", "mprotect", "munmap", "brk", "pread64", "read", "futex"}


class Scene:
    """One command in a folder of its own, between files that are none of its business."""

    def __init__(self, sources, words):
        self.folder = tempfile.mkdtemp(prefix="berth-kill-")
        self.target = os.path.join(self.folder, "model.pt")
        self.old_path, source, tensors = sources
        places = {"SOURCE": source, "TENSORS": tensors, "TARGET": self.target}
        self.command = [BERTH, *(places.get(word, word) for word in words)]
        self.old = read(self.old_path)
        shutil.copy(self.old_path, self.target)
        subprocess.run(self.command, check=True, **QUIET)
        self.new = read(self.target)
        if self.new == self.old:
            raise AssertionError("the command changes nothing")
        berth("verify", self.target)
        self.others = [".berth-00000000000000aa.tmp", ".berth-kept.tmp", "x.tmp",
                       ".berth-00000000000000AA.tmp"]
        for name in self.others:
            with open(os.path.join(self.folder, name), "wb") as file:
                file.write(b"not to be touched")
        # The first has the name of a temporary: only its lock says that its save is alive.
        self.alive = open(os.path.join(self.folder, self.others[0]), "r+b")
        fcntl.flock(self.alive, fcntl.LOCK_EX)

    def close(self):
        self.alive.close()
        shutil.rmtree(self.folder)

    def left(self):
        """What lies in the folder beside the target and the other files."""
        return sorted(set(os.listdir(self.folder)) -
                      {os.path.basename(self.target), *self.others})

    def check_target(self, may_be):
        if read(self.target) not in may_be:
            raise AssertionError("neither the old file nor the new one")
        if berth("verify", self.target).returncode:
            raise AssertionError("berth verify refuses it")

    def check_next_save(self):
        left = self.left()
        if len(left) > 1 or not all(TEMPORARY.match(name) for name in left):
            raise AssertionError(f"left behind: {left}")
        berth("copy", self.old_path, self.target, "--set", "save.durability=none")
        self.check_target([self.old])
        if self.left():
            raise AssertionError(f"not removed by the next save: {self.left()}")
        for name in self.others:
            if read(os.path.join(self.folder, name)) != b"not to be touched":
                raise AssertionError(f"{name} was touched")
        return len(left)


def kill_everywhere(sources, words):
    """Returns the number of points, and how many of them left a temporary."""
    scene = Scene(sources, words)
    n_points = n_left = 0
    try:
        calls = count_calls(scene.command, f"{sources[0]}.{id(scene)}")
        for name in sorted(set(calls) - NOT_COUNTED):
            if not LONG and name in FORGOTTEN_IN_SHORT:
                continue
            nth = 1
            # With several threads the counts differ from run to run: until it ends by itself.
            while nth <= calls[name] + 8:
                shutil.copy(scene.old_path, scene.target)
                if not run_killed(scene.command, name, nth):
                    scene.check_target([scene.new])
                    break
                scene.check_target([scene.old, scene.new])
                n_left += scene.check_next_save()
                n_points += 1
                nth += 1
        return n_points, n_left
    except AssertionError as failure:
        raise AssertionError(f"{' '.join(scene.command)}: {failure}") from failure
    finally:
        scene.close()


class KillTest(unittest.TestCase):
    LEAST = (600, 150) if LONG else (260, 80)

    def test_a_killed_command_leaves_the_old_file_or_the_new_one(self):
        commands = []
        for threads in THREADS.values():
            options = [*TILES, *threads]
            commands += [["copy", "SOURCE", "TARGET", *options],
                         ["convert", "TENSORS", "TARGET", *options]]
            if has_direct():
                commands.append(["copy", "SOURCE", "TARGET", *options, *DIRECT])
        with tempfile.TemporaryDirectory(prefix="berth-kill-") as folder:
            sources = make_sources(folder)
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                done = list(pool.map(lambda each: kill_everywhere(sources, each), commands))
        n_points = sum(points for points, _ in done)
        print(f"killed with a temporary left: {sum(left for _, left in done)}")
        print(f"fault points W4: {n_points}")
        self.assertGreaterEqual(n_points, self.LEAST[0])
        self.assertGreaterEqual(sum(left for _, left in done), self.LEAST[1])
