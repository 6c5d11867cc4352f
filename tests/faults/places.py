# SPDX-License-Identifier: BSD-3-Clause
"""X2, X3, X4, X6, X7, X9: places that are not what a save would like, each really made."""

import concurrent.futures
import contextlib
import fcntl
import os
import select
import signal
import socket
import stat
import subprocess
import time
import unittest

from commands import BERTH, LONG, berth, read
from machine import (TEAM, Place, bytes_written, need, need_root, need_tool, run, setpriv, traced,
                     uid)
from owners import FAST, make_file, sources_in, temporaries, ways

ALICE = uid("alice")


class Scene(unittest.TestCase):
    def setUp(self):
        self.place = Place()
        self.addCleanup(self.place.close)
        self.command = self.place.berth()
        self.sources = sources_in(self.place.make("sources"))

    def ways(self, folder):
        return ways(self.command, self.sources, folder)


# ---- what can be known is refused before the first byte ----

def chattr(flag, *paths):
    done = run("chattr", flag, *paths, check=False)
    need(done.returncode == 0, f"chattr {flag} is not possible here: {done.stdout.decode()}")


# What, who saves, the folder's and the file's mode and flag (None: there is no file), and why not.
REFUSED = [
    ("another's file in a sticky folder", "bob", 0o1777, 0o666, None, None, "sticky|permitted"),
    ("an append-only file", "root", 0o777, 0o644, None, "+a", "append|permitted"),
    ("an immutable file", "root", 0o777, 0o644, None, "+i", "immutable|permitted"),
    ("a file in an append-only folder", "root", 0o777, 0o644, "+a", None, "append|permitted"),
    ("a new file in an append-only folder", "root", 0o777, None, "+a", None, "append|permitted"),
    ("a file in an immutable folder", "root", 0o777, 0o644, "+i", None, "immutable|permitted"),
    ("a new file in an immutable folder", "root", 0o777, None, "+i", None, "immutable|permitted"),
    ("a read-only file", "bob", 0o777, 0o444, None, None, "denied"),
    ("a file that others may only read", "bob", 0o777, 0o644, None, None, "denied"),
    ("a folder that others may only read", "bob", 0o755, 0o666, None, None, "denied"),
    ("a new file in such a folder", "bob", 0o755, None, None, None, "denied"),
]


class RefusedTest(Scene):
    def test_x2_what_can_be_known_is_refused_before_a_byte(self):
        """X2: nothing is written, nothing is left; the error names the file and says why."""
        need_root()
        need_tool("strace", "chattr")
        n_cases = 0
        for i, (what, saver, above, mode, folder_flag, file_flag, why) in enumerate(REFUSED):
            folder = self.place.make(f"{i}")
            os.chmod(folder, above)
            ways_here = self.ways(folder)
            with contextlib.ExitStack() as flags:
                for _, target, _ in ways_here:
                    if mode is not None:
                        make_file(target, ALICE, TEAM, mode)
                    if file_flag:
                        chattr(file_flag, target)
                        flags.callback(run, "chattr", file_flag.replace("+", "-"), target)
                if folder_flag:
                    chattr(folder_flag, folder)
                    flags.callback(run, "chattr", folder_flag.replace("+", "-"), folder)
                for way, target, command in ways_here:
                    with self.subTest(what=what, way=way):
                        before = sorted(os.listdir(folder))
                        code, said, lines = traced([*setpriv(saver), *command])
                        self.assertEqual(code, 2, said)
                        self.assertIn(target, said)
                        self.assertRegex(said, f"(?i){why}")
                        self.assertEqual(bytes_written(lines), [])
                        self.assertEqual(sorted(os.listdir(folder)), before, "left behind")
                        if mode is not None:
                            self.assertEqual(read(target), b"old")
                    n_cases += 1
        print(f"refused before a byte (X2): {n_cases} cases")

    def test_x2_what_only_looks_so_is_saved(self):
        """X2: one's own file in a sticky folder, another's where one owns the folder, and root."""
        need_root()
        for saver, folder_owner in (("alice", 0), ("bob", uid("bob")), ("root", uid("carol"))):
            folder = self.place.make(f"sticky-{saver}")
            os.chown(folder, folder_owner, 0)
            os.chmod(folder, 0o1777)
            for way, target, command in self.ways(folder):
                make_file(target, ALICE, TEAM, 0o666)
                with self.subTest(saver=saver, way=way):
                    run(*setpriv(saver), *command)
                    self.assertNotEqual(read(target), b"old")
                    self.assertEqual(temporaries(folder), [])


# ---- overlays ----

class OverlayTest(Scene):
    """As containers have them, the layers on two file systems."""

    def setUp(self):
        super().setUp()
        need_root()

    def lower(self, folder):
        for _, target, _ in self.ways(folder):
            make_file(target, ALICE, TEAM, 0o640)
        os.mkdir(os.path.join(folder, "below"))
        os.chmod(os.path.join(folder, "below"), 0o777)
        for _, target, _ in self.ways(os.path.join(folder, "below")):
            make_file(target, ALICE, TEAM, 0o640)

    def test_x3_a_file_from_the_lower_layer_is_replaced(self):
        above = self.place.overlay("overlay", self.lower)
        links = self.place.make("links")
        for folder in (above, os.path.join(above, "below")):
            status = os.stat(os.path.join(folder, "model.pt"))
            need(status.st_dev != os.stat(folder).st_dev,
                 "this overlay shows one device for both layers")
            for way, target, command in self.ways(folder):
                for round_ in ("from the lower layer", "from the upper one", "by a link"):
                    with self.subTest(folder=folder, way=way, file=round_):
                        if round_ == "by a link":
                            link = os.path.join(links, os.path.basename(target))
                            with contextlib.suppress(FileNotFoundError):
                                os.remove(link)
                            os.symlink(target, link)
                            command = [word if word != target else link for word in command]
                        run(*command)
                        self.assertEqual(read(target), self.expected(way))
                        found = os.stat(target)
                        self.assertEqual((found.st_uid, found.st_gid, found.st_mode & 0o777),
                                         (ALICE, TEAM, 0o640))
                        self.assertEqual(temporaries(folder), [])

    def expected(self, way):
        """The same command's file in a plain folder."""
        plain = self.place.path("plain")
        if not os.path.isdir(plain):
            os.mkdir(plain)
            for _, _, command in self.ways(plain):
                run(*command)
        return next(read(target) for name, target, _ in self.ways(plain) if name == way)

    def test_x3_what_is_mounted_over_the_name_is_refused(self):
        """X3: a file of the same overlay, of one of its layers, and of another system."""
        above = self.place.overlay("overlay", self.lower)
        other = self.place.mount("other", "tmpfs", options="size=1m")
        over = [os.path.join(above, "over"), os.path.join(other, "over"),
                os.path.join(self.place.path("overlay.upper"), "over")]
        for path in over:
            make_file(path)
        for path in over:
            for way, target, command in self.ways(above):
                run("mount", "--bind", path, target)
                try:
                    with self.subTest(mounted=path, way=way):
                        code, said, lines = traced(command)
                        self.assertEqual(code, 2, said)
                        self.assertIn(target, said)
                        self.assertEqual(bytes_written(lines), [])
                        self.assertEqual(read(path), b"old")
                        self.assertEqual(temporaries(above), [])
                finally:
                    run("umount", target)


# ---- descriptors as paths ----

@contextlib.contextmanager
def descriptor(kind, folder):
    """(descriptor, path of what has a name, what else must stay as it is)."""
    path = os.path.join(folder, f"file, {kind}")
    with contextlib.ExitStack() as stack:
        others = {}
        if kind.startswith("memfd"):
            fd = os.memfd_create("berth", os.MFD_ALLOW_SEALING)
            path = None
        elif kind == "O_TMPFILE":
            fd, path = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600), None
        else:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        stack.callback(os.close, fd)
        os.write(fd, b"old " * (1 << 20 if "longer" in kind else 1))
        for seal in SEALS.get(kind.partition(", sealed: ")[2], []):
            try:
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seal)
            except OSError as failure:  # Linux before 5.1 has no F_SEAL_FUTURE_WRITE
                need(False, f"{kind}: {failure}")
        if "hard link" in kind:
            os.link(path, f"{path}, linked")
            others = {f"{path}, linked": b"old " * (1 << 20 if "longer" in kind else 1)}
        if "unlinked" in kind:
            os.remove(path)
            if "another in its place" in kind:
                others[path] = b"another"
            if "another with the name that is shown" in kind:
                others[f"{path} (deleted)"] = b"another"
            for name, content in others.items():
                if not os.path.exists(name):
                    with open(name, "wb") as file:
                        file.write(content)
            path = None
        yield fd, path, others
        for name, content in others.items():
            found = read(name)
            os.remove(name)
            if found != content:
                raise AssertionError(f"{name} was written to")


SEALS = {"growing": [fcntl.F_SEAL_GROW], "shrinking": [fcntl.F_SEAL_SHRINK],
         "writing": [fcntl.F_SEAL_WRITE], "later writing": [0x10],  # F_SEAL_FUTURE_WRITE
         "shrinking and writing": [fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_WRITE],
         "growing and shrinking": [fcntl.F_SEAL_GROW, fcntl.F_SEAL_SHRINK]}
# Whose bytes are not to be touched; the last: its name is another's now, and it has one more.
NOT_IN_PLACE = [f"memfd{longer}, sealed: {seals}" for seals in SEALS for longer in ("", ", longer")]
NOT_IN_PLACE += ["unlinked, with a hard link", "unlinked, longer, with a hard link",
                 "unlinked, another in its place, with a hard link"]
# Written in place: the descriptor has the bytes.
IN_PLACE = ["memfd", "memfd, longer than the new", "O_TMPFILE", "unlinked", "unlinked, longer",
            "unlinked, another in its place", "unlinked, another with the name that is shown"]
WAYS = ["copy", "to .pt", "to .safetensors"]
SPELLINGS = ["/dev/fd/{}", "/proc/self/fd/{}"]


class DescriptorTest(Scene):
    def setUp(self):
        super().setUp()
        self.folder = self.place.make("descriptors")
        self.expected = {}
        plain = self.place.make("plain")
        for way, target, command in self.ways(plain):
            run(*command)
            self.expected[way] = read(target)

    def ways_to(self, path):
        """The same commands to this path; convert takes the format from a name: that of a link."""
        for way, target, command in self.ways("/nowhere"):
            to = path
            if way != "copy":
                to = self.place.path(os.path.basename(target))
                with contextlib.suppress(FileNotFoundError):
                    os.remove(to)
                os.symlink(path, to)
            yield way, [to if word == target else word for word in command]

    @staticmethod
    def target_of(words):
        """What the command line says, and so what an error names."""
        return words[words.index("--set") - 1]

    def run_with(self, fd, words):
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, pass_fds=[fd], check=False,
                              cwd=self.folder, timeout=600)

    def around(self):
        """Every folder where something could be left; in those of all, by names that it would have."""
        found = {folder: set(os.listdir(folder)) for folder in (self.folder, self.place.folder)}
        for folder in ("/", "/dev", "/dev/shm", "/proc/self/fd"):
            found[folder] = {name for name in os.listdir(folder)
                             if name.startswith((".berth-", "memfd:", "#")) or "(" in name}
        return found

    def test_x4_what_has_no_name_is_written_in_place(self):
        n_cases = 0
        for kind in IN_PLACE:
            for spelling in SPELLINGS:
                for way in WAYS:
                    with self.subTest(kind=kind, path=spelling, way=way), \
                            descriptor(kind, self.folder) as (fd, _, _):
                        words = dict(self.ways_to(spelling.format(fd)))[way]
                        before = self.around()
                        done = self.run_with(fd, words)
                        self.assertEqual(self.around(), before, "a stray file")
                        self.assertEqual(done.returncode, 0, done.stdout)
                        size = os.fstat(fd).st_size
                        self.assertEqual(os.pread(fd, size, 0), self.expected[way])
                    n_cases += 1
        print(f"written in place (X4): {n_cases} cases")

    def test_x4_what_cannot_be_written_in_place_is_no_success(self):
        for kind, flags in (*((kind, None) for kind in NOT_IN_PLACE), ("unlinked", os.O_RDONLY)):
            for way in WAYS:
                with self.subTest(kind=kind, way=way), descriptor(kind, self.folder) as (fd, _, _):
                    given, words = fd, []
                    if flags is not None:  # the same file as somebody who may not write it
                        need_root()
                        os.fchmod(fd, 0o444)
                        given = os.open(f"/proc/self/fd/{fd}", flags)
                        words = setpriv("bob")
                    words += dict(self.ways_to(f"/dev/fd/{given}"))[way]
                    before, old = self.around(), os.pread(fd, 1 << 23, 0)
                    done = self.run_with(given, words)
                    self.assertEqual(done.returncode, 2, done.stdout)
                    self.assertIn(self.target_of(words), done.stdout.decode())
                    self.assertTrue(os.pread(fd, 1 << 23, 0) == old, "its bytes are not the same")
                    self.assertEqual(self.around(), before, "a stray file")
                    if given != fd:
                        os.close(given)

    def test_x4_what_is_read_is_not_written_in_place(self):
        """X4: the old bytes would be gone before the new ones are there."""
        content = read(self.sources[0])
        link = self.place.path("source.pt")
        for kind, spelling in ((kind, path) for kind in IN_PLACE for path in SPELLINGS):
            for words in (["copy"], ["copy", "--set", "save.byteorder=big"], ["convert"]):
                with self.subTest(kind=kind, path=spelling, command=words), \
                        descriptor(kind, self.folder) as (fd, _, _):
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, content, 0)
                    with contextlib.suppress(FileNotFoundError):
                        os.remove(link)
                    os.symlink(spelling.format(fd), link)
                    before = self.around()
                    done = self.run_with(fd, [self.command, *words, f"/dev/fd/{fd}", link])
                    self.assertEqual(done.returncode, 2, done.stdout)
                    self.assertIn(link, done.stdout.decode())
                    self.assertEqual(os.pread(fd, os.fstat(fd).st_size, 0), content)
                    self.assertEqual(self.around(), before, "a stray file")
        run(self.command, "copy", self.sources[0], self.sources[0])  # which has a name
        berth("verify", self.sources[0])

    def test_x4_what_has_a_name_is_replaced(self):
        for spelling in SPELLINGS:
            for way in WAYS:
                with self.subTest(path=spelling, way=way), \
                        descriptor("with a name", self.folder) as (fd, path, _):
                    done = self.run_with(fd, dict(self.ways_to(spelling.format(fd)))[way])
                    self.assertEqual(done.returncode, 0, done.stdout)
                    self.assertEqual(read(path), self.expected[way])
                    self.assertEqual(os.pread(fd, 100, 0), b"old ")
                    self.assertEqual(os.listdir(self.folder), [os.path.basename(path)])
                    os.remove(path)

    def test_x4_pipes_and_the_like_are_refused(self):
        ends = list(os.pipe())
        pair = socket.socketpair()
        self.addCleanup(lambda: [each.close() for each in pair])
        null = os.open("/dev/null", os.O_RDWR)
        folder = os.open(self.folder, os.O_RDONLY)
        poll = select.epoll()
        self.addCleanup(poll.close)
        fds = {"pipe": ends[1], "socket": pair[0].fileno(), "device": null, "folder": folder,
               "epoll": poll.fileno()}
        self.addCleanup(lambda: [os.close(each) for each in (*ends, null, folder)])
        for (kind, fd), spelling in ((each, path) for each in fds.items() for path in SPELLINGS):
            for way, words in self.ways_to(spelling.format(fd)):
                with self.subTest(kind=kind, path=spelling, way=way):
                    before = self.around()
                    done = self.run_with(fd, words)
                    self.assertEqual(done.returncode, 2, done.stdout)
                    self.assertIn(self.target_of(words), done.stdout.decode())
                    self.assertEqual(self.around(), before, "a stray file")
        self.assertEqual(select.select([ends[0]], [], [], 0)[0], [], "the pipe got bytes")

    def test_x4_a_closed_descriptor_is_no_file(self):
        """X4: and a save needs none of the standard ones, which its own files are then given."""
        fd = 200
        for spelling in SPELLINGS:
            for way, words in self.ways_to(spelling.format(fd)):
                with self.subTest(path=spelling, way=way):
                    self.assertEqual(subprocess.run(words, check=False, stderr=subprocess.DEVNULL,
                                                    stdout=subprocess.DEVNULL).returncode, 2)
        for way, target, command in self.ways(self.folder):
            with self.subTest(closed="all three", way=way):
                subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command], check=True)
                self.assertEqual(read(target), self.expected[way])


# ---- file systems that lack something ----

class LackingTest(Scene):
    def test_x6_neither_locks_nor_attributes_are_needed(self):
        """X6: a save there says nothing; what a kill left there is told as unknown."""
        need_root()
        places = [("no attributes", self.place.fuse("no-xattr", self.place.make("behind-1"),
                                                    "--xattr-none")),
                  ("attributes that are read only",
                   self.place.fuse("xattr-ro", self.place.make("behind-2"), "--xattr-ro")),
                  ("tmpfs", self.place.mount("tmpfs", "tmpfs", options="size=40m")),
                  ("ramfs", self.place.mount("ramfs", "ramfs")),
                  ("here", self.place.make("here"))]
        for name, folder in places:
            for way, target, command in self.ways(folder):
                for round_ in ("new", "replaced"):
                    with self.subTest(place=name, way=way, file=round_):
                        self.assertEqual(run(*command).stdout.splitlines()[1:], [])
                        self.assertEqual(temporaries(folder), [])
                with self.subTest(place=name, way=way, file="locks fail"):
                    code, said, _ = traced(command, "trace=flock,fcntl",
                                           "inject=flock:error=ENOLCK")
                    self.assertEqual((code, said), (0, ""))
                with self.subTest(place=name, way=way, file="attributes fail"):
                    calls = "fsetxattr,setxattr,lsetxattr,fgetxattr,getxattr,lgetxattr"
                    lists = "flistxattr,listxattr,llistxattr"
                    code, said, _ = traced(command, f"trace={calls},{lists}",
                                           f"inject={calls},{lists}:error=EOPNOTSUPP")
                    self.assertEqual((code, said), (0, ""))
                    self.assertEqual(temporaries(folder), [])


# ---- one way for every format ----

class BesideTest(Scene):
    def test_x7_conversions_beside_saves_in_one_folder_never_fail(self):
        """X7: and what they write is no more readable than what it replaces."""
        need_root()
        folder = self.place.make("beside")
        _, target, command = self.ways(self.place.make("plain"))[2]
        run(*command)
        whole = read(target)
        until = time.monotonic() + (60 if LONG else 4)
        stop = os.path.join(self.place.folder, "stop")
        watcher = subprocess.Popen([*setpriv("frank"), "/usr/bin/env", "-i", "/bin/sh", "-c", f'''
            n=0; while [ ! -e {stop} ]; do
                for name in {folder}/.berth-*; do
                    if [ -e "$name" ]; then
                        n=$((n + 1)); if (exec 3<"$name") 2>/dev/null; then echo "opened $name"; fi
                    fi
                done
            done; echo "tried $n"'''], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

        def saves(index):
            done = failed = 0
            said = ""
            while time.monotonic() < until:
                way, target, command = self.ways(folder)[index % 3]
                own = target.replace("/beside/", f"/beside/{index}-" if index >= 3 else "/beside/")
                ended = subprocess.run([own if word == target else word for word in command],
                                       check=False, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
                done += 1
                if ended.returncode:
                    failed += 1
                    said = f"{way}: {ended.stderr.decode()}"
            return done, failed, said

        try:
            for index in range(9):
                _, target, _ = self.ways(folder)[index % 3]
                make_file(target.replace("/beside/", f"/beside/{index}-" if index >= 3
                                         else "/beside/"), mode=0o600)
            with concurrent.futures.ThreadPoolExecutor(9) as pool:
                found = list(pool.map(saves, range(9)))
        finally:
            with open(stop, "wb"):
                pass
            told = watcher.communicate(timeout=30)[0].decode()
        n_saves, n_failed = sum(each[0] for each in found), sum(each[1] for each in found)
        print(f"saves and conversions beside each other (X7): {n_saves}, failed: {n_failed}; "
              f"{told.splitlines()[-1]} to open a temporary")
        self.assertEqual(n_failed, 0, [each[2] for each in found if each[2]][:3])
        self.assertNotIn("opened", told)
        self.assertGreater(n_saves, 150)
        self.assertEqual(temporaries(folder), [])
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
            if name.endswith(".pt"):  # its records are named after it
                berth("verify", path)
            else:
                self.assertEqual(read(path), whole, f"{name} is not whole")


# ---- leases ----

HELD = 0.4


class LeaseTest(Scene):
    @contextlib.contextmanager
    def leased(self, path):
        """Another process has the lease; asked for it, gives it up after a moment."""
        end, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                asked = []
                signal.signal(signal.SIGIO, lambda *_: asked.append(True))
                fd = os.open(path, os.O_RDWR)
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                os.write(told, b"+")
                until = time.monotonic() + 30
                while not asked and time.monotonic() < until:
                    time.sleep(0.01)
                time.sleep(HELD)
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
                os.write(told, b"given up" if asked else b"never asked")
            finally:
                os._exit(0)
        os.close(told)
        with os.fdopen(end, "rb", 0) as answers:
            try:
                need(answers.read(1) == b"+", "no lease can be taken here")
                yield answers
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def test_x9_a_lease_is_waited_for(self):
        """X9: by every command that opens the file, and by a library that maps it."""
        source = self.sources[0]
        converted = self.place.path("converted.pt")
        waits = [["ls", source], ["verify", source], ["info", source],
                 ["cat", source, "model.head.weight"], ["copy", source, converted],
                 ["convert", self.sources[1], converted], ["diff", source, source],
                 ["ls", "--set", "load.method=read", source],
                 ["verify", "--set", "load.method=direct", source]]
        for words in waits:
            leased = self.sources[1] if "convert" in words else source
            with self.subTest(command=words), self.leased(leased) as answers:
                began = time.monotonic()
                done = subprocess.run([BERTH, *words], stdout=subprocess.DEVNULL,
                                      stderr=subprocess.PIPE, check=False, timeout=600)
                took = time.monotonic() - began
                self.assertEqual((done.returncode, done.stderr), (0, b""))
                self.assertEqual(answers.read(20), b"given up")
                self.assertGreaterEqual(took, HELD * 0.9)
                self.assertLess(took, 10)
        print(f"leases waited for (X9): {len(waits)}")

    def test_x9_a_leased_file_is_replaced(self):
        for way, target, command in self.ways(self.place.make("leased")):
            make_file(target, mode=0o600)
            with self.subTest(way=way), self.leased(target):
                run(*command)
                self.assertNotEqual(read(target), b"old")

    def test_x9_a_lease_that_is_never_given_up_is_broken_by_the_kernel(self):
        """X9: after /proc/sys/fs/lease-break-time seconds."""
        most = int(read("/proc/sys/fs/lease-break-time"))
        if not LONG and most > 5:
            self.skipTest(f"takes {most} s: BERTH_LONG=1")
        global HELD
        held, HELD = HELD, most + 20
        try:
            with self.leased(self.sources[0]):
                began = time.monotonic()
                berth("verify", self.sources[0])
                self.assertLess(time.monotonic() - began, most + 10)
        finally:
            HELD = held


