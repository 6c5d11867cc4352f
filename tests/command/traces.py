# SPDX-License-Identifier: BSD-3-Clause
"""--trace and BERTH_TRACE."""

import json
import os
import resource
import signal
import struct
import subprocess
import time

from case import BERTH, Case
from trace_rules import Trace, near, total

WORKERS = ["--set", "io.threads=3", "--set", "io.chunk_nbytes=64KiB"]


class Traces(Case):
    SIZE = 3 << 20

    def setUp(self):
        super().setUp()
        self.leave_debug_mode()
        header = json.dumps({name: {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
                             for name, begin, end in (("a", 0, 1000), ("b", 1000, self.SIZE))}).encode()
        self.write("big.safetensors", struct.pack("<Q", len(header)) + header + os.urandom(self.SIZE))
        self.berth("convert", "big.safetensors", "big.pt", "-q")

    def trace(self, name="t.json"):
        return Trace(self.path(name))

    def check_reported(self, operation, stats):
        """What the trace says an operation did is what --stats says."""
        for name, value in stats.items():
            if name.endswith("_seconds"):
                self.assertAlmostEqual(float(operation.args[name[:-8] + "_us"]), value * 1e6, 2, name)
            elif name in operation.args:
                self.assertEqual(operation.args[name], value, name)
        self.assertEqual(operation.args["result"], "BERTH_OK")

    def test_of_saves(self):
        for method in ("buffered", "direct"):
            done = self.berth("copy", "big.pt", "new.pt", "--trace", "t.json", "--stats", "--json", *WORKERS,
                              "--set", f"save.method={method}")
            trace = self.trace()
            (save,) = trace.operations("save")
            self.check_reported(save, json.loads(done.out)["stats"])
            trace.check_requests(save, "write")
            trace.check_seconds(save)
            trace.check_counters()
            self.assertEqual(save.args["path"], "new.pt")
            self.assertLessEqual({"plan", "transfer", "sync"}, {each.name for each in trace.of(save, "stage")})
            self.assertLessEqual({"fsync", "rename", "fsync of the folder"},
                                 {each.name for each in trace.of(save, "system")})
            tracks = {trace.names[each.track] for each in trace.of(save, "write")}
            # A worker that starts when another has ended gets its track.
            self.assertLessEqual({"berth worker 0"}, tracks)
            self.assertLessEqual(tracks, {"berth"} | {f"berth worker {i}" for i in range(3)})
            self.assertIn("data/1", {each.args.get("record") for each in trace.of(save, "write")})
            self.assertTrue(trace.of(save, "sum"))

    def test_of_loads(self):
        for method in ("read", "direct", "map"):
            words = ["bench", "load", "--size", "2MiB", "--json", *WORKERS, "--set", f"load.method={method}"]
            self.berth(*words, env={"BERTH_TRACE": "t.json"})
            trace = self.trace()
            loads = trace.operations("load")
            self.assertTrue(loads)
            for load in loads:
                trace.check_requests(load, "disk" if method != "map" else "none")
                trace.check_seconds(load)
                self.assertTrue(trace.of(load, "disk"))
            for opened in trace.operations("open"):
                trace.check_requests(opened, "read")
            trace.check_counters()
            self.assertTrue(any(name.startswith("berth worker ") for name in trace.names.values()))

    def test_of_a_device(self):
        self.berth("bench", "save", "--size", "2MiB", "--device", "simulated:0", "--trace", "t.json", *WORKERS)
        trace = self.trace()
        (save,) = trace.operations("save")
        trace.check_requests(save, "write")
        trace.check_seconds(save)
        waits = [each for each in trace.of(save, "wait") if each.name == "wait for a device"]
        near(total(waits), save.args["device_us"], len(waits))
        self.assertTrue(waits)

    def test_of_rows(self):
        words = ["bench", "rows", "--size", "2MiB", "--batch", "128", "--batches", "3", "--json", "--trace", "t.json"]
        for more, name in (([], "wait for rows"), (["--passes", "2"], "gather rows")):
            counts = json.loads(self.berth(*words, *more).out)["cache"]
            trace = self.trace()
            reads = [each for operation in trace.operations() if operation.name in ("read rows", name)
                     for each in trace.of(operation, "read")]
            self.assertEqual((len(reads), sum(each.args["nbytes"] for each in reads)),
                             (counts["reads"], counts["read_nbytes"]))
            self.assertEqual(len(trace.operations(name)), 3)

    def test_of_verify(self):
        for method in ("read", "direct", "map"):
            done = self.berth("verify", "big.pt", "--trace", "t.json", "--stats", "--json", *WORKERS,
                              "--set", f"load.method={method}")
            trace = self.trace()
            (verify,) = trace.operations("verify")
            self.check_reported(verify, json.loads(done.out)["stats"])
            trace.check_requests(verify, "read")
            self.assertIn("big.pt", verify.args["path"])
            self.assertGreaterEqual(sum(each.args["nbytes"] for each in trace.of(verify, "work")), self.SIZE)

    def test_one_file_has_all_operations_of_a_process(self):
        self.berth("demo", "other.pt", "--trace", "t.json")
        trace = self.trace()
        self.assertLessEqual({"save", "open", "verify"}, {each.name for each in trace.operations()})
        for save in trace.operations("save"):
            trace.check_requests(save, "write")
            trace.check_seconds(save)

    def test_is_an_option_like_others(self):
        self.write("options", b"trace=by file.json\n")
        self.berth("verify", "big.pt", env={"BERTH_CONFIG": self.path("options")})
        self.assertTrue(self.trace("by file.json").operations("verify"))
        self.berth("verify", "big.pt", "--set", "trace=by set.json", env={"BERTH_TRACE": "none.json"})
        self.assertTrue(self.trace("by set.json").operations("verify"))
        self.assertNotIn("none.json", self.entries())
        name = "it's $(x) \"%\".json"
        report = json.loads(self.berth("config", "trace", "--json", env={"BERTH_TRACE": name}).out)
        self.assertEqual((report["value"], report["type"], report["source"]),
                         (name, "text", "environment BERTH_TRACE"))
        line = self.berth("config", "--export", env={"BERTH_TRACE": name}).out
        said = subprocess.run(["sh", "-c", line + 'printf %s "$BERTH_TRACE"'], stdout=subprocess.PIPE, check=True)
        self.assertEqual(said.stdout.decode(), name)
        self.assertEqual(self.berth("config", "--changed", env={"BERTH_TRACE": name}).out, f"trace={name}\n")
        done = self.berth("verify", "big.pt", "--trace", "a#b", code=2)
        self.assertIn("trace = a#b: must be a text of at most 4095 bytes, without #", done.err)
        self.assertIn("spaces at its ends (--trace)\n", done.err)

    def test_names_the_process(self):
        with subprocess.Popen([BERTH, "verify", "big.pt", "--trace", "%%t-%p.json"], cwd=self.folder,
                              stdout=subprocess.DEVNULL) as process:
            process.wait()
        trace = self.trace(f"%t-{process.pid}.json")
        self.assertEqual({track[0] for track in trace.names}, {process.pid})

    def test_of_names_that_are_hostile(self):
        name = b'a"b\\c\n\x1b[31m\xff\xc2\x9b<b>\xe2\x82\xac.pt'
        self.berth("copy", "big.pt", os.path.join(os.fsencode(self.folder), name), "--trace", "t.json")
        (save,) = self.trace().operations("save")
        self.assertTrue(save.args["path"].endswith('a"b\\c\n\x1b[31m\ufffd\x9b<b>\u20ac.pt'), save.args["path"])
        raw = self.read("t.json")
        self.assertFalse([byte for byte in raw if byte < 0x20 and byte != 0x0a], "control characters")
        self.berth("copy", "big.pt", b"x" * 250, "--trace", "t.json", "--set", "save.durability=none")
        self.assertTrue(self.trace().operations("save")[0].args["path"].endswith("x" * 250))

    def test_of_a_save_that_fails(self):
        done = self.berth("copy", "big.pt", "new.pt", "--trace", "t.json", code=2, preexec_fn=lambda:
                          resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
        self.assertEqual(done.err.count("\n"), 1)
        (save,) = self.trace().operations("save")
        self.assertEqual((save.args["result"], save.args["moved_nbytes"]), ("BERTH_E_NO_SPACE", 0))
        self.assertIn("error", save.args)
        self.berth("copy", "big.pt", "/nowhere/x", "--trace", "t.json", code=2)
        self.assertIn("No such file", self.trace().operations("save")[0].args["error"])
        with open("/dev/full", "wb") as full:
            done = subprocess.run([BERTH, "copy", "big.pt", "-", "--trace", "t.json"], cwd=self.folder, stdout=full,
                                  stderr=subprocess.PIPE, check=False)
        self.assertIn(b"No space left", done.stderr)
        (save,) = self.trace().operations("save")
        self.assertEqual((save.args["result"], save.args["moved_nbytes"]), ("BERTH_E_NO_SPACE", 0))
        self.write("bad.pt", self.read("big.pt")[:-500000])
        self.berth("verify", "bad.pt", "--trace", "t.json", code=1)
        self.assertTrue(self.trace().operations("verify")[0].args["result"].startswith("BERTH_E_"))

    def slow_copy(self, end):
        """Ends it when its temporary is there, not that of a copy before, which was killed."""
        for name in self.entries():
            if name.startswith(".berth-"):
                os.remove(self.path(name))
        slow = ["--set", "io.threads=1", "--set", "io.chunk_nbytes=512", "--set", "save.durability=none"]
        with subprocess.Popen([BERTH, "copy", "big.pt", "slow.pt", "--trace", "t.json", *slow], cwd=self.folder,
                              stderr=subprocess.DEVNULL) as process:
            until = time.monotonic() + 60
            while process.poll() is None and not any(name.startswith(".berth-") for name in self.entries()):
                self.assertLess(time.monotonic(), until)
                time.sleep(0.0005)
            process.send_signal(end)
        return process.returncode

    def test_of_a_save_that_is_interrupted(self):
        codes = [self.slow_copy(signal.SIGINT) for _ in range(3)]
        self.assertTrue(set(codes) <= {130, 0}, codes)
        (save,) = self.trace().operations("save")
        self.assertEqual(save.args["result"], "BERTH_E_CANCELLED" if codes[-1] else "BERTH_OK")
        self.trace().check_requests(save, "write")
        for _ in range(5):
            self.slow_copy(signal.SIGKILL)
            text = self.read("t.json")
            if not text.endswith(b"\n]}\n"):  # the kernel ends a write of several pages in its middle
                text = text[:text.rindex(b",\n")] + b"\n]}\n"
            json.loads(text)

    def test_that_cannot_be_written_fails_nothing(self):
        before = self.read("big.pt")
        self.write("notes", b"mine")
        os.symlink("notes", self.path("link"))
        os.mkfifo(self.path("pipe"))
        for name, why in (("big.pt", "is there already, and is not a trace: it is left as it is"),
                          ("notes", "is not a trace"), ("link", "is not a regular file"),
                          ("pipe", "is not a regular file"), ("/dev/full", "is not a regular file"),
                          ("/nowhere/t.json", "cannot be made: No such file or directory")):
            done = self.berth("verify", "big.pt", "--trace", name)
            self.assertRegex(done.out, "^ok: ")
            self.assertEqual(done.err.count("\n"), 1, done.err)
            self.assertIn(f"berth: trace {os.path.join(self.folder, name)}: ", done.err)
            self.assertIn(why, done.err)
            self.assertEqual(self.berth("verify", "big.pt", "--trace", name, "-q").err, "")
        self.assertEqual((self.read("big.pt"), self.read("notes")), (before, b"mine"))

    def test_of_a_full_disk_stays_whole(self):
        done = self.berth("verify", "big.pt", "--trace", "t.json", *WORKERS, preexec_fn=lambda:
                          resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000)))
        self.assertRegex(done.err, "^berth: trace .*t.json: .* bytes not written: File too large\n$")
        self.assertLessEqual(len(self.read("t.json")), 4000)
        self.assertFalse(Trace(self.path("t.json"), may_be_cut=True).operations("verify"))
        done = self.berth("verify", "big.pt", "--trace", "none.json", preexec_fn=lambda:
                          resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))
        self.assertRegex(done.err, "none.json: .* bytes not written: File too large\n$")
        self.assertNotIn("none.json", os.listdir(self.folder), "the next trace could not replace it")

    def test_replaces_only_traces_and_keeps_their_mode(self):
        self.berth("verify", "big.pt", "--trace", "t.json")
        os.chmod(self.path("t.json"), 0o600)
        with open(self.path("t.json"), "rb") as older:
            before = older.read()
            self.berth("copy", "big.pt", "new.pt", "--trace", "t.json")
            older.seek(0)
            self.assertEqual(older.read(), before, "who has it open keeps it")
        self.assertEqual(os.stat(self.path("t.json")).st_mode & 0o777, 0o600)
        self.assertFalse(self.trace().operations("verify"))
