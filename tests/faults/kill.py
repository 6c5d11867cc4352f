# SPDX-License-Identifier: BSD-3-Clause
"""W4: kill -9 at every system call of a command that replaces a file.

The path then holds the old file or the new one, whole; the next save removes what was left, and
nothing else. W11: with save.replace=in_place it may hold the beginning of the new file, and
`berth verify` says what that is.
"""

import concurrent.futures
import os
import shutil
import subprocess
import tempfile
import unittest

from commands import (BERTH, DIRECT, LONG, OWNER, QUIET, TEMPORARY, THREADS, TILES, berth, count_calls,
                      has_direct, make_sources, read, run_killed)

IN_PLACE = ["--set", "save.replace=in_place"]
CUT = "a download or a save in place that did not end?"
# These come and go with the scheduler, and change no file.
NOT_COUNTED = {"execve", "exit", "exit_group"}
FORGOTTEN_IN_SHORT = {"mmap", "mprotect", "munmap", "brk", "pread64", "read", "futex"}


class Scene:
    """One command in a folder of its own, between files that are none of its business."""

    def __init__(self, sources, words):
        self.folder = tempfile.mkdtemp(prefix="berth-kill-")
        self.checkpoint = "TENSORS_TARGET" not in words
        self.in_place = IN_PLACE[1] in words
        self.n_cut = 0
        self.target = self.path("model.pt" if self.checkpoint else "model.safetensors")
        self.old_checkpoint, source, tensors = sources
        places = {"SOURCE": source, "TENSORS": tensors, "TARGET": self.target,
                  "TENSORS_TARGET": self.target, "LINK": self.path("link.pt")}
        self.command = [BERTH, *(places.get(word, word) for word in words)]
        self.old = read(self.old_checkpoint) if self.checkpoint else b"old tensors"
        self.make_others()
        self.reset()
        subprocess.run(self.command, check=True, **QUIET)
        self.new = read(self.target)
        if self.new == self.old:
            raise AssertionError("the command changes nothing")
        self.check_target([self.new])

    def path(self, name):
        return os.path.join(self.folder, name)

    def make_others(self):
        self.others = [".berth-kept.tmp", "x.tmp", ".berth-00000000000000AA.tmp"]
        for name in self.others:
            with open(self.path(name), "wb") as file:
                file.write(b"not to be touched")
        os.symlink(os.path.basename(self.target), self.path("link.pt"))

    def close(self):
        shutil.rmtree(self.folder)

    def reset(self):
        with open(self.target, "wb") as file:
            file.write(self.old)

    def left(self):
        """What lies in the folder beside the target and the other files."""
        return sorted(set(os.listdir(self.folder)) -
                      {os.path.basename(self.target), "link.pt", *self.others})

    def check_cut(self, found):
        if not self.new.startswith(found):
            raise AssertionError("neither the old file nor the beginning of the new one")
        said = berth("verify", self.target, code=1).stdout.decode()
        if CUT not in said or self.target not in said:
            raise AssertionError(f"{len(found)} bytes of {len(self.new)}: {said}")
        self.n_cut += 1

    def check_target(self, may_be):
        found = read(self.target)
        if self.in_place and found not in may_be:
            return self.check_cut(found)
        if found not in may_be:
            raise AssertionError("neither the old file nor the new one")
        if self.checkpoint:
            berth("verify", self.target)
        return None

    def check_removed(self, left):
        """X5: the next save removes it, but where the kill came before its owner stood there,
        between two calls. Then nobody can know, and `berth clean` removes it."""
        unknown = [name for name in left if OWNER not in os.listxattr(self.path(name))]
        if self.checkpoint:
            berth("copy", self.old_checkpoint, self.target, "--set", "save.durability=none")
            self.check_target([self.old])
            if self.left() != unknown:
                raise AssertionError(f"after the next save: {self.left()}, not {unknown}")
        berth("clean", self.folder, "--remove", "--older-than", "0")
        if self.left():
            raise AssertionError(f"not removed by berth clean: {self.left()}")

    def check_next_save(self):
        """The next save, of the target or beside it. Returns how many temporaries were left."""
        left = self.left()
        if len(left) > 1 or not all(TEMPORARY.match(name) for name in left):
            raise AssertionError(f"left behind: {left}")
        self.check_removed(left)
        for name in self.others:
            if read(self.path(name)) != b"not to be touched":
                raise AssertionError(f"{name} was touched")
        if not os.path.islink(self.path("link.pt")):
            raise AssertionError("the link was replaced")
        return len(left)


def kill_everywhere(sources, words):
    """Returns the number of points, and how many of them left a temporary, or the beginning of a file."""
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
                scene.reset()
                if not run_killed(scene.command, name, nth):
                    scene.check_target([scene.new])
                    break
                scene.check_target([scene.old, scene.new])
                n_left += scene.check_next_save()
                n_points += 1
                nth += 1
        if scene.in_place and scene.n_cut < 3:
            raise AssertionError(f"killed in the middle of a file {scene.n_cut} times")
        return n_points, n_left + scene.n_cut
    except AssertionError as failure:
        raise AssertionError(f"{' '.join(scene.command)}: {failure}") from failure
    finally:
        scene.close()


def commands():
    for threads in THREADS.values():
        options = [*TILES, *threads]
        yield ["copy", "SOURCE", "TARGET", *options]
        yield ["convert", "TENSORS", "TARGET", *options]
        if has_direct():
            yield ["copy", "SOURCE", "TARGET", *options, *DIRECT]
        if LONG:
            yield ["convert", "SOURCE", "LINK", *options]
            yield ["copy", "SOURCE", "LINK", *options, "--set", "save.durability=file"]
            yield ["copy", "SOURCE", "TARGET", *options, "--set", "save.durability=none"]
            yield ["convert", "TENSORS", "TARGET", *options, *DIRECT, "--set", "debug=on"]
    yield ["convert", "--tensors-only", "SOURCE", "TENSORS_TARGET"]
    yield ["copy", "SOURCE", "TARGET", *TILES, *IN_PLACE]
    yield ["convert", "--tensors-only", "SOURCE", "TENSORS_TARGET", *TILES, *IN_PLACE]


class KillTest(unittest.TestCase):
    LEAST = (2200, 900) if LONG else (450, 170)

    def test_a_killed_command_leaves_the_old_file_or_the_new_one(self):
        with tempfile.TemporaryDirectory(prefix="berth-kill-") as folder:
            sources = make_sources(folder)
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                done = list(pool.map(lambda each: kill_everywhere(sources, each), commands()))
        n_points = sum(points for points, _ in done)
        n_left = sum(left for _, left in done)
        print(f"kills that left a temporary, or the beginning of a file: {n_left}")
        print(f"fault points W4: {n_points}")
        self.assertGreaterEqual(n_points, self.LEAST[0])
        self.assertGreaterEqual(n_left, self.LEAST[1])
