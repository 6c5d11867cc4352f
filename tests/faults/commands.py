# SPDX-License-Identifier: BSD-3-Clause
"""What the fault scripts share: commands that replace a file, and what they are made to replace."""

import collections
import os
import re
import subprocess

BERTH = os.path.join(os.path.abspath(os.environ["BERTH_BUILD"]), "berth")
LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")
TEMPORARY = re.compile(r"^\.berth-[0-9a-f]{16}-([0-9]|1[0-5]|[0-9a-f]{16})\.tmp$")
OWNER = "user.berth.owner"
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}

# Saves in several tiles, so that there are several writes to be killed at.
TILES = ["--set", "io.chunk_nbytes=65536" if LONG else "io.chunk_nbytes=262144"]
THREADS = {1: ["--set", "io.threads=1"], 4: ["--set", "io.threads=4"]}
DIRECT = ["--set", "save.method=direct"]


def berth(*words, code=0):
    done = subprocess.run([BERTH, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, timeout=600, check=False)
    if done.returncode != code:
        raise AssertionError(f"berth {' '.join(words)}: {done.returncode}: {done.stderr.decode()}")
    return done


def read(path):
    with open(path, "rb") as file:
        return file.read()


def has_direct():
    """Whether this build writes past the page cache."""
    return subprocess.run([BERTH, "config", *DIRECT], **QUIET, check=False).returncode == 0


def make_sources(folder):
    """In `folder`: old.pt, and source.pt and source.safetensors, which hold something else."""
    paths = [os.path.join(folder, name) for name in ("old.pt", "source.pt", "source.safetensors")]
    berth("demo", paths[0])
    berth("copy", paths[0], paths[1], "--set", "save.storage_alignment=512",
          "--set", "save.compute_crc32=off")
    berth("convert", "--tensors-only", paths[0], paths[2])
    return paths


def count_calls(command, log):
    """How often each system call is made by the thread that makes it most.

    Calls that strace has no name for are left out: it cannot stop a command at them.
    """
    subprocess.run(["strace", "-f", "-qq", "-o", log, *command], check=True, **QUIET)
    counts = collections.Counter()
    for line in read(log).decode(errors="replace").splitlines():
        match = re.match(r"(\d+) +(\w+)\(", line)
        if match and not match[2].startswith("syscall_0x"):
            counts[match.groups()] += 1
    most = collections.Counter()
    for (_, name), count in counts.items():
        most[name] = max(most[name], count)
    return most


def run_killed(command, name, nth):
    """Kills the command as it enters its nth call of that name. False: it ended before."""
    done = subprocess.run(["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={name}",
                           f"--inject={name}:signal=SIGKILL:when={nth}", *command],
                          check=False, **QUIET)
    if done.returncode not in (0, -9):
        raise AssertionError(f"{' '.join(command)}: {done.returncode} at {name} {nth}")
    return done.returncode == -9
