# SPDX-License-Identifier: BSD-3-Clause
"""The limit: what the disk takes when nothing but writing is done. Our own bare loop, and fio."""

import ctypes
import errno
import itertools
import json
import mmap
import os
import shutil
import subprocess
import threading
import time

MIB = 1 << 20
LIBC = ctypes.CDLL(None, use_errno=True)


def fallocate(fd, nbytes):
    """fallocate(2) itself: posix_fallocate would write where a file system has none."""
    if LIBC.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(nbytes)) != 0:
        if ctypes.get_errno() not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.ftruncate(fd, nbytes)


def sync_file_system(folder):
    fd = os.open(folder, os.O_RDONLY)
    LIBC.syncfs(fd)
    os.close(fd)


def warm_memory(folder, nbytes):
    """Leaves as many free pages as a file of nbytes takes, which this machine really has.

    A virtual machine hands free memory back to its host within seconds (Linux's free page
    reporting), and the next who writes into the page cache pays for getting it again: 2 s a GiB
    were seen, ten times the write itself. So each turn begins with pages that were in use a moment
    ago. They must come from a file: pages of ordinary memory are not the ones taken next.
    """
    path = os.path.join(folder, "warm")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.unlink(path)
        block = bytes(4 * MIB)
        for _ in range(0, nbytes, len(block)):
            os.write(fd, block)
    finally:
        os.close(fd)


class RawWrites:
    """Direct writes of nbytes from aligned memory into a file of that size, by several threads."""

    def __init__(self, nbytes):
        self.nbytes = nbytes
        self.memory = mmap.mmap(-1, 256 * MIB)  # more than caches hold, as tensors are
        random = os.urandom(8 * MIB)
        for at in range(0, min(nbytes, len(self.memory)), len(random)):
            self.memory[at:at + len(random)] = random
        self.view = memoryview(self.memory)

    def write_blocks(self, fd, block, numbers, failures):
        try:
            for number in numbers:
                at, end = number * block, self.nbytes
                if at >= end:
                    return
                n = min(block, -(-(end - at) // 4096) * 4096)  # direct: whole blocks
                source = at % len(self.memory)
                if os.pwrite(fd, self.view[source:source + n], at) != n:
                    raise OSError(errno.EIO, "short write")
        except OSError as error:
            failures.append(error)

    def write(self, path, block, n_threads):
        """Seconds until all is written, and until it is synced."""
        begin = time.perf_counter()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
        try:
            fallocate(fd, -(-self.nbytes // 4096) * 4096)
            numbers, failures = itertools.count(), []  # next() of it is one step: no lock needed
            arguments = (fd, block, numbers, failures)
            threads = [threading.Thread(target=self.write_blocks, args=arguments)
                       for _ in range(n_threads)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if failures:
                raise failures[0]
            written = time.perf_counter() - begin
            os.ftruncate(fd, self.nbytes)
            os.fsync(fd)
        finally:
            os.close(fd)
        return written, time.perf_counter() - begin


def fio_version():
    if not shutil.which("fio"):
        return None
    return subprocess.run(["fio", "--version"], capture_output=True, text=True).stdout.strip()


def fio(path, nbytes, block, depth):
    """Seconds of direct writes as fio counts them: without creating and without syncing."""
    size = -(-nbytes // block) * block
    done = subprocess.run(
        ["fio", "--name=limit", f"--filename={path}", "--rw=write", "--direct=1", f"--bs={block}",
         f"--iodepth={depth}", "--ioengine=libaio", f"--size={size}", "--fallocate=native",
         "--end_fsync=1", "--output-format=json"], capture_output=True, text=True)
    if done.returncode:
        raise OSError(errno.EIO, "fio: " + (done.stderr or done.stdout).strip().splitlines()[0])
    # Lines before the object are fio's remarks.
    report = json.loads(done.stdout[done.stdout.index("{"):])
    return nbytes / report["jobs"][0]["write"]["bw_bytes"]
