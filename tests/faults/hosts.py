# SPDX-License-Identifier: BSD-3-Clause
"""X5: temporaries of many saves, some killed, on one host and on two that share a folder.

Two hosts are two mounts through FUSE, each with locks and caches of its own, and two boot ids; two
containers are two pid namespaces. As a program of its own this file is what runs on one of them.
"""

import collections
import concurrent.futures
import contextlib
import json
import os
import random
import re
import signal
import stat
import subprocess
import sys
import threading
import time
import unittest

from commands import BERTH, LONG, OWNER, TEMPORARY, berth, read, run_killed
from machine import TEAM, Place, need, need_root, need_tool, run, setpriv, traced, uid
from owners import make_file, sources_in, temporaries

CLAIM = "user.berth.claim0"
HERE = os.path.abspath(__file__)
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def save_to(sources, target):
    """A durable save: it is at work for some milliseconds."""
    checkpoint, tensors, lone = sources
    if target.endswith(".safetensors"):
        return [BERTH, "convert", lone, target]
    if "converted" in target:
        return [BERTH, "convert", tensors, target]
    return [BERTH, "copy", checkpoint, target]


def cleaned(folder, *words):
    """What `berth clean` tells, by name."""
    told = json.loads(berth("clean", folder, "--json", *words).stdout)
    return {each["name"]: each for each in told["temporaries"]}


class Scene(unittest.TestCase):
    def setUp(self):
        self.place = Place()
        self.addCleanup(self.place.close)
        self.sources = sources_in(self.place.make("sources"))
        self.folder = self.place.make("folder")
        self.target = os.path.join(self.folder, "model.pt")

    def save(self, target=None):
        return save_to(self.sources, target or self.target)

    def killed(self, prefix=()):
        """Kills a save of the target before its sync. Returns its temporary's path."""
        before = set(temporaries(self.folder))
        self.assertTrue(run_killed([*prefix, *self.save()], "fsync", 1))
        left = set(temporaries(self.folder)) - before
        self.assertEqual(len(left), 1)
        return os.path.join(self.folder, left.pop())

    @contextlib.contextmanager
    def held(self, target=None, call="fsync", nth=1, seconds=1.0, prefix=()):
        """A save that stops for so long before its nth such call; it must end well."""
        with subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e",
                               f"inject={call}:delay_enter={int(seconds * 1e6)}:when={nth}",
                               *prefix, *self.save(target)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              stdin=subprocess.DEVNULL) as process:
            yield process
            said = process.communicate(timeout=600)[1].decode()
        if process.returncode:
            raise AssertionError(f"held at {call} {nth}: {process.returncode}: {said}")


# ---- one temporary, and who looks at it ----

def change(place, text):
    """The owner's text with one of its words changed."""
    words = text.split(" ")
    words[place] = {1: "11111111-2222-3333-4444-555555555555"}.get(place, "4026530000")
    return " ".join(words)


# What stands in the attribute, of a save that was killed; and what that is taken for.
OWNERS = [
    ("a dead process", lambda text: text, "dead"),
    ("another boot", lambda text: change(1, text), "unknown"),
    ("another pid namespace", lambda text: change(2, text), "unknown"),
    ("another time namespace", lambda text: change(3, text), "unknown"),
    ("a process that runs, and started then", lambda text: owner_of(text, os.getpid(), 0), "alive"),
    ("a process that runs, and started later", lambda text: owner_of(text, os.getpid(), -1),
     "dead"),
    ("the first process, of another start", lambda text: owner_of(text, 1, 99), "dead"),
    ("another version", lambda text: f"2{text[1:]}", "unknown"),
    ("no process", lambda text: " ".join(text.split(" ")[:4]), "unknown"),
    ("no start", lambda text: " ".join(text.split(" ")[:5]), "unknown"),
    ("process 0", lambda text: owner_of(text, 0, 0), "unknown"),
    ("process -1", lambda text: owner_of(text, -1, 0), "unknown"),
    ("a process beyond 32 bits", lambda text: owner_of(text, 1 << 32, 0), "unknown"),
    ("half of the text", lambda text: text[:20], "unknown"),
    ("nothing", lambda text: "", "unknown"),
    ("a megabyte less 1 of it", lambda text: text * 20, "unknown"),
    ("strange bytes", lambda text: "\udcff\0\n", "unknown"),
    ("no attribute", None, "unknown"),
]


def owner_of(text, process, later):
    start = 0
    with contextlib.suppress(OSError):
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            start = int(file.read().rpartition(")")[2].split()[19])
    return " ".join([*text.split(" ")[:4], str(process), str(start + later)])


class OwnerTest(Scene):
    def check_stays(self, path, state):
        """Neither the next save of the target nor a clean one removes it, but one of age 0 does."""
        name = os.path.basename(path)
        inode = os.stat(path).st_ino
        run(*self.save())
        berth("verify", self.target)
        self.assertEqual(temporaries(self.folder), [name] if state != "dead" else [])
        if state == "dead":
            return
        self.assertEqual(os.stat(path).st_ino, inode, "it was replaced")
        found = cleaned(self.folder)
        self.assertEqual([(each["state"], each["removed"]) for each in found.values()],
                         [(state, False)])
        self.assertEqual(set(found[name]), {"name", "nbytes", "age_seconds", "state", "owner",
                                            "removed"})
        self.assertEqual(found[name]["nbytes"], os.stat(path).st_size)
        self.assertLess(found[name]["age_seconds"], 60)
        for age in ([], ["--older-than", "1d"], ["--older-than", "12h"], ["--older-than", "10m"],
                    ["--older-than", "30s"]):
            self.assertFalse(cleaned(self.folder, "--remove", *age)[name]["removed"], age)
        if state == "unknown":  # as if nobody had written to it for so long
            for age, word in ((40, "30s"), (700, "10m"), (50000, "12h"), (90000, "1d")):
                os.utime(path, (time.time() - age,) * 2)
                self.assertFalse(cleaned(self.folder, "--older-than", word)[name]["removed"])
                if word != "1d":
                    continue
                self.assertTrue(cleaned(self.folder, "--remove")[name]["removed"], word)
                self.assertEqual(temporaries(self.folder), [])
            return
        self.assertFalse(cleaned(self.folder, "--remove", "--older-than", "0")[name]["removed"])
        os.remove(path)

    def test_x5_only_what_is_certainly_dead_is_removed(self):
        for what, changed, state in OWNERS:
            with self.subTest(owner=what):
                path = self.killed()
                name = os.path.basename(path)
                self.assertRegex(name, TEMPORARY)
                text = os.getxattr(path, OWNER).decode()
                boot = read(BOOT_ID).decode().strip()
                self.assertIn(boot, text)
                self.assertEqual(cleaned(self.folder)[name]["state"], "dead")
                if changed:
                    value = changed(text)[:3000].encode("utf-8", "surrogateescape")
                    os.setxattr(path, OWNER, value)
                else:
                    os.removexattr(path, OWNER)
                self.assertEqual(cleaned(self.folder)[name]["state"], state)
                self.check_stays(path, state)
            for name in temporaries(self.folder):
                os.remove(os.path.join(self.folder, name))
        print(f"owners of temporaries (X5): {len(OWNERS)}")

    def test_x5_the_dead_are_removed_by_clean(self):
        """X5: of every target; a save looks only at those of its own."""
        other = os.path.join(self.folder, "other.pt")
        left = os.path.basename(self.killed())
        run(*self.save(other))
        self.assertEqual(temporaries(self.folder), [left])
        self.assertEqual([each["removed"] for each in cleaned(self.folder).values()], [False])
        text = berth("clean", self.folder).stdout.decode()
        self.assertRegex(text, f"{re.escape(left)}.*dead")
        self.assertTrue(cleaned(self.folder, "--remove")[left]["removed"])
        self.assertEqual(temporaries(self.folder), [])
        self.assertEqual(cleaned(self.folder), {})
        for age in ("", "1x", "-1", "d", "1 d d"):
            berth("clean", self.folder, "--older-than", age, code=2)
        berth("clean", os.path.join(self.folder, "missing"), code=2)

    # Other worlds, each a real one: how a command is run there.
    WORLDS = {
        "another boot": ["unshare", "-m", "sh", "-c",
                         f'mount --bind "$0" {BOOT_ID} && exec "$@"'],
        "another pid namespace": ["unshare", "-p", "-f", "--mount-proc", "--kill-child"],
        "another, with our /proc": ["unshare", "-p", "-f", "--kill-child"],
        "another time namespace": ["unshare", "-T", "-f", "--kill-child"],
        "no /proc": ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"],
    }

    def world(self, name):
        words = list(self.WORLDS[name])
        if name == "another boot":
            boot = self.place.path("boot")
            with open(boot, "w", encoding="ascii") as file:
                file.write("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee\n")
            words.append(boot)
        need(run(*words, "true", check=False).returncode == 0, f"no {name} can be had here")
        return words

    def test_x5_what_lives_in_another_world_is_left_alone(self):
        """X5: a save there is at work; saves and cleaning here, and the other way round."""
        need_root()
        need_tool("strace", "unshare")
        for name in self.WORLDS:
            try:
                world = self.world(name)
            except unittest.SkipTest as why:
                print(f"left out: {why}")
                continue
            for there, here in ((world, []), ([], world)):
                with self.subTest(world=name, saves_from="there" if there else "here"):
                    with self.held(prefix=there, seconds=0.6):
                        self.wait_for_one()
                        mine = temporaries(self.folder)
                        run(*here, *self.save())
                        run(*here, BERTH, "clean", self.folder, "--remove")
                        self.assertEqual(temporaries(self.folder), mine, "removed, or more left")
                    berth("verify", self.target)
                    self.assertEqual(temporaries(self.folder), [])

    def wait_for_one(self, n=1):
        until = time.monotonic() + 20
        while len(temporaries(self.folder)) < n:
            self.assertLess(time.monotonic(), until, "no temporary is seen")
            time.sleep(0.002)
        time.sleep(0.05)  # its owner stands there now

    def test_x5_a_save_that_is_stopped_is_alive(self):
        need_tool("strace")
        with self.held(seconds=0.8):
            self.wait_for_one()
            name, = temporaries(self.folder)
            self.assertEqual(cleaned(self.folder, "--remove", "--older-than", "0")[name]["state"],
                             "alive")
            for _ in range(3):
                run(*self.save())
            self.assertEqual(temporaries(self.folder), [name])
        self.assertEqual(temporaries(self.folder), [])

    def test_x5_another_users_temporary_is_left_alone(self):
        """X5: who may write to the folder, but not to the file, cannot look at its owner, either."""
        need_root()
        need_tool("strace", "setpriv")
        command = self.place.berth()
        os.chmod(self.place.folder, 0o755)
        alice, bob = setpriv("alice"), setpriv("bob")
        # In place of a file of both, so that the temporary has the rights that it gets.
        for mode, is_dead in ((0o600, False), (0o600, True), (0o644, False), (0o644, True)):
            with self.subTest(mode=oct(mode), dead=is_dead):
                make_file(self.target, uid("alice"), TEAM, mode)
                other = os.path.join(self.folder, "other.pt")
                make_file(other, uid("bob"), TEAM, 0o600)
                with self.killed_of(alice) if is_dead else self.held(seconds=0.8, prefix=alice):
                    self.wait_for_one()
                    mine = temporaries(self.folder)
                    run(*bob, command, *self.save(other)[1:])
                    for age in ([], ["--older-than", "0"]):
                        run(*bob, command, "clean", self.folder, "--remove", *age, check=False)
                        self.assertEqual(temporaries(self.folder), mine)
                self.assertEqual(temporaries(self.folder), mine if is_dead else [])
                berth("clean", self.folder, "--remove")
                self.assertEqual(temporaries(self.folder), [])

    @contextlib.contextmanager
    def killed_of(self, prefix):
        self.killed(prefix)
        yield

    def test_x5_names_are_tried_in_turn_and_then_at_random(self):
        left = []
        for _ in range(16):
            path = self.killed()
            os.removexattr(path, OWNER)
            left.append(os.path.basename(path))
        self.assertEqual([name[-6 - (i > 9):-4] for i, name in enumerate(left)],
                         [f"-{i}" for i in range(16)])
        self.assertEqual(len({name[:23] for name in left}), 1, "of one target")
        extra = os.path.basename(self.killed())
        self.assertRegex(extra, r"^\.berth-[0-9a-f]{16}-[0-9a-f]{16}\.tmp$")
        run(*self.save())
        self.assertEqual(set(temporaries(self.folder)), {*left, extra})
        found = cleaned(self.folder, "--remove", "--older-than", "0")
        self.assertEqual({each["removed"] for each in found.values()}, {True})
        self.assertEqual(len(found), 17)
        self.assertEqual(temporaries(self.folder), [])

    def test_x5_what_is_no_file_of_that_name_stays(self):
        name = os.path.basename(self.killed())
        os.remove(os.path.join(self.folder, name))
        slot = [os.path.join(self.folder, f"{name[:23]}-{i}.tmp") for i in range(4)]
        os.mkfifo(slot[0])
        os.mkdir(slot[1])
        os.symlink(self.sources[0], slot[2])
        os.symlink("nowhere", slot[3])
        before, source = temporaries(self.folder), read(self.sources[0])
        for words in (self.save(), [BERTH, "clean", self.folder, "--remove", "--older-than", "0"],
                      self.save()):
            run(*words)
            self.assertEqual(sorted(temporaries(self.folder)), sorted(before))
        self.assertEqual(read(self.sources[0]), source)
        self.assertEqual([stat.S_IFMT(os.lstat(path).st_mode) for path in slot],
                         [stat.S_IFIFO, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFLNK])

    def test_x5_a_save_lists_no_folder_and_takes_no_lock(self):
        """X5, X6: also where there are leftovers to look at."""
        need_tool("strace")
        for round_ in ("new", "replaced", "a dead one", "an unknown one"):
            for target in ("model.pt", "converted.pt", "model.safetensors"):
                path = os.path.join(self.folder, target)
                if "one" in round_:
                    self.assertTrue(run_killed(self.save(path), "fsync", 1))
                if "unknown" in round_:
                    for name in temporaries(self.folder):
                        os.removexattr(os.path.join(self.folder, name), OWNER)
                with self.subTest(file=round_, target=target):
                    code, said, lines = traced(self.save(path))
                    self.assertEqual(code, 0, said)
                    self.assertEqual([line for line in lines if re.search(
                        r"\b(getdents|flock|F_(OFD_)?SETLK|F_SETLEASE|lockf)", line)], [])
                for name in temporaries(self.folder):
                    os.remove(os.path.join(self.folder, name))

    def test_x5_a_claim_that_nobody_follows_up_is_no_obstacle(self):
        """X5: of a process that died, or of a host that is gone, between claim and removal."""
        for what, changed, stays in (("dead", lambda text: text, False),
                                     ("another boot", lambda text: change(1, text), True),
                                     ("nonsense", lambda text: "x", True)):
            for of_owner in (lambda text: text, lambda text: change(1, text)):
                with self.subTest(claim=what, owner=of_owner("1 2 3 4")):
                    path = self.killed()
                    text = os.getxattr(path, OWNER).decode()
                    os.setxattr(path, CLAIM, changed(text).encode())
                    os.setxattr(path, OWNER, of_owner(text).encode())
                    run(*self.save())
                    is_dead = of_owner(text) == text
                    self.assertEqual(bool(temporaries(self.folder)), stays or not is_dead)
                    berth("clean", self.folder, "--remove", "--older-than", "0")
                    self.assertEqual(temporaries(self.folder), [])
                for name in temporaries(self.folder):
                    os.remove(os.path.join(self.folder, name))


class RemoversTest(Scene):
    """Two that remove one leftover, each stopped at every call by which it could be too late."""

    CALLS = ["openat", "newfstatat", "fgetxattr", "getxattr", "lgetxattr", "fsetxattr", "setxattr",
             "lsetxattr", "unlinkat", "readlink", "readlinkat", "kill", "renameat", "statx"]

    def interleave(self, call, nth, first):
        """The one that is stopped meets a leftover; the other removes it, and is at work then."""
        folder = self.place.make(f"{call}-{nth}-{first}")
        scene = self.__class__()
        scene.sources, scene.folder = self.sources, folder
        scene.target = os.path.join(folder, "model.pt")
        scene.killed()
        stopped = [BERTH, "clean", folder, "--remove"] if first == "clean" else scene.save()
        with subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}",
                               "-e", f"inject={call}:delay_enter=250000:when={nth}", *stopped],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as one:
            time.sleep(0.06)
            with scene.held(seconds=0.5):
                said = one.communicate(timeout=600)[1].decode()
        if one.returncode:
            raise AssertionError(f"{first} stopped at {call} {nth}: {said}")
        berth("verify", scene.target)
        if temporaries(folder):
            raise AssertionError(f"{first} stopped at {call} {nth}: {temporaries(folder)}")
        return 1

    def test_x5_two_removers_never_remove_a_third_file(self):
        need_tool("strace")
        self.killed()
        _, _, lines = traced(self.save())
        # From the first look at a leftover's name on.
        counts, begun, points = collections.Counter(), False, []
        for line in lines:
            match = re.match(r"\d+ +(\w+)\(", line)
            if not match:
                continue
            counts[match.group(1)] += 1
            begun |= ".berth-" in line
            if begun and match.group(1) in self.CALLS:
                points.append((match.group(1), counts[match.group(1)], "save"))
        self.assertGreater(len(points), 8)
        points += [(call, nth, "clean") for call, nth in
                   (("unlinkat", 1), ("fsetxattr", 1), ("setxattr", 1), ("newfstatat", 2),
                    ("fstat", 2), ("kill", 1))]
        if LONG:
            points *= 3
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            tried = [pool.submit(self.interleave, call, nth, f"{first}{i}" if LONG else first)
                     for i, (call, nth, first) in enumerate(points)]
            wrong = [str(each.exception()) for each in tried if each.exception()]
        print(f"removers stopped at a call (X5): {len(points)}")
        self.assertEqual(wrong, [])


# ---- one host: saves of a few paths, in part killed ----

def on_host(folder, sources, paths, n_saves, seed):
    """Saves at random moments, killed, stopped for a while or left alone. Prints what happened."""
    chance = random.Random(seed)
    told = collections.Counter()
    wrong = []
    # A save takes some 5 ms, through FUSE some 30.
    turns = [(chance.choice(paths), chance.random(), chance.uniform(0.001, i % 2 * 0.02 + 0.01),
              chance.uniform(0.01, 0.1)) for i in range(n_saves)]
    lock = threading.Lock()

    def one(turn):
        path, fate, moment, while_ = turn
        process = subprocess.Popen(save_to(sources, os.path.join(folder, path)),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   stdin=subprocess.DEVNULL)
        what = "left alone"
        if fate < 0.6:
            time.sleep(moment)
            what = "killed" if fate < 0.4 else "stopped"
            process.send_signal(signal.SIGKILL if what == "killed" else signal.SIGSTOP)
            if what == "stopped":
                time.sleep(while_)
                process.send_signal(signal.SIGCONT)
        said = process.communicate()[1].decode(errors="replace")
        with lock:
            told[what] += 1
            told["killed in time"] += process.returncode == -signal.SIGKILL
            if process.returncode not in ((0, -signal.SIGKILL) if what == "killed" else (0,)):
                wrong.append(f"{what}, to {path}: {process.returncode}: {said}")

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(one, turn) for turn in turns]:
            each.result()
    clean = subprocess.run([BERTH, "clean", folder, "--remove", "--json"], check=False,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if clean.returncode:
        wrong.append(f"clean: {clean.stderr.decode()}")
    found = json.loads(clean.stdout)["temporaries"] if not clean.returncode else []
    told["removed by clean"] = sum(each["removed"] for each in found)
    print(json.dumps({"told": told, "wrong": wrong}))


class HostsTest(Scene):
    PATHS = ["model.pt", "converted.pt", "model.safetensors"]

    def boots(self):
        """Two hosts of one folder, by FUSE, each of its own boot."""
        for i in range(2):
            boot = self.place.path(f"boot-{i}")
            with open(boot, "w", encoding="ascii") as file:
                file.write(f"{i}{i}{i}{i}{i}{i}{i}{i}-bbbb-cccc-dddd-eeeeeeeeeeee\n")
            yield self.place.fuse(f"host-{i}", self.folder), [
                "unshare", "-m", "sh", "-c", f'mount --bind "$0" {BOOT_ID} && exec "$@"', boot]

    def containers(self, *options):
        for _ in range(2):
            yield self.folder, ["unshare", "-p", "-f", "--kill-child", *options]

    def check(self, what, hosts):
        hosts = list(hosts)
        for _, prefix in hosts:
            need(run(*prefix, "true", check=False).returncode == 0, f"no {what} can be had here")
        for path in self.PATHS:
            run(*self.save(os.path.join(self.folder, path)))
        n_saves = 200 if LONG else 40
        processes = [subprocess.Popen(
            [*prefix, sys.executable, HERE, json.dumps([folder, self.sources, self.PATHS, n_saves,
                                                        seed])],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            for seed, (folder, prefix) in enumerate(hosts)]
        n_looks, wrong, most = 0, [], 0
        try:
            while any(process.poll() is None for process in processes):
                most = max(most, len(temporaries(self.folder)))
                wrong += self.look(hosts[n_looks % len(hosts)][0])
                n_looks += 1
            answers = [process.communicate()[0].decode() for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        told = collections.Counter()
        for answer in answers:
            self.assertTrue(answer.startswith("{"), answer)
            found = json.loads(answer)
            told.update(found["told"])
            wrong += found["wrong"]
        wrong += self.look(self.folder)
        rest = cleaned(self.folder)
        left = {state: sum(each["state"] == state for each in rest.values())
                for state in ("alive", "dead", "unknown")}
        cleaned(self.folder, "--remove", "--older-than", "0")
        print(f"{what} (X5): {len(hosts) * n_saves} saves, {dict(told)}; looked at {n_looks} times, "
              f"{most} temporaries at once, left for --older-than 0: {left['unknown']}; "
              f"live ones removed or files not whole: {len(wrong)}")
        self.assertEqual(wrong, [])
        self.assertEqual(left["alive"], 0)
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(self.PATHS))
        self.assertGreater(told["killed"], n_saves * len(hosts) // 5)
        self.assertGreater(most, 1)
        return told

    def look(self, folder):
        """Whether each path holds a whole file."""
        wrong = []
        for path in self.PATHS:
            words = ["verify", os.path.join(folder, path)]
            if path.endswith(".safetensors"):
                words = ["convert", words[1], self.place.path("look.pt"), "--set",
                         "save.durability=none"]
            for _ in range(20):
                done = subprocess.run([BERTH, *words], stdout=subprocess.DEVNULL,
                                      stderr=subprocess.PIPE, check=False)
                # libfuse: to open what was renamed over after it was looked up gives ENOENT, where
                # other file systems open the old file or look it up again.
                if folder == self.folder or b"No such file" not in done.stderr:
                    break
            if done.returncode:
                wrong.append(f"{words}: {done.returncode}: {done.stderr.decode()}")
        return wrong

    def test_x5_processes_of_one_host(self):
        told = self.check("processes of one host", [(self.folder, []) for _ in range(3)])
        self.assertGreater(told["stopped"], 5)

    def test_x5_two_hosts_that_share_a_folder(self):
        need_root()
        need_tool("unshare")
        self.check("two hosts, each of its own boot", self.boots())

    def test_x5_two_containers_that_share_a_folder(self):
        need_root()
        need_tool("unshare")
        self.check("two pid namespaces of one boot", self.containers("--mount-proc"))

    def test_x5_two_containers_with_the_proc_of_their_host(self):
        need_root()
        need_tool("unshare")
        self.check("two pid namespaces with one /proc", self.containers())


if __name__ == "__main__":
    on_host(*json.loads(sys.argv[1]))
