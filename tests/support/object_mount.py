#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A file system of FUSE that shows a folder, and lacks what mounts of object stores lack.

usage: object_mount.py FOLDER MOUNTPOINT [HABIT=ERRNO...]      needs Debian's python3-fusepy

size     no size can be set but 0
order    a write must begin where the last one ended
rename   nothing can be renamed
over     nothing can be renamed over another file
sync     no file can be synced
folder   no folder can be synced
remove   no file can be removed while it is open
mode     neither mode nor owner can be changed
hidden   no file can be made whose name begins with a dot
once     nothing can be written after the first sync or close of a descriptor
both     no file can be opened for reading and writing
slow     nothing fails, but each write takes 20 ms
"""
import contextlib
import errno
import os
import sys
import time

try:
    import fusepy as fuse  # Debian's name
except ImportError:
    import fuse


class Handle:
    def __init__(self, path, flags, mode=0o666):
        self.fd = os.open(path, flags & ~os.O_APPEND, mode)
        self.end = os.fstat(self.fd).st_size
        self.is_done = False


def passed_on(call):
    """An OSError is the answer."""
    def answer(*arguments):
        try:
            return call(*arguments)
        except OSError as error:
            raise fuse.FuseOSError(error.errno) from error
    return answer


class ObjectMount(fuse.Operations):
    def __init__(self, folder, habits):
        self.folder, self.habits = folder, habits
        self.handles, self.n_made = {}, 0

    def __call__(self, name, *arguments):
        if not hasattr(self, name):
            raise fuse.FuseOSError(errno.ENOSYS)
        return passed_on(getattr(self, name))(*arguments)

    def refuse(self, habit, condition=True):
        if condition and habit in self.habits:
            raise fuse.FuseOSError(self.habits[habit])

    def at(self, path):
        return os.path.join(self.folder, path.lstrip("/"))

    def keep(self, handle, info):
        self.n_made += 1
        info.fh = self.n_made
        self.handles[info.fh] = handle
        return 0

    def is_open(self, path):
        status = os.stat(self.at(path))
        return any(os.path.samestat(os.fstat(each.fd), status) for each in self.handles.values())

    # ---- files ----

    def create(self, path, mode, info):
        self.refuse("hidden", os.path.basename(path).startswith("."))
        self.refuse("both", info.flags & os.O_ACCMODE == os.O_RDWR)
        return self.keep(Handle(self.at(path), info.flags | os.O_CREAT, mode), info)

    def open(self, path, info):
        self.refuse("both", info.flags & os.O_ACCMODE == os.O_RDWR)
        return self.keep(Handle(self.at(path), info.flags), info)

    def read(self, path, nbytes, offset, info):
        return os.pread(self.handles[info.fh].fd, nbytes, offset)

    def write(self, path, data, offset, info):
        handle = self.handles[info.fh]
        self.refuse("order", offset != handle.end)
        self.refuse("once", handle.is_done)
        if "slow" in self.habits:
            time.sleep(0.02)
        n = os.pwrite(handle.fd, data, offset)
        handle.end = max(handle.end, offset + n)
        return n

    def truncate(self, path, nbytes, info=None):
        self.refuse("size", nbytes != 0)
        os.truncate(self.at(path), nbytes)
        status = os.stat(self.at(path))
        for handle in self.handles.values():
            if os.path.samestat(os.fstat(handle.fd), status):
                handle.end = nbytes
        return 0

    def flush(self, path, info):
        handle = self.handles[info.fh]
        handle.is_done = handle.end > 0
        return 0

    def fsync(self, path, only_data, info):
        self.refuse("sync")
        return self.flush(path, info)

    def release(self, path, info):
        os.close(self.handles.pop(info.fh).fd)
        return 0

    # ---- names ----

    def getattr(self, path, info=None):
        status = os.lstat(self.at(path))
        return {key: getattr(status, key) for key in dir(status)
                if key.startswith("st_") and key[3:] in ("atime", "ctime", "mtime", "gid", "uid", "mode",
                                                         "nlink", "size", "blocks")}

    def readdir(self, path, info):
        return [".", "..", *os.listdir(self.at(path))]

    def rename(self, old, new):
        self.refuse("rename")
        self.refuse("over", os.path.exists(self.at(new)))
        os.rename(self.at(old), self.at(new))
        return 0

    def unlink(self, path):
        self.refuse("remove", self.is_open(path))
        os.unlink(self.at(path))
        return 0

    def mkdir(self, path, mode):
        os.mkdir(self.at(path), mode)
        return 0

    def rmdir(self, path):
        os.rmdir(self.at(path))
        return 0

    def chmod(self, path, mode):
        self.refuse("mode")
        os.chmod(self.at(path), mode)
        return 0

    def chown(self, path, user, group):
        self.refuse("mode")
        os.chown(self.at(path), user, group)
        return 0

    def fsyncdir(self, path, only_data, info):
        self.refuse("folder")
        return 0

    def statfs(self, path):
        status = os.statvfs(self.folder)
        return {key: getattr(status, key) for key in dir(status) if key.startswith("f_") and key != "f_fsid"}


def main():
    folder, mountpoint, *words = sys.argv[1:]
    habits = {}
    for word in words:
        name, _, number = word.partition("=")
        habits[name] = getattr(errno, number or "EPERM")
    with contextlib.suppress(KeyboardInterrupt):
        fuse.FUSE(ObjectMount(folder, habits), mountpoint, foreground=True, nothreads=True, raw_fi=True,
                  hard_remove="remove" in habits)


if __name__ == "__main__":
    main()
