# SPDX-License-Identifier: BSD-3-Clause
"""X1: a replacement is never open to anyone who could not open the old file.

Real users try it: each opens the file for reading and for writing before and after a save, and
every temporary while saves run.
"""

import contextlib
import ctypes
import itertools
import os
import re
import subprocess
import tempfile
import time
import unittest

from commands import LONG, berth, make_sources, read
from machine import (EXTRA, STAFF, TEAM, USERS, Place, Users, acl, bytes_written, get_acl,
                     has_acl, need, need_root, need_tool, remove_acl, set_acl, setpriv, traced, uid)

ALICE, BOB, CAROL, ERIN = (uid(name) for name in ("alice", "bob", "carol", "erin"))
FAST = ["--set", "save.durability=none"]


def sources_in(folder):
    """A checkpoint, tensors, and a checkpoint of nothing but tensors, of which all is converted."""
    _, checkpoint, tensors = make_sources(folder)
    lone = os.path.join(folder, "lone.pt")
    berth("convert", tensors, lone)
    return checkpoint, tensors, lone


def ways(command, sources, folder):
    """The commands that replace a file: (what, where, command line)."""
    checkpoint, tensors, lone = sources
    model, converted, plain = (os.path.join(folder, name) for name in
                               ("model.pt", "converted.pt", "model.safetensors"))
    return [("copy", model, [command, "copy", checkpoint, model, *FAST]),
            ("to .pt", converted, [command, "convert", tensors, converted, *FAST]),
            ("to .safetensors", plain,
             [command, "convert", lone, plain, *FAST])]


def make_file(path, owner=-1, group=-1, mode=0o644, entries=None):
    """An old file, with exactly these rights."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
    with open(path, "wb") as file:
        file.write(b"old")
    remove_acl(path)
    os.chown(path, owner, group)
    if entries:
        set_acl(path, acl(**entries))
    else:
        os.chmod(path, mode)


def state(path):
    """Owner, group, mode and ACL."""
    status = os.stat(path)
    return status.st_uid, status.st_gid, status.st_mode & 0o7777, get_acl(path)


def owned_by(number):
    return next(name for name in USERS if uid(name) == number)


def temporaries(folder):
    return [name for name in os.listdir(folder) if name.startswith(".berth-")]


class Scene(unittest.TestCase):
    """A folder that every user may use, with sources that every user may read."""

    @classmethod
    def setUpClass(cls):
        if os.geteuid():
            return  # setUp says so
        cls.place = Place()
        cls.addClassCleanup(cls.place.close)
        cls.command = cls.place.berth()
        cls.sources = sources_in(cls.place.make("sources"))
        cls.users = Users()
        cls.addClassCleanup(cls.users.close)

    def setUp(self):
        need_root()
        need(has_acl(self.place.folder), "no ACLs where temporary files go")
        self.wrong = []

    def tearDown(self):
        # Of hundreds of cases the first few tell enough.
        if self.wrong:
            self.fail(f"{len(self.wrong)} cases:\n" + "\n".join(self.wrong[:8]))

    @contextlib.contextmanager
    def case(self, **what):
        try:
            yield
        except (AssertionError, OSError) as failure:
            lines = str(failure).splitlines()
            self.wrong.append(f"{what}: {' '.join(lines)[:600]}")

    def ways(self, folder):
        return ways(self.command, self.sources, folder)

    def saved(self, done, target):
        self.assertEqual(done[0], 0, done[1])
        self.assertNotEqual(read(target), b"old", "told to be saved")
        self.assertEqual(temporaries(os.path.dirname(target)), [])


# ---- by name: what exactly is carried over ----

# An old file, who saves, what is then there (None: either); whether something is said.
EXACT = [
    ("root leaves it alice's", "root", (ALICE, TEAM, 0o640, None),
     (ALICE, TEAM, 0o640, None), False),
    ("root leaves bits that shut its owner out", "root", (ALICE, TEAM, 0o066, None),
     (ALICE, TEAM, 0o066, None), False),
    ("alice saves her own", "alice", (ALICE, ALICE, 0o604, None),
     (ALICE, ALICE, 0o604, None), False),
    ("set-id bits go, for root", "root", (ALICE, TEAM, 0o6775, None),
     (ALICE, TEAM, 0o775, None), None),
    ("set-id bits go, for the owner", "bob", (BOB, TEAM, 0o6775, None),
     (BOB, TEAM, 0o775, None), None),
    ("bob cannot give it to alice: she gets an entry", "bob", (ALICE, TEAM, 0o660, None),
     (BOB, TEAM, 0o660, {("user", None): 6, ("u", ALICE): 6, ("group", None): 6, ("mask", None): 6,
                         ("other", None): 0}), None),
    ("the mask does not widen the team", "bob", (ALICE, TEAM, 0o620, None),
     (BOB, TEAM, 0o660, {("user", None): 6, ("u", ALICE): 6, ("group", None): 2, ("mask", None): 6,
                         ("other", None): 0}), None),
    ("carol is in another group: the team gets an entry", "carol", (ALICE, TEAM, 0o646, None),
     (CAROL, STAFF, None, {("user", None): None, ("u", ALICE): 6, ("group", None): 4,
                           ("g", TEAM): 4, ("mask", None): 6, ("other", None): None}), None),
    ("an ACL, by root", "root",
     (ALICE, TEAM, None, {"user": 6, "u": {ERIN: 4, BOB: 6}, "group": 4, "g": {EXTRA: 2}, "mask": 6,
                          "other": 4}), "same", False),
    ("an ACL with a mask that closes it, by root", "root",
     (ALICE, TEAM, None, {"user": 6, "u": {ERIN: 6}, "group": 6, "g": {EXTRA: 6}, "mask": 0,
                          "other": 0}), "same", False),
    ("an ACL, by its owner", "bob",
     (BOB, TEAM, None, {"user": 6, "u": {ERIN: 4}, "group": 6, "mask": 4, "other": 0}),
     "same", False),
]

FOLDERS = ["plain", "setgid", "default ACL"]
WIDE = {"user": 7, "u": {uid("frank"): 7}, "group": 7, "g": {EXTRA: 7}, "mask": 7, "other": 7}


def make_folder(above, kind):
    folder = tempfile.mkdtemp(prefix=kind.replace(" ", "-") + "-", dir=above)
    if kind == "setgid":
        os.chown(folder, 0, STAFF)
    os.chmod(folder, {"setgid": 0o2777, "sticky": 0o1777}.get(kind, 0o777))
    if kind == "default ACL":
        set_acl(folder, acl(**WIDE), "default")
    return folder


class CarriedTest(Scene):
    def test_x1_what_is_carried_over_is_exactly_this(self):
        """X1: in each kind of folder, by each command, with every umask."""
        n_cases = 0
        for kind in FOLDERS:
            folder = make_folder(self.place.folder, kind)
            for umask, each in itertools.product((0, 0o077), EXACT):
                what, saver, old, new, said = each
                for way, target, command in self.ways(folder):
                    with self.case(what=what, folder=kind, way=way, umask=oct(umask)):
                        self.check(saver, target, command, old, new, said, umask)
                    n_cases += 1
        print(f"carried over exactly (X1): {n_cases} cases")

    def check(self, saver, target, command, old, new, said, umask):
        owner, group, mode, entries = old
        make_file(target, owner, group, mode, entries)
        before, was = self.users.rights(target), state(target)
        done = self.users.run(saver, *command, umask=umask)
        self.saved(done, target)
        after = self.users.rights(target)
        found = state(target)
        wanted = was if new == "same" else new
        for have, want in zip(found[:3], wanted[:3]):
            self.assertEqual(have, have if want is None else want, (found, wanted))
        if wanted[3] is None:
            self.assertIsNone(found[3])
        else:
            self.assertEqual(set(found[3] or {}), set(wanted[3]), found[3])
            for entry, bits in wanted[3].items():
                self.assertIn(bits, (None, found[3][entry]), (entry, found[3]))
        for name in USERS:
            if name != saver:
                self.assertLessEqual(after[name], before[name], name)
        self.assertGreaterEqual(after[owned_by(owner)], before[owned_by(owner)])
        if said is not None:
            self.assertEqual(bool(done[1]), said, done[1])

    def test_x1_a_file_without_a_predecessor_is_made_as_any_file(self):
        """X1: compared with one that open(2) makes there."""
        for kind in FOLDERS:
            folder = make_folder(self.place.folder, kind)
            for umask in (0, 0o022, 0o077):
                for way, target, command in self.ways(folder):
                    plain = os.path.join(folder, "as any file")
                    for path in (target, plain):
                        with contextlib.suppress(FileNotFoundError):
                            os.remove(path)
                    done = self.users.run("bob", *command, umask=umask)
                    with self.case(folder=kind, way=way, umask=oct(umask)):
                        self.saved(done, target)
                        made = self.users.run("bob", "sh", "-c", f"umask {umask:o}; : >'{plain}'")
                        self.assertEqual(made[0], 0, made)
                        self.assertEqual(state(target), state(plain))

    def test_x1_labels_and_attributes_stay_stale_sums_go(self):
        folder = self.place.make("attributes")
        kept = {"user.note": b"kept", "user.mime_type": b"a/b", "security.selinux": b"u:r:t:s0\0"}
        stale = {"user.shatag.sha256": b"1", "user.checksum.md5": b"2", "user.hash.blake3": b"3",
                 "security.capability": bytes.fromhex("0100000200000000200000000000000000000000")}
        for way, target, command in self.ways(folder):
            make_file(target, ALICE, TEAM, 0o644)
            for name, value in {**kept, **stale}.items():
                try:
                    os.setxattr(target, name, value)
                except OSError as failure:
                    need(False, f"{name} cannot be set here: {failure}")
            done = self.users.run("root", *command)
            with self.case(way=way):
                self.saved(done, target)
                found = {name: os.getxattr(target, name) for name in os.listxattr(target)}
                self.assertEqual(found, kept)

    def test_x1_rights_are_set_before_the_first_byte(self):
        folder = self.place.make("order")
        sets = re.compile(r"\b(fchown|fchownat|fchmod|fchmodat|chmod|chown|f?l?setxattr|"
                          r"fremovexattr)\(")
        for way, target, command in self.ways(folder):
            make_file(target, ALICE, TEAM, entries={"user": 6, "u": {ERIN: 4}, "group": 4,
                                                    "mask": 4, "other": 0})
            os.setxattr(target, "user.note", b"kept")
            code, said, lines = traced(command)
            with self.case(way=way):
                self.saved((code, said), target)
                first = lines.index(bytes_written(lines)[0])
                setters = [i for i, line in enumerate(lines) if sets.search(line) and
                           '"user.berth.owner"' not in line]  # that says whose temporary it is
                self.assertGreaterEqual(len(setters), 3, "owner, ACL, attribute")
                self.assertLess(max(setters), first, lines[max(setters)])


# ---- what locks the old owner out is refused ----

class WithoutAclTest(Scene):
    """Where no ACL can be kept."""

    def places(self):
        yield "ramfs", self.place.mount("ramfs", "ramfs")
        for name, options in (("fuse", []), ("fuse-no-xattr", ["--xattr-none"])):
            behind = self.place.make(f"behind-{name}")
            yield name, self.place.fuse(name, behind, *options)

    def test_x1_an_owner_is_never_locked_out(self):
        """X1: (mode, whether alice, who is not in the team, has as much by the other bits)."""
        n_cases = 0
        for name, folder in self.places():
            for (mode, enough), (way, target, command) in itertools.product(
                    [(0o660, False), (0o664, False), (0o666, True), (0o466, True), (0o062, True),
                     (0o620, False)], self.ways(folder)):
                make_file(target, ALICE, TEAM, mode)
                before = self.users.rights(target)
                code, said, lines = traced([*setpriv("bob"), *command], "trace=%desc,%file")
                after = self.users.rights(target)
                with self.case(place=name, mode=oct(mode), way=way):
                    self.assertEqual(temporaries(folder), [])
                    self.assertGreaterEqual(after["alice"], before["alice"], said)
                    for user in USERS:
                        if user != "bob":
                            self.assertLessEqual(after[user], before[user], user)
                    if code == 0:
                        self.assertNotEqual(read(target), b"old")
                    else:
                        self.assertIn(target, said)
                        self.assertEqual(bytes_written(lines), [])
                        self.assertEqual(read(target), b"old")
                        self.assertEqual(after, before)
                    self.assertEqual(code == 0, enough, said)
                n_cases += 1
        print(f"owners without ACLs (X1): {n_cases} cases")

    def test_x1_equal_modes_and_owners_are_not_set_again(self):
        """X1: a file system that refuses to set them takes saves."""
        behind = self.place.make("denied")
        folder = self.place.fuse("denies", behind, "--chmod-deny", "--chown-deny", "--chgrp-deny")
        for mode, umask in itertools.product((0o600, 0o644, 0o660), (0o022, 0o077, 0)):
            for way, target, command in self.ways(folder):
                real = os.path.join(behind, os.path.basename(target))
                make_file(real, 0, 0, mode)
                before = self.users.rights(target)
                done = self.users.run("root", *command, umask=umask)
                after = self.users.rights(target)
                with self.case(mode=oct(mode), umask=oct(umask), way=way):
                    self.saved(done, target)
                    for user in USERS:
                        self.assertLessEqual(after[user], before[user], user)
                    if after != before:
                        self.assertTrue(done[1], "narrower, and nothing is said")
                    if mode == 0o600:
                        self.assertEqual((os.stat(target).st_mode & 0o777, done[1]), (mode, ""))


# ---- the matrix ----

MODES = [0o600, 0o640, 0o660, 0o644, 0o664, 0o666, 0o606, 0o626, 0o460, 0o646]
OWNERS = [(ALICE, TEAM), (0, TEAM), (BOB, TEAM), (ALICE, STAFF), (0, 0)]
ENTRIES = [
    None,
    {"u": {ERIN: 6}, "g": {EXTRA: 4}, "mask": 6},
    {"u": {ERIN: 6, BOB: 6, CAROL: 2}, "g": {EXTRA: 6, STAFF: 4}, "mask": 6},
    {"u": {ERIN: 6, BOB: 6, CAROL: 6}, "mask": 2},
    {"u": {ERIN: 6, BOB: 4}, "g": {EXTRA: 6}, "mask": 0},  # Linux looks at no such ACL
    {"u": {ALICE: 2, BOB: 0, CAROL: 6}, "g": {TEAM: 6}, "mask": 7},
]
SAVERS = ["root", "alice", "bob", "carol"]


class MatrixTest(Scene):
    """Every saver x owner x mode x ACL x folder: nobody gains, no owner loses."""

    LEAST = 4800 if LONG else 600

    def setUp(self):
        super().setUp()
        self.n = {"cases": 0, "saved": 0, "refused": 0, "refused for the owner's sake": 0,
                  "narrower": 0, "rights widened": 0, "owners locked out": 0}

    def tried(self, name, folder, kind, acls, step):
        """Those of the matrix that are this form's, each by the next command."""
        ways_here = self.ways(folder)
        every = itertools.product(SAVERS, OWNERS, MODES, ENTRIES if acls else ENTRIES[:1])
        for i, each in enumerate(every):
            if i % step:
                continue
            way, target, command = ways_here[i // step % 3]
            with self.case(place=name, folder=kind, way=way, saver=each[0],
                              old=(*each[1], oct(each[2]), each[3])):
                self.check(target, command, kind, *each)

    def check(self, target, command, kind, saver, owner, mode, entries):
        if entries:
            entries = {**entries, "user": mode >> 6 & 6, "group": mode >> 3 & 6, "other": mode & 6}
        make_file(target, *owner, mode, entries)
        before, was = self.users.rights(target), state(target)
        done = self.users.run(saver, *command, umask=0 if mode & 4 else 0o022)
        after = self.users.rights(target)
        owner_name = owned_by(owner[0])
        self.n["cases"] += 1
        may = "w" in before[saver] and (kind != "sticky" or saver in ("root", owner_name))
        self.assertEqual(temporaries(os.path.dirname(target)), [])
        if done[0] != 0:
            self.n["refused"] += 1
            self.assertEqual((read(target), state(target)), (b"old", was), "refused, but changed")
            self.assertIn(target, done[1])
            if may:
                self.n["refused for the owner's sake"] += 1
                self.assertNotIn(saver, ("root", owner_name), done[1])
            return
        self.n["saved"] += 1
        self.assertTrue(may, f"who may not write it has replaced it: {before}")
        self.assertNotEqual(read(target), b"old")
        gained = {name: after[name] - before[name] for name in USERS
                  if name != saver and after[name] - before[name]}
        lost = {name: before[name] - after[name] for name in USERS if before[name] - after[name]}
        self.n["rights widened"] += len(gained)
        self.n["owners locked out"] += owner_name in lost
        self.n["narrower"] += bool(lost)
        self.assertEqual(gained, {}, f"rights widened: {was} {state(target)}")
        self.assertNotIn(owner_name, lost, f"locked out: {was} {state(target)}")
        if lost:
            self.assertTrue(done[1], f"narrower, and nothing is said: {lost}")
        if saver == "root":
            self.assertEqual((state(target), done[1]), (was, ""))

    def told(self, what):
        print(f"rights before and after (X1), {what}: " +
              ", ".join(f"{value} {name}" for name, value in self.n.items()))

    def test_x1_nobody_gains_and_no_owner_loses(self):
        for kind in [*FOLDERS, "sticky"]:
            self.tried("here", make_folder(self.place.folder, kind), kind, True, 1 if LONG else 7)
        self.told("here")
        self.assertGreaterEqual(self.n["cases"], self.LEAST)
        self.assertGreaterEqual(self.n["saved"], self.LEAST // 4)
        self.assertLess(self.n["refused for the owner's sake"], self.n["saved"] // 20)

    def test_x1_nor_on_other_file_systems(self):
        """X1: FUSE shows a mode whose group bits are the mask, and looks at no ACL."""
        step = 2 if LONG else 13
        kinds = {"tmpfs": lambda: self.place.mount("tmpfs", "tmpfs", options="size=40m"),
                 "ramfs": lambda: self.place.mount("ramfs", "ramfs"),
                 "overlay": lambda: self.place.overlay("overlay"),
                 "ext4": lambda: self.place.disk("ext4", "ext4"),
                 "fuse": lambda: self.place.fuse("fuse", self.place.make("behind")),
                 "fuse without attributes":
                     lambda: self.place.fuse("bare", self.place.make("behind-bare"),
                                             "--xattr-none")}
        if LONG:
            kinds["xfs"] = lambda: self.place.disk("xfs", "xfs", 320 << 20)
        for name, make in kinds.items():
            above = make()
            folder = os.path.join(above, "folder")
            os.mkdir(folder)
            os.chmod(folder, 0o777)
            # Through FUSE the kernel looks at no ACL: files with one are no fair start.
            self.tried(name, folder, "plain", has_acl(folder) and "fuse" not in name, step)
        self.told("elsewhere")


# ---- in a user namespace ----

class NamespaceTest(Scene):
    """Rootless containers: owners and groups from outside are all shown as 65534, which is also
    somebody's number inside."""

    # Root inside is bob outside; all others inside are numbers that nobody has outside.
    MAPS = f"0 {BOB} 1\n1 100000 65535\n"
    INSIDE = 100000 + 65534 - 1

    def in_namespace(self, command):
        """Runs it as root of a namespace of bob's, in bob's groups."""
        end, begin = os.pipe()
        ready, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([BOB, TEAM])
                os.setresgid(BOB, BOB, BOB)
                os.setresuid(BOB, BOB, BOB)
                if ctypes.CDLL(None).unshare(0x10000000):  # CLONE_NEWUSER
                    os._exit(77)
                os.write(told, b"+")
                os.read(end, 1)
                os.dup2(told, 2)
                os.execv(command[0], command)
            finally:
                os._exit(76)
        os.close(told)
        allowed = os.read(ready, 1)
        if allowed:
            for name in ("uid_map", "gid_map"):
                with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                    file.write(self.MAPS)
        os.write(begin, b"+")
        with os.fdopen(ready) as file:
            said = file.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(begin)
        os.close(end)
        need(allowed, "no user namespaces")
        return code, said

    def test_x1_nobody_inside_is_nobody_from_outside(self):
        folder = make_folder(self.place.folder, "plain")
        n_cases = 0
        for owner, mode in itertools.product((ALICE, BOB), (0o660, 0o664, 0o666, 0o640, 0o646)):
            for way, target, command in self.ways(folder):
                make_file(target, owner, TEAM, mode)
                before, was = self.users.rights(target), state(target)
                code, said = self.in_namespace(command)
                after = self.users.rights(target)
                with self.case(old=(owner, oct(mode)), way=way):
                    for name in USERS:
                        if name not in ("bob", "root"):
                            self.assertLessEqual(after[name], before[name], (was, state(target)))
                    self.assertGreaterEqual(after[owned_by(owner)], before[owned_by(owner)],
                                            (was, state(target), said))
                    owners, group, mode_now, entries = state(target)
                    self.assertNotIn(self.INSIDE, (owners, group), "given to nobody of inside")
                    self.assertNotIn(("u", self.INSIDE), entries or {})
                    self.assertNotIn(("g", self.INSIDE), entries or {})
                    if after != before:
                        self.assertTrue(said, "narrower, and nothing is said")
                    if code:
                        self.assertIn(target, said)
                        self.assertEqual((read(target), state(target)), (b"old", was))
                    elif "w" not in before["bob"]:
                        self.fail("replaced by one who may not write it")
                n_cases += 1
        sticky = make_folder(self.place.folder, "sticky")
        for way, target, command in self.ways(sticky):
            make_file(target, ALICE, TEAM, 0o666)
            with self.case(folder="sticky", way=way):  # X2: root inside is not root to that file
                code, said = self.in_namespace(command)
                self.assertEqual((code, read(target)), (2, b"old"))
                self.assertIn("folder is sticky", said)
                self.assertEqual(temporaries(sticky), [])
            n_cases += 1
        print(f"files from outside a user namespace (X1): {n_cases} cases")


# ---- while it is being saved ----

# What a save calls between making its temporary and giving it its name.
SLOWED = ("openat,fstat,newfstatat,statx,fchown,fchownat,fchmod,fchmodat,fsetxattr,setxattr,"
          "lsetxattr,fgetxattr,getxattr,fremovexattr,fallocate,ftruncate,pwrite64,write,fsync,"
          "linkat,rename,renameat,renameat2,unlinkat")


class WatchTest(Scene):
    """Users who may not open the old file try every temporary, as saves are slowed down."""

    # Who saves an old file, and who watches: nobody's friend, one whom the folder's default ACL
    # names, one of the team where that may not open it.
    OLD = [("root", (ALICE, ALICE, 0o600, None), ["frank", "gina", "dave"]),
           ("bob", (ALICE, TEAM, 0o660, None), ["frank", "gina", "hal"]),
           ("alice", (ALICE, ALICE, None,
                      {"user": 6, "u": {ERIN: 6}, "group": 6, "mask": 6, "other": 0}),
            ["frank", "gina", "dave"])]

    def watch(self, name, folder, until, told):
        """In a process of its own, as that user: tries all that begins like a temporary."""
        number, groups = USERS[name]
        os.setgroups(groups)
        os.setresgid(*[groups[0]] * 3)
        os.setresuid(*[number] * 3)
        n_tries = n_opened = 0
        seen = set()
        while time.monotonic() < until and not os.path.exists(os.path.join(folder, "stop")):
            for entry in os.listdir(folder):
                if not entry.startswith(".berth-"):
                    continue
                for flags in (os.O_RDONLY, os.O_WRONLY):
                    try:
                        os.close(os.open(os.path.join(folder, entry), flags | os.O_NONBLOCK))
                        n_opened += 1
                        seen.add(entry)
                    except FileNotFoundError:
                        continue
                    except OSError:
                        pass
                    n_tries += 1
        os.write(told, f"{n_tries} {n_opened} {sorted(seen)}\n".encode())
        os._exit(0)

    def watched(self, folder, watching, saves):
        """Runs saves() while they watch. Returns how often they tried, and how often it opened."""
        children, ends = [], []
        for name in watching:
            end, told = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    self.watch(name, folder, time.monotonic() + 120, told)
                finally:
                    os._exit(1)
            os.close(told)
            children.append(pid)
            ends.append(end)
        try:
            saves()
        finally:
            with open(os.path.join(folder, "stop"), "wb"):
                pass
            answers = []
            for pid, end in zip(children, ends):
                with os.fdopen(end) as file:
                    answers.append(file.read().split())
                os.waitpid(pid, 0)
        return sum(int(each[0]) for each in answers), sum(int(each[1]) for each in answers)

    def slow_saves(self, folder, saver, old):
        owner, group, mode, entries = old
        for way, target, command in self.ways(folder):
            make_file(target, owner, group, mode, entries)
            done = subprocess.run(
                ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={SLOWED}",
                 "-e", f"inject={SLOWED}:delay_enter={4000 if LONG else 2500}",
                 *setpriv(saver), *command], check=False, umask=0, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=600)
            self.assertEqual(done.returncode, 0, (way, done.stderr))

    def test_x1_no_temporary_is_ever_open_to_others(self):
        """X1: slowed down at each call; X7: the same for every format."""
        need_tool("strace", "setpriv")
        n_tries = 0
        for kind in FOLDERS if LONG else ["plain", "default ACL"]:
            for saver, old, watching in self.OLD:
                folder = make_folder(self.place.folder, kind)
                tries, opened = self.watched(folder, watching,
                                             lambda: self.slow_saves(folder, saver, old))
                with self.case(folder=kind, saver=saver):
                    self.assertEqual(opened, 0, f"of {tries} tries, so many opened a temporary")
                    self.assertGreater(tries, 100, "hardly a temporary was seen")
                n_tries += tries
        print(f"tries to open a temporary (X1): {n_tries}")
