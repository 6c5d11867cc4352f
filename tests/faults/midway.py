# SPDX-License-Identifier: BSD-3-Clause
"""X1, X5, X6, X7: what others do to the old file and to the temporary while a save is stopped.

A save is stopped at its first sync: all is written, nothing has its name yet.
"""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time

import hosts
import owners
from commands import BERTH, OWNER, QUIET, berth, read
from hosts import cleaned, save_to
from machine import STAFF, TEAM, acl, need, need_root, need_tool, remove_acl, run, set_acl, setpriv
from owners import ALICE, BOB, ERIN, make_file, state, temporaries

STOPPED = re.compile(r"^(\d+) .*stopped by SIGSTOP", re.MULTILINE)


class Stopped:
    """A save that has written all, and waits for go()."""

    def __init__(self, command):
        need_tool("strace")
        self.log = tempfile.NamedTemporaryFile(prefix="berth-trace-")
        self.process = subprocess.Popen(
            ["strace", "-f", "-qq", "-o", self.log.name, "-e", "trace=fsync", "-e",
             "inject=fsync:signal=SIGSTOP:when=1", *command],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        until = time.monotonic() + 60
        self.pid = None
        while not self.pid:
            match = STOPPED.search(read(self.log.name).decode(errors="replace"))
            self.pid = int(match.group(1)) if match else None
            if not self.pid and (self.process.poll() is not None or time.monotonic() > until):
                raise AssertionError(f"it did not get to its sync: {command}: "
                                     f"{self.process.communicate()[1].decode()}")
            time.sleep(0.001)

    def go(self):
        """Returns its exit code and what it said."""
        os.kill(self.pid, signal.SIGCONT)
        said = self.process.communicate(timeout=600)[1].decode()
        self.log.close()
        return self.process.returncode, said


@contextlib.contextmanager
def stopped(command):
    save = Stopped(command)
    try:
        yield save
    finally:
        if save.process.returncode is None:
            save.go()


# ---- the old file ----

def private(mode, *owner):
    def change(target):
        if owner:
            os.chown(target, *owner)
        os.chmod(target, mode)
    return change


def another(mode, *owner):
    """Another file has the name."""
    return lambda target: make_file(target, *owner, mode)


def another_kind(make):
    def change(target):
        with contextlib.suppress(FileNotFoundError):
            os.remove(target)
        make(target)
    return change


NAMED = {"user": 6, "u": {ERIN: 6}, "group": 4, "mask": 6, "other": 4}
NARROW = {"user": 6, "u": {ERIN: 4}, "group": 0, "mask": 4, "other": 0}
OLD = (ALICE, TEAM, 0o644, None)

# Who saves, the old file (None: there is none), what happens meanwhile; then it is as it was left
# ("same"), refused, or saved with rights that nobody lacked before.
MEANWHILE = [
    ("it is made private", "root", OLD, private(0o600), "same"),
    ("the team loses it", "root", (ALICE, TEAM, 0o664, None), private(0o604), "same"),
    ("its ACL is removed", "root", (ALICE, TEAM, None, NAMED),
     lambda target: (remove_acl(target), os.chmod(target, 0o600)), "same"),
    ("its ACL is narrower", "root", (ALICE, TEAM, None, NAMED),
     lambda target: set_acl(target, acl(**NARROW)), "same"),
    ("it gets an ACL", "root", OLD, lambda target: set_acl(target, acl(**NARROW)), "same"),
    ("it is another user's", "root", OLD, private(0o600, BOB, STAFF), "same"),
    ("another file has its name", "root", OLD, another(0o600, BOB, STAFF), "same"),
    ("it is removed", "root", (ALICE, TEAM, 0o600, None), os.remove, "saved"),
    ("there is one now", "root", None, another(0o600, ALICE, TEAM), "same"),
    ("an owner makes it private", "bob", (BOB, TEAM, 0o666, None), private(0o600), "same"),
    ("there is one's own now", "bob", None, another(0o600, BOB, TEAM), "same"),
    ("it is closed to who saves", "bob", (ALICE, TEAM, 0o660, None), private(0o600), "refused"),
    ("it is closed to others", "bob", (ALICE, TEAM, 0o666, None), private(0o660), "saved"),
    ("there is another user's now", "bob", None, another(0o600, ALICE, ALICE), "refused"),
    ("there is another user's for the team now", "bob", None, another(0o660, ALICE, TEAM), "saved"),
    ("a folder has its name", "root", OLD, another_kind(os.mkdir), "refused"),
    ("a pipe has its name", "root", OLD, another_kind(os.mkfifo), "refused"),
]


class OldFileTest(owners.Scene):
    def test_x1_what_becomes_private_meanwhile_stays_private(self):
        n_cases = 0
        for i, (what, saver, old, change, then) in enumerate(MEANWHILE):
            folder = self.place.make(f"meanwhile-{i}")
            for command in self.saves(folder):
                with self.case(what=what, way=os.path.basename(command[-1])):
                    self.check(saver, command, old, change, then)
                n_cases += 1
        print(f"old files that change meanwhile (X1): {n_cases} cases")

    def saves(self, folder):
        for target in ("model.pt", "converted.pt", "model.safetensors"):
            yield [self.command, *save_to(self.sources, os.path.join(folder, target))[1:]]

    def check(self, saver, command, old, change, then):
        target = command[-1]
        if old:
            owner, group, mode, entries = old
            make_file(target, owner, group, mode, entries)
        with stopped([*setpriv(saver), *command]) as save:
            before = self.users.rights(target) if old else None
            change(target)
            regular = os.path.isfile(target)
            if regular:
                before, was, content = self.users.rights(target), state(target), read(target)
            code, said = save.go()
        self.assertEqual(temporaries(os.path.dirname(target)), [], said)
        if then == "refused":
            self.assertEqual(code, 2, said)
            self.assertIn(f"{target}: ", said)
            if regular:
                self.assertEqual((read(target), state(target)), (content, was))
            else:
                self.assertFalse(os.path.isfile(target))
            return
        self.assertEqual(code, 0, said)
        self.assertNotEqual(read(target), b"old")
        after = self.users.rights(target)
        for name, rights in after.items():
            if name != saver:
                self.assertLessEqual(rights, before[name], (name, state(target)))
        if then == "same":
            self.assertEqual(state(target), was)


# ---- the temporary ----

class TemporaryTest(hosts.Scene):
    WAYS = ["model.pt", "converted.pt", "model.safetensors"]
    # Hosts to which this one's processes mean nothing.
    ELSEWHERE = ["unshare", "-p", "-f", "--mount-proc", "--kill-child"]

    def check_lost(self, code, said, target):
        self.assertEqual(code, 2, said)
        self.assertIn(f"{target}: cannot be replaced: its temporary was removed", said)

    def test_x5_a_save_whose_temporary_is_cleaned_elsewhere_fails(self):
        """X5, W7: nor does it take another save's, which got the same name."""
        need_root()
        need_tool("unshare")
        need(run(*self.ELSEWHERE, "true", check=False).returncode == 0, "no pid namespaces")
        for way in self.WAYS:
            target = os.path.join(self.folder, way)
            for beside in (False, True):
                with self.subTest(way=way, another_save=beside):
                    make_file(target)
                    with stopped(self.save(target)) as first:
                        name, = temporaries(self.folder)
                        run(*self.ELSEWHERE, BERTH, "clean", self.folder, "--remove",
                            "--older-than", "0")
                        self.assertEqual(temporaries(self.folder), [], "not cleaned")
                        if not beside:
                            self.check_lost(*first.go(), target)
                        else:
                            with stopped(self.save(target)) as second:
                                self.assertEqual(temporaries(self.folder), [name])
                                inode = os.stat(os.path.join(self.folder, name)).st_ino
                                self.check_lost(*first.go(), target)
                                self.assertEqual(temporaries(self.folder), [name])
                                self.assertEqual(
                                    os.stat(os.path.join(self.folder, name)).st_ino, inode)
                                self.assertEqual(read(target), b"old")
                                self.assertEqual(second.go(), (0, ""))
                            self.assertNotEqual(read(target), b"old")
                    if not beside:
                        self.assertEqual(read(target), b"old")
                    self.assertEqual(os.listdir(self.folder), [way])
                    os.remove(target)

    def test_x5_a_save_that_nobody_waits_for_is_dead(self):
        """X5: killed, and a zombie: its parent never asks, as in containers without an init."""
        need_tool("strace")
        for way in self.WAYS:
            target = os.path.join(self.folder, way)
            for remover in ("the next save", "berth clean"):
                # -D: strace is not its parent.
                with subprocess.Popen(["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e",
                                       "trace=fsync", "--inject=fsync:signal=SIGKILL:when=1",
                                       *self.save(target)], **QUIET) as process:
                    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
                    with self.subTest(way=way, remover=remover):
                        name, = temporaries(self.folder)
                        self.assertIn(f" {process.pid} ".encode(),
                                      os.getxattr(os.path.join(self.folder, name), OWNER))
                        with open(f"/proc/{process.pid}/stat", encoding="utf-8") as file:
                            self.assertEqual(file.read().rpartition(")")[2].split()[0], "Z")
                        self.assertEqual(cleaned(self.folder)[name]["state"], "dead")
                        if remover == "the next save":
                            run(*self.save(target))
                            os.remove(target)
                        else:
                            self.assertTrue(cleaned(self.folder, "--remove")[name]["removed"])
                        self.assertEqual(os.listdir(self.folder), [])


# ---- without /proc ----

class NoProcTest(owners.Scene):
    """As in a chroot: what is told of an open file goes by its descriptor alone."""

    WITHOUT = ["unshare", "-m", "sh", "-c", 'umount -l /proc && exec "$@"', "sh"]

    # Who saves, and the old file, which stays as it is.
    KEPT = [("root", (0, 0, 0o644, None)), ("root", (0, 0, 0o600, None)),
            ("root", (ALICE, TEAM, 0o640, None)), ("root", (ALICE, TEAM, None, NAMED)),
            ("bob", (BOB, TEAM, 0o644, None)), ("bob", (BOB, TEAM, None, NARROW))]

    def setUp(self):
        super().setUp()
        need_tool("unshare")
        done = run(*self.WITHOUT, "sh", "-c", "! test -e /proc/self", check=False)
        need(done.returncode == 0, f"/proc cannot be taken away: {done.stdout.decode()}")

    def test_x1_rights_and_attributes_are_kept(self):
        for i, (saver, old) in enumerate(self.KEPT):
            folder = self.place.make(f"no-proc-{i}")
            for way, target, command in self.ways(folder):
                owner, group, mode, entries = old
                make_file(target, owner, group, mode, entries)
                os.setxattr(target, "user.note", b"kept")
                was = state(target)
                with self.case(saver=saver, old=old[:3], way=way):
                    done = subprocess.run([*self.WITHOUT, *setpriv(saver), *command], umask=0o077,
                                          check=False, stdin=subprocess.DEVNULL,
                                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                    self.saved((done.returncode, done.stderr.decode()), target)
                    self.assertEqual(done.stderr, b"")
                    self.assertEqual(state(target), was)
                    self.assertEqual(os.getxattr(target, "user.note"), b"kept")

    def test_x5_leftovers_are_unknown_and_can_be_removed(self):
        folder = self.place.make("no-proc-left")
        for made in ([], self.WITHOUT):
            for way, target, command in self.ways(folder):
                with self.case(made="there" if made else "here", way=way):
                    words = [word for word in command if word not in owners.FAST]
                    subprocess.run(["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync",
                                    "--inject=fsync:signal=SIGKILL:when=1", *made, *words],
                                   check=False, **QUIET)
                    left = temporaries(folder)
                    self.assertEqual(len(left), 1)
                    for remover in (command, [BERTH, "clean", folder, "--remove"]):
                        run(*self.WITHOUT, *remover)
                        self.assertEqual(temporaries(folder), left, "of what is not known")
                    told = run(*self.WITHOUT, BERTH, "clean", folder, "--remove", "--older-than",
                               "0").stdout.decode()
                    self.assertIn(left[0], told)
                    self.assertEqual(temporaries(folder), [], told)
                    berth("clean", folder)
