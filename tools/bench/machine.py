# SPDX-License-Identifier: BSD-3-Clause
"""What figures depend on: the machine, the file system, its load."""

import contextlib
import os
import platform
import re
import shutil


def text_of(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def mount_of(folder):
    """(file system's type, device, options) of the mount that holds a folder."""
    status = os.stat(folder).st_dev
    number = f"{os.major(status)}:{os.minor(status)}"
    for line in text_of("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == number:
            kind, device, options = right.split()[:3]
            return kind, device, options
    return "unknown", "", ""


def read_ahead_path(folder):
    """Where the system has the read-ahead of the block device under a folder, in KiB."""
    status = os.stat(folder).st_dev
    return f"/sys/class/bdi/{os.major(status)}:{os.minor(status)}/read_ahead_kb"


def read_ahead_nbytes(folder):
    """0: the system does not tell it."""
    return int(text_of(read_ahead_path(folder)) or 0) * 1024


@contextlib.contextmanager
def with_read_ahead(folder, nbytes):
    """Sets the read-ahead for a while. OSError if it may not be set."""
    before, path = text_of(read_ahead_path(folder)), read_ahead_path(folder)

    def write(text):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)

    write(str(nbytes // 1024))
    try:
        yield
    finally:
        write(before)


def available_nbytes():
    """Memory that is still available, on the machine and in this process's cgroup."""
    found = re.search(r"^MemAvailable:\s+(\d+)", text_of("/proc/meminfo"), re.MULTILINE)
    amounts = [int(found[1]) * 1024] if found else []
    limit = text_of("/sys/fs/cgroup/memory.max").strip()
    used = re.search(r"^anon (\d+)", text_of("/sys/fs/cgroup/memory.stat"), re.MULTILINE)
    if limit.isdigit() and used:
        amounts.append(int(limit) - int(used[1]))
    return min(amounts, default=0)


def free_nbytes(folder):
    return shutil.disk_usage(folder).free


def facts(folder):
    model = re.search(r"^model name\s*:\s*(.*)", text_of("/proc/cpuinfo"), re.MULTILINE)
    total = re.search(r"^MemTotal:\s+(\d+)", text_of("/proc/meminfo"), re.MULTILINE)
    kind, device, options = mount_of(folder)
    return {"processor": model[1] if model else platform.machine(),
            "processors": len(os.sched_getaffinity(0)),
            "memory_nbytes": int(total[1]) * 1024 if total else 0,
            "kernel": platform.release(), "file_system": kind, "device": device,
            "mount_options": options,
            "dirty_ratio": text_of("/proc/sys/vm/dirty_ratio").strip(),
            "dirty_background_ratio": text_of("/proc/sys/vm/dirty_background_ratio").strip()}
