# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of owners, places and hosts share: users, mounts, and the real calls about both.

Nothing here is a stand-in: a user is a process with its ids, a file system is mounted. What this
machine does not allow skips a test; where CI=true, root must be able to do it, and it fails.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
import unittest

from commands import BERTH, QUIET

STRICT = os.environ.get("CI") == "true" and os.geteuid() == 0

# Groups, and users with theirs: the first is the one that their files get.
TEAM, STAFF, EXTRA = 4200, 4300, 4400
USERS = {
    "root": (0, [0]),
    "alice": (4101, [4101]),
    "bob": (4102, [4102, TEAM]),
    "carol": (4103, [STAFF]),
    "dave": (4104, [4104, TEAM]),
    "erin": (4105, [4105]),
    "frank": (4106, [4106]),
    "gina": (4107, [4107, EXTRA]),
    "hal": (4108, [STAFF]),
    "ivy": (4109, [4109, TEAM, STAFF]),
}


def uid(name):
    return USERS[name][0]


def need(condition, reason):
    """Skips the test that cannot be made here, or fails it where it must be possible."""
    if condition:
        return
    if STRICT:
        raise AssertionError(f"CI=true, and yet: {reason}")
    raise unittest.SkipTest(reason)


def need_root():
    need(os.geteuid() == 0, "other users and mounts need root")


def need_tool(*names):
    for name in names:
        need(shutil.which(name), f"there is no {name} (tools/setup.sh has it in test_packages)")


def run(*words, check=True):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, check=False, timeout=600)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(words)}: {done.returncode}: {done.stdout.decode()}")
    return done


def setpriv(name):
    """What a command line begins with that is to run as this user."""
    number, groups = USERS[name]
    if name == "root":
        return []
    return ["setpriv", f"--reuid={number}", f"--regid={groups[0]}",
            f"--groups={','.join(map(str, groups))}"]


def pipe_from(least):
    """A pipe with both of its descriptors from this number on."""
    ends = os.pipe()
    found = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, least) for each in ends]
    for each in ends:
        os.close(each)
    return found


class User:
    """A process of this user: opens what it is told to open, runs what it is told to run."""

    def __init__(self, name):
        self.name = name
        ask, self.asking = pipe_from(10)
        told, tell = pipe_from(10)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.dup2(ask, 3)
                os.dup2(tell, 4)
                os.closerange(5, 1000)  # also the ends of those that began before: they would stay
                self.serve(os.fdopen(3, "r"), os.fdopen(4, "w"))
            finally:
                os._exit(1)
        os.close(ask)
        os.close(tell)
        self.answers = os.fdopen(told, "r")

    def serve(self, questions, answers):
        number, groups = USERS[self.name]
        os.setgroups(groups)
        os.setresgid(groups[0], groups[0], groups[0])
        os.setresuid(number, number, number)  # and so without capabilities
        for line in questions:
            what, argument, umask = json.loads(line)
            answer = self.can_open(argument) if what == "open" else self.run(argument, umask)
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        os._exit(0)

    @staticmethod
    def can_open(path):
        """access(2) would only be told; this is done."""
        rights = ""
        for letter, flags in (("r", os.O_RDONLY), ("w", os.O_WRONLY)):
            try:
                os.close(os.open(path, flags | os.O_NONBLOCK))
                rights += letter
            except PermissionError:
                pass
        return rights

    @staticmethod
    def run(words, umask):
        os.umask(umask)
        done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              stdin=subprocess.DEVNULL, check=False, cwd="/", timeout=600)
        return [done.returncode, done.stderr.decode(errors="replace")]

    def ask(self, what, argument, umask=0o022):
        os.write(self.asking, (json.dumps([what, argument, umask]) + "\n").encode())
        return json.loads(self.answers.readline())

    def close(self):
        os.close(self.asking)
        self.answers.close()
        os.waitpid(self.pid, 0)


class Users:
    """All of them, each with its process."""

    def __init__(self):
        self.all = {name: User(name) for name in USERS}

    def rights(self, path):
        """Who can read ("r") and write ("w") this file, by opening it."""
        return {name: set(user.ask("open", path)) for name, user in self.all.items()}

    def run(self, name, *words, umask=0o022):
        return self.all[name].ask("run", list(words), umask)

    def close(self):
        for user in self.all.values():
            user.close()


# ---- ACLs as the kernel keeps them ----

ACL = {"access": "system.posix_acl_access", "default": "system.posix_acl_default"}
TAGS = {"user": 1, "u": 2, "group": 4, "g": 8, "mask": 16, "other": 32}
NOBODY = 0xFFFFFFFF


def acl(**entries):
    """acl(user=6, group=4, mask=6, other=0, u={1: 6}, g={2: 4}) as bytes."""
    found = []
    for tag, value in entries.items():
        each = value if isinstance(value, dict) else {NOBODY: value}
        found += [(TAGS[tag], bits, number) for number, bits in each.items()]
    found.sort(key=lambda entry: (entry[0], entry[2]))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in found)


def get_acl(path, which="access"):
    """As {(tag, number or None): bits}; None where there is none."""
    try:
        value = os.getxattr(path, ACL[which])
    except OSError:
        return None
    names = {number: name for name, number in TAGS.items()}
    return {(names[tag], None if number == NOBODY else number): bits
            for tag, bits, number in struct.iter_unpack("<HHI", value[4:])}


def set_acl(path, value, which="access"):
    os.setxattr(path, ACL[which], value)


def remove_acl(path, which="access"):
    with contextlib.suppress(OSError):
        os.removexattr(path, ACL[which])


def has_acl(folder):
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        try:
            set_acl(file.name, acl(user=6, u={1: 4}, group=4, mask=4, other=0))
        except OSError:
            return False
        return True


# ---- folders and mounts ----

class Place(contextlib.ExitStack):
    """A folder of its own, open to all; its mounts and files go when it is closed."""

    def __init__(self, above=None):
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="berth-around-", dir=above)
        self.callback(shutil.rmtree, self.folder, ignore_errors=True)
        os.chmod(self.folder, 0o777)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def make(self, name, mode=0o777):
        os.mkdir(self.path(name))
        os.chmod(self.path(name), mode)
        return self.path(name)

    def berth(self):
        """The command where every user can run it."""
        shutil.copy(BERTH, self.path("berth"))
        os.chmod(self.path("berth"), 0o755)
        return self.path("berth")

    def unmount(self, at):
        # Who still looks at it would keep it: it goes as soon as they end.
        if subprocess.run(["umount", at], check=False, **QUIET).returncode:
            subprocess.run(["umount", "-l", at], check=False, **QUIET)

    def mount(self, name, kind, *, what="none", options="", reason=None):
        at = self.path(name)
        os.makedirs(at, exist_ok=True)
        done = run("mount", "-t", kind, *(["-o", options] if options else []), what, at,
                   check=False)
        need(done.returncode == 0, reason or f"{kind} cannot be mounted: {done.stdout.decode()}")
        self.callback(self.unmount, at)
        os.chmod(at, 0o777)
        return at

    def disk(self, name, kind, nbytes=40 << 20, options=""):
        """A file system of its own on a loop device."""
        need_tool(f"mkfs.{kind}")
        image = self.path(f"{name}.image")
        with open(image, "wb") as file:
            file.truncate(nbytes)
        run(f"mkfs.{kind}", "-q", *(["-F"] if kind == "ext4" else []), image)
        return self.mount(name, kind, what=image, options=",".join(filter(None,
                                                                         ["loop", options])))

    def fuse(self, name, of, *options):
        """The folder `of` through FUSE: locks, caches and what is refused are its own."""
        need_tool("bindfs")
        need(os.path.exists("/dev/fuse"), "there is no /dev/fuse")
        at = self.path(name)
        os.makedirs(at, exist_ok=True)
        done = run("bindfs", *options, of, at, check=False)
        need(done.returncode == 0, f"bindfs cannot mount: {done.stdout.decode()}")
        self.callback(self.unmount, at)
        return at

    def overlay(self, name, fill=None):
        """An overlay with its layers on two file systems; fill() is given the lower one."""
        lower = self.mount(f"{name}.lower", "tmpfs", options="size=40m")
        upper = self.mount(f"{name}.upper", "tmpfs", options="size=80m")
        if fill:
            fill(lower)
        for part in ("upper", "work"):
            os.mkdir(os.path.join(upper, part))
            os.chmod(os.path.join(upper, part), 0o777)
        return self.mount(name, "overlay", options=f"lowerdir={lower},upperdir={upper}/upper,"
                                                   f"workdir={upper}/work")


# ---- system calls ----

def traced(words, *expressions):
    """Runs it under strace. Returns its exit code, its stderr and the lines of the trace."""
    need_tool("strace")
    with tempfile.TemporaryDirectory(prefix="berth-trace-") as folder:
        log = os.path.join(folder, "log")
        options = [word for each in expressions for word in ("-e", each)]
        done = subprocess.run(["strace", "-f", "-qq", "-s", "64", "-o", log, *options, *words],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              stdin=subprocess.DEVNULL, check=False, timeout=600)
        with open(log, encoding="utf-8", errors="replace") as file:
            return done.returncode, done.stderr.decode(errors="replace"), file.read().splitlines()


WRITES = re.compile(r"\b(?:p?write(?:64|v|v2)?|fallocate|ftruncate|copy_file_range|sendfile)\((\d+)")


def bytes_written(lines):
    """The lines of a trace that write to a file or take room for it: not to stdout and stderr."""
    return [line for line in lines if (match := WRITES.search(line)) and int(match.group(1)) > 2]
