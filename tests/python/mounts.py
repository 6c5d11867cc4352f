# SPDX-License-Identifier: BSD-3-Clause
"""W11: file systems that lack what mounts of object stores lack, singly and in pairs, with each caller."""

import contextlib
import io
import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
import warnings

import berth
import torch
from berth import _in_place

import starter
from folder import Folder

LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")
COMMAND = os.path.join(os.environ["BERTH_BUILD"], "berth")
MOUNT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support", "object_mount.py")
SYSTEM_PYTHON = "/usr/bin/python3"  # it has Debian's packages
OLD = b"the old file"

HABITS = [
    "size=ENOSYS", "size=EOPNOTSUPP", "order=EOPNOTSUPP", "order=EINVAL", "rename=ENOSYS", "rename=EPERM",
    "over=EEXIST", "sync=EOPNOTSUPP", "sync=EINVAL", "folder=EINVAL", "folder=EOPNOTSUPP", "remove=EPERM",
    "mode=EPERM", "hidden=EPERM", "once=EIO", "both=EINVAL",
]
# Where these are missing, no file can be put there by a rename.
NO_RENAME = ("rename", "over", "hidden", "both")


def state():
    """More than a tile, so that several threads would write; and small values."""
    return {"weight": torch.arange(350_000, dtype=torch.float32), "bias": torch.ones(5)}


def run(*words):
    done = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise berth.Error(done.stderr)
    return done.stdout


def installed_save(value, path):
    with berth.installed():
        torch.save(value, path)


class Callers:
    """Each saves the same value: name -> (file, function of its path)."""

    def __init__(self, folder):
        self.source = os.path.join(folder, "source.pt")
        torch.save(state(), self.source)
        self.all = {
            "berth.save": ("model.pt", lambda path: berth.save(state(), path)),
            "records": ("records.pt", lambda path: berth.save(state(), path, pickle_protocol=3)),
            "save_async": ("async.pt", lambda path: berth.save_async(state(), path).result()),
            "install": ("installed.pt", lambda path: installed_save(state(), path)),
            "copy": ("copy.pt", lambda path: run("copy", self.source, path)),
            "convert": ("model.safetensors", lambda path: run("convert", self.source, path)),
            "shards": ("set.safetensors.index.json",
                       lambda path: run("convert", self.source, path, "--shard-size", "1MB")),
        }


def files_of(folder):
    """name -> bytes of all that is in a folder."""
    found = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = file.read()
    return found


class Mounts(Folder):
    def setUp(self):
        super().setUp()
        can = subprocess.run([SYSTEM_PYTHON, "-c", "import fusepy"], capture_output=True, check=False)
        reason = ("no /dev/fuse" if not os.path.exists("/dev/fuse") else
                  "mounting needs root" if os.geteuid() != 0 else
                  "no python3-fusepy (tools/setup.sh has it in test_packages)" if can.returncode else "")
        if reason:
            self.skipTest(reason)

    @contextlib.contextmanager
    def mounted(self, *habits):
        """(the folder below, the mount)."""
        below, above = tempfile.mkdtemp(dir=self.folder), tempfile.mkdtemp(dir=self.folder)
        server = subprocess.Popen([SYSTEM_PYTHON, MOUNT, below, above, *habits], stderr=subprocess.PIPE)
        try:
            end = time.monotonic() + 20
            while not os.path.ismount(above):
                if server.poll() is not None or time.monotonic() > end:
                    self.skipTest(f"FUSE cannot be mounted here: {server.stderr.read().decode()[-200:]}")
                time.sleep(0.005)
            yield below, above
        finally:
            subprocess.run(["umount", above], check=False)
            server.stderr.close()
            server.wait(20)


class TableTest(Mounts):
    """Where torch.save works, so does Berth: the same bytes, and nothing else is left."""

    def setUp(self):
        super().setUp()
        self.callers = Callers(self.folder)
        self.expected = {}
        for name, (file, save) in self.callers.all.items():
            plain = self.path(f"plain-{name}/{file}")
            save(plain)
            self.expected[name] = files_of(os.path.dirname(plain))
        warnings.simplefilter("ignore", UserWarning)
        logging.getLogger("berth").addHandler(handler := logging.NullHandler())
        self.addCleanup(logging.getLogger("berth").removeHandler, handler)

    def check_new(self, below, above, caller):
        file, save = self.callers.all[caller]
        save(os.path.join(above, file))
        found = files_of(below)
        self.assertEqual(sorted(found), sorted(self.expected[caller]))
        self.assertTrue(found == self.expected[caller], "other bytes")

    def check_old(self, below, above, caller, has_rename):
        """Of a set of files only the index is old."""
        file, save = self.callers.all[caller]
        path = os.path.join(above, file)
        for name in os.listdir(above):
            os.remove(os.path.join(above, name))
        with open(path, "wb") as old:
            old.write(OLD)
        if not has_rename and caller != "install":
            with self.assertRaisesRegex(berth.Error, "save.replace=in_place"):
                save(path)
            self.assertEqual(files_of(below)[file], OLD)
            self.assertEqual([name for name in os.listdir(below) if name.startswith(".")], [])
            with berth.config.patch("save.replace", "in_place"), self.in_environment("in_place"):
                save(path)
        else:
            save(path)
        self.assertTrue(files_of(below) == self.expected[caller], "other bytes, or other files")

    @contextlib.contextmanager
    def in_environment(self, replace):
        os.environ["BERTH_SAVE_REPLACE"] = replace
        try:
            yield
        finally:
            del os.environ["BERTH_SAVE_REPLACE"]

    def check(self, habits, callers):
        has_rename = not any(habit.startswith(NO_RENAME) for habit in habits)
        with self.mounted(*habits) as (below, above):
            for caller in callers:
                with self.subTest(habits=habits, caller=caller):
                    self.check_new(below, above, caller)
                    self.check_old(below, above, caller, has_rename)
                for name in os.listdir(above):
                    os.remove(os.path.join(above, name))

    def test_each_habit_with_each_caller(self):
        for habit in HABITS:
            self.check([habit], self.callers.all)

    def test_pairs_of_habits(self):
        """One errno a habit and one caller a pair, in turn; the long form: all."""
        turn, kinds = itertools.cycle(self.callers.all), {each.split("=")[0]: each for each in HABITS}
        for pair in itertools.combinations(HABITS if LONG else kinds.values(), 2):
            if pair[0].split("=")[0] != pair[1].split("=")[0]:
                self.check(pair, self.callers.all if LONG else [next(turn)])


class InPlaceTest(Mounts):
    def test_what_was_done_is_told(self):
        with self.mounted("rename=ENOSYS", "sync=EOPNOTSUPP") as (_, above):
            path = os.path.join(above, "model.pt")
            with self.assertLogs("berth", "WARNING") as logged:
                berth.save(state(), path)
            self.assertEqual(len(logged.output), 2)
            self.assertIn(f"{path} was written in place", logged.output[0])
            self.assertIn("save.durability=full became none", logged.output[1])
            other = os.path.join(above, "other.pt")
            torch.save(state(), self.path("source.pt"))
            report = json.loads(run("copy", self.path("source.pt"), other, "--stats", "--json"))["stats"]
            self.assertEqual((report["placed"], report["durability"]), ("in place", "none"))

    def test_a_warning_names_the_reason_under_install(self):
        with self.mounted("rename=EPERM") as (below, above):
            path = os.path.join(above, "model.pt")
            with open(path, "wb") as old:
                old.write(OLD)
            with self.assertWarnsRegex(UserWarning, "cannot rename files: Operation not permitted. It is "
                                                    "written in place") as warned:
                installed_save(state(), path)
            self.assertEqual(warned.filename, __file__)
            self.assertTrue(torch.load(path)["weight"].equal(state()["weight"]))
            with (berth.config.patch("save.replace", "always"),
                  self.assertRaisesRegex(berth.FileError, "cannot rename") as refused):
                installed_save(state(), path)
            self.assertEqual(refused.exception.status, "BERTH_E_REPLACE")

    def test_a_kill_in_the_middle_is_told_by_the_next_load(self):
        program = ("import sys, torch, berth; "
                   "berth.save({'weight': torch.arange(5_000_000.)}, sys.argv[1])")
        with self.mounted("rename=ENOSYS", "slow") as (below, above):
            for name in ("model.pt", "second.pt"):
                path, there = os.path.join(above, name), os.path.join(below, name)
                saving = starter.Child(program, path)
                while not (os.path.exists(there) and os.path.getsize(there) > 1_000_000):
                    os.kill(saving.pid, 0)  # it goes on
                    time.sleep(0.002)
                os.kill(saving.pid, signal.SIGKILL)
                self.assertEqual(saving.wait()[0], -signal.SIGKILL)
                nbytes = os.path.getsize(there)
                self.assertLess(nbytes, 20_000_000)
                for load in (berth.load, berth.open):
                    with self.assertRaisesRegex(berth.Error, "a save in place that did not end") as told:
                        load(path)
                    self.assertIn(path, str(told.exception))
                done = subprocess.run([COMMAND, "verify", path], capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("a save in place that did not end", done.stdout)

    def test_a_joint_save_is_refused_with_the_reason(self):
        for habit, why in (("order=EOPNOTSUPP", "in order only"), ("rename=ENOSYS", "cannot rename")):
            with self.mounted(habit) as (below, above):
                with self.assertRaisesRegex(berth.Error, why):
                    berth.dcp.save(state(), os.path.join(above, "model.pt"))
                self.assertEqual(os.listdir(below), [])


class SpecialPathsTest(Folder):
    """As torch.save, under install()."""

    def setUp(self):
        super().setUp()
        self.value = state()

    def check_is_saved(self, f):
        self.assertTrue(torch.load(f)["weight"].equal(self.value["weight"]))

    def test_an_open_temporary_file(self):
        with berth.installed(), tempfile.NamedTemporaryFile(dir=self.folder) as f, warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.save(self.value, f.name)
            self.check_is_saved(f)
            f.seek(0)
            torch.save([1], f.name)
            self.assertEqual(torch.load(f), [1])
            self.assertEqual(os.listdir(self.folder), [os.path.basename(f.name)])

    def test_f3_a_mapped_one_is_replaced(self):
        """F3: its tensors stay."""
        with berth.installed(), tempfile.NamedTemporaryFile(dir=self.folder) as f:
            torch.save(self.value, f.name)
            mapped = torch.load(f.name, mmap=True)
            torch.save([1], f.name)
            self.assertTrue(mapped["weight"].equal(self.value["weight"]))
            self.assertEqual(torch.load(f.name), [1])

    def test_one_that_is_open_for_reading_is_replaced(self):
        torch.save([1], self.path("model.pt"))
        with berth.installed(), open(self.path("model.pt"), "rb") as f:
            torch.save(self.value, f.name)
            self.assertEqual(torch.load(f), [1])
            self.check_is_saved(f.name)

    def test_whether_one_is_open_is_found_soon_among_many_descriptors(self):
        """In less than half of the processor's time that a list of /proc/self/fd takes."""
        open(self.path("model.pt"), "wb").close()

        def asked():
            self.assertFalse(_in_place._is_open_for_writing(self.path("model.pt")))

        def listed():
            for name in os.listdir("/proc/self/fd"):
                with contextlib.suppress(FileNotFoundError):  # that of the list itself
                    os.stat(f"/proc/self/fd/{name}")

        def least(call):
            def seconds():
                begun = time.thread_time()
                call()
                return time.thread_time() - begun

            return min(seconds() for _ in range(10))

        with contextlib.ExitStack() as stack:
            for _ in range(800):
                stack.enter_context(open("/dev/null", "wb"))
            self.assertLess(2 * least(asked), least(listed))
            with open(self.path("model.pt"), "ab"):
                self.assertTrue(_in_place._is_open_for_writing(self.path("model.pt")))

    def test_devices(self):
        with berth.installed(), warnings.catch_warnings():
            warnings.simplefilter("error")  # a device has no old content
            torch.save(self.value, "/dev/null")
            with self.assertRaisesRegex(OSError, "No space left"):
                torch.save(self.value, "/dev/full")
        with self.assertRaisesRegex(berth.FileError, "save.replace=in_place") as refused:
            berth.save(self.value, "/dev/null")
        self.assertEqual(refused.exception.status, "BERTH_E_REPLACE")
        with berth.config.patch("save.replace", "in_place"):
            berth.save(self.value, "/dev/null")

    def test_a_pipe(self):
        os.mkfifo(self.path("pipe"))
        os.symlink("pipe", self.path("link"))
        for save in (installed_save, torch.save):
            reader = subprocess.Popen(["cat", self.path("pipe")], stdout=subprocess.PIPE)
            got = []
            taking = threading.Thread(target=lambda: got.append(reader.communicate()[0]))
            taking.start()
            save(self.value, self.path("link"))
            taking.join()
            self.check_is_saved(io.BytesIO(got[0]))
        self.assertEqual(sorted(os.listdir(self.folder)), ["link", "pipe"])

    def test_a_pipe_without_a_reader_can_be_interrupted(self):
        os.mkfifo(self.path("pipe"))
        program = ("import signal, sys, torch, berth\n"
                   "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                   "berth.install(); print('begins', flush=True); torch.save([1], sys.argv[1])")
        saving = starter.Child(program, self.path("pipe"))
        while not saving.printed():
            time.sleep(0.002)
        time.sleep(0.3)
        os.kill(saving.pid, signal.SIGINT)
        self.assertIn("KeyboardInterrupt", saving.wait()[2])

    @unittest.skipUnless(os.geteuid() == 0, "mounting needs root")
    def test_a_file_that_is_mounted_over(self):
        real, over, link = self.write("real", OLD), self.write("over.pt", OLD), self.path("link.pt")
        os.symlink("over.pt", link)
        if subprocess.run(["mount", "--bind", real, over], capture_output=True, check=False).returncode:
            self.skipTest("mounting is not permitted here")
        try:
            with self.assertRaisesRegex(berth.FileError, "a mount point") as refused:
                berth.save(self.value, over)
            self.assertEqual(refused.exception.status, "BERTH_E_REPLACE")
            with self.assertWarnsRegex(UserWarning, "a mount point"):
                installed_save(self.value, link)
            self.check_is_saved(real)
        finally:
            subprocess.run(["umount", over], check=True)
        self.assertEqual(self.read(over), OLD)
        self.assertTrue(os.path.islink(link))

    @unittest.skipUnless(os.geteuid() == 0, "other users need root")
    def test_a_file_in_a_folder_that_may_not_be_written_to(self):
        path = self.write("closed/model.pt", OLD)
        os.chmod(path, 0o666)
        os.chmod(os.path.dirname(path), 0o555)
        os.chmod(self.folder, 0o755)
        os.seteuid(65534)
        try:
            with self.assertRaisesRegex(berth.FileError, "save.replace=in_place"):
                berth.save(self.value, path)
            self.assertEqual(self.read(path), OLD)
            with self.assertWarnsRegex(UserWarning, "written in place"):
                installed_save(self.value, path)
            with self.assertRaises(berth.FileError):
                installed_save(self.value, os.path.join(os.path.dirname(path), "new.pt"))
        finally:
            os.seteuid(0)
        self.check_is_saved(path)

    def test_the_input_is_not_overwritten_in_place(self):
        path = self.path("model.pt")
        torch.save(self.value, path)
        before = self.read(path)
        for words in (["copy", path, path], ["convert", path, path],
                      ["copy", path, path, "--set", "save.byteorder=big"]):
            done = subprocess.run([COMMAND, *words, "--set", "save.replace=in_place"], capture_output=True,
                                  text=True, check=False)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn("cannot be written in place", done.stderr)
            self.assertEqual(self.read(path), before)
        shutil.copy(path, self.path("other.pt"))
        os.link(self.path("other.pt"), self.path("hard.pt"))
        run("copy", path, self.path("other.pt"), "--set", "save.replace=in_place")
        self.assertEqual(self.read(self.path("hard.pt")), before)
