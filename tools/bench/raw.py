# SPDX-License-Identifier: BSD-3-Clause
"""The limit: how fast the disk is when nothing else is done. A bare loop of ours, and fio."""

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
    """Calls fallocate(2): posix_fallocate would write zeros if the file system has none."""
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


def warm_large_pages(nbytes):
    """The same for memory that is not a file's: large pages, touched and given back."""
    fresh_memory(nbytes, touched=True).close()


def fresh_memory(nbytes, touched=False):
    """Memory that was never touched, in large pages if the system has them."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass
    if touched:
        first = ctypes.c_char.from_buffer(memory)
        ctypes.memset(ctypes.addressof(first), 1, nbytes)
        del first  # or it could not be closed
    return memory


def evict(path):
    """Drops a file from the page cache; residency reports whether it went."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def warm(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        buffer = bytearray(4 * MIB)
        while os.readv(fd, [buffer]):
            pass
    finally:
        os.close(fd)


LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                      ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def resident_nbytes(path, offset=0):
    """Bytes of a file of ours, from an offset on, that are in the page cache."""
    offset -= offset % mmap.PAGESIZE
    size = os.path.getsize(path) - offset
    if size <= 0:
        return 0
    present = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    fd = os.open(path, os.O_RDONLY)
    address = LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
    os.close(fd)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    try:
        if LIBC.mincore(address, size, present) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    finally:
        LIBC.munmap(address, size)
    lowest_bit = bytes(byte & 1 for byte in range(256))
    return bytes(present).translate(lowest_bit).count(1) * mmap.PAGESIZE


def residency(path):
    """The part of a file that is in the page cache, 0 to 1."""
    return min(1, resident_nbytes(path) / max(1, os.path.getsize(path)))


class RawReads:
    """Reads of a whole file into fresh memory in large pages, by several threads."""

    def __init__(self, path):
        self.path, self.nbytes = path, os.path.getsize(path)

    def read_blocks(self, fd, view, block, numbers, failures):
        try:
            for number in numbers:
                at = number * block
                if at >= self.nbytes:
                    return
                if os.preadv(fd, [view[at:at + block]], at) < min(block, self.nbytes - at):
                    raise OSError(errno.EIO, "short read")
        except OSError as error:
            failures.append(error)

    def read(self, block, n_threads, direct):
        """Seconds until all is in memory, page faults included."""
        begin = time.perf_counter()
        memory = fresh_memory(-(-self.nbytes // block) * block)
        fd = os.open(self.path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
        view, numbers, failures = memoryview(memory), itertools.count(), []
        try:
            threads = [threading.Thread(target=self.read_blocks,
                                        args=(fd, view, block, numbers, failures))
                       for _ in range(n_threads)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = time.perf_counter() - begin
        finally:
            os.close(fd)
            view.release()
            memory.close()
        if failures:
            raise failures[0]
        return seconds


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
        """Seconds until all is written, and seconds until it is synced."""
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


def run_fio(what, path, nbytes, block, *words):
    """Seconds that nbytes take at the speed that fio reports."""
    done = subprocess.run(
        ["fio", "--name=limit", f"--filename={path}", f"--rw={what}", f"--bs={block}", *words,
         "--output-format=json"], capture_output=True, text=True)
    if done.returncode:
        raise OSError(errno.EIO, "fio: " + (done.stderr or done.stdout).strip().splitlines()[0])
    # fio may print remarks before the object.
    report = json.loads(done.stdout[done.stdout.index("{"):])
    return nbytes / report["jobs"][0][what]["bw_bytes"]


def fio_write(path, nbytes, block, depth):
    """Direct writes as fio times them: without creating and syncing the file."""
    return run_fio("write", path, nbytes, block, "--direct=1", f"--iodepth={depth}",
                   "--ioengine=libaio", f"--size={-(-nbytes // block) * block}",
                   "--fallocate=native", "--end_fsync=1")


def fio_read(path, block, depth, direct):
    """Reads of a file that is there, into the same few buffers again and again: direct requests, as
    many at a time as `depth` says; or through the page cache, by as many processes."""
    nbytes = os.path.getsize(path) // (block * depth) * (block * depth)
    if not nbytes:
        raise OSError(errno.EINVAL, f"the file is too small for {depth} x {block} bytes")
    if direct:
        words = ["--direct=1", f"--iodepth={depth}", "--ioengine=libaio", f"--size={nbytes}"]
    else:
        words = ["--direct=0", "--ioengine=psync", f"--numjobs={depth}", f"--size={nbytes // depth}",
                 f"--offset_increment={nbytes // depth}", "--group_reporting"]
    return run_fio("read", path, os.path.getsize(path), block, "--readonly", *words)
