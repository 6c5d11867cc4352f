# SPDX-License-Identifier: BSD-3-Clause
"""`berth bench` and tools/bench: that they work, not what they find."""

import json
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

from case import BERTH, HERE, Case, old

# tools/bench takes it where it is built (`scons tests`): only there are simulated devices.
HAS_SIMULATED = os.path.exists(os.path.join(os.path.dirname(BERTH), "tests", "libberth.so"))


def cancel(case, *words):
    """^C, SIGHUP and SIGTERM, in the midst of it: their exit codes, no output, no file (X14)."""
    before = case.entries()
    for number, code in ((signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143)):
        job = subprocess.Popen([BERTH, "bench", *words], cwd=case.folder, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
        deadline = time.monotonic() + 20
        while len(case.entries()) == len(before) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.1)
        job.send_signal(number)
        out, err = job.communicate(timeout=600)
        case.assertEqual((job.returncode, out), (code, b""), err)
        case.assertEqual(case.entries(), before)


class Benchmark(Case):
    """One benchmark: `name`, and `usual` words of every report."""

    usual = ()

    def bench(self, *words, **options):
        before = self.entries()
        done = self.berth("bench", self.name, *words, **options)
        self.assertEqual(self.entries(), before)
        return done

    def report(self, *words):
        return json.loads(self.bench("--json", *self.usual, *words).out)

    def takes_not(self, *cases):
        for words, says in cases:
            self.assertIn(says, self.bench(*words, code=2).err)


class Tool(Case):
    """A program of tools/bench: that it works, not what it finds."""

    def start(self, *words):
        return subprocess.Popen([os.path.join(HERE, "..", "..", "tools", "bench", self.name), *words],
                                cwd=self.folder, env=dict(os.environ, BERTH_BUILD=os.path.dirname(BERTH)),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, *words):
        """Its exit code, stdout and stderr."""
        job = self.start(*words)
        out, err = job.communicate(timeout=300)
        return job.returncode, out, err

    def measure(self, *words):
        """A quick run, which leaves nothing but its report; and its text."""
        before = self.entries()
        code, out, err = self.finish("--quick", *words, "--json", "j")
        self.assertEqual(code, 0, err)
        self.assertEqual(self.entries(), sorted(before + ["j"]))
        return json.loads(self.read("j")), out

    def takes_not(self, *cases):
        for words, says in cases:
            code, _, err = self.finish(*words)
            self.assertIn(says, err)
            self.assertNotIn("Traceback", err)
            self.assertEqual(code, 2)

    def setUp(self):
        super().setUp()
        if "BERTH_PYTHON" not in os.environ:
            self.skipTest("BERTH_PYTHON names no Python with PyTorch")


class BenchSave(Benchmark):
    name = "save"

    def test_without_a_benchmark_there_is_help(self):
        self.assertIn("Commands:", self.berth("bench", code=2).err)
        self.assertIn("--tensors", self.berth("bench", "save", "--help").out)
        self.refused("bench", "frobnicate", says="frobnicate")

    def test_keys_and_sums_of_the_report(self):
        report = self.report("--size", "8MiB", "--tensors", "4")
        self.assertEqual((report["nbytes"], report["tensors"], report["durability"], report["crc32"]),
                         (8 << 20, 4, "full", True))
        self.assertGreater(report["file_nbytes"], 8 << 20)
        self.assertAlmostEqual(report["GiB_per_s"], 8 / 1024 / report["seconds"])
        self.assertIn(report["method"], ("buffered", "direct"))
        self.assertEqual(list(report["phases"]), ["plan", "transfer", "sync", "other"])
        self.assertAlmostEqual(sum(report["phases"].values()), report["seconds"])

    def test_options_are_those_of_a_save(self):
        report = self.report("--size", "1MiB", "--set", "save.durability=none", "--set",
                             "save.compute_crc32=off")
        self.assertEqual((report["durability"], report["crc32"]), ("none", False))

    def test_tensors_are_as_large_as_asked_for(self):
        for words, n, nbytes in ((["--size", "130MiB"], 2, 130 << 20), (["--size", "1000000"], 1, 1000000),
                                 (["--size", "1MiB", "--tensors", "500"], 500, 500 * 2096)):
            report = self.report(*words)
            self.assertEqual((report["tensors"], report["nbytes"]), (n, nbytes))

    def test_tensors_of_a_file(self):
        for words in ([], ["--device", "simulated"]):
            report = self.report(self.demo, *words)
            self.assertEqual((report["tensors"], report["device"]), (9, words[-1] if words else "cpu"))
        self.assertEqual(self.report(old("rare-1.13-zip.pth"))["tensors"], 4)
        self.refused("bench", "save", self.write("x.pt", b"nothing\0of the kind"), code=1,
                     says="x.pt: neither a zip archive nor PyTorch's legacy format")

    def test_tensors_on_a_device(self):
        for words in (["--size", "20MiB"], ["--size", "1MiB", "--tensors", "300"]):
            report, host = self.report("--device", "simulated", *words), self.report(*words)
            self.assertEqual((report["device"], host["device"]), ("simulated", "cpu"))
            self.assertEqual((report["nbytes"], report["tensors"]), (host["nbytes"], host["tensors"]))
        self.assertIn(" on simulated:1, 1.0 MiB;",
                      self.bench("--device", "simulated:1", "--size", "1MiB").out)
        self.assertEqual(self.report("--device", "cpu", "--size", "1MiB")["device"], "cpu")

    def test_text_and_statistics(self):
        done = self.bench("--size", "1MiB", "--stats")
        self.assertRegex(done.out, r"\n\d+\.\d\d GiB/s: \d+\.\d+ s\n")
        self.assertIn("records: 7, storages: 1,", done.err)
        done = self.bench("--size", "1MiB", "--stats", "--json")
        self.assertEqual((json.loads(done.out)["stats"]["n_storages"], done.err), (1, ""))

    def test_what_it_does_not_take(self):
        self.takes_not((["--device", "disk:0"], "disk:0: not the name of a device"),
                       (["--device", "simulated:7"], "simulated:7: there is no such device"),
                       (["--device", ""], "not the name of a device"), (["--size", "12XB"], "12XB"), (["--size", "-1"], "-1"),
                       (["--size", "99999999999G"], "99999999999G"), (["--size", "0"], "--size"),
                       (["--tensors", "0"], "--tensors"), (["--tensors", "5x"], "5x"),
                       (["a", "b"], "too many arguments: at most"),
                       ([self.demo, "--tensors", "3"], "--tensors"),
                       (["--size", "3", "--tensors", "3"], "too few"),
                       (["--tensors", "1", "--size", "4000TiB"], "do not fit"))

    def test_without_a_driver_there_is_one_clear_line(self):
        import ctypes
        try:
            ctypes.CDLL("libcuda.so.1")
            self.skipTest("this machine has a driver")
        except OSError:
            pass
        for command in ("save", "load"):
            before = self.entries()
            done = self.berth("bench", command, "--device", "cuda:0", "--size", "1MiB", code=2)
            self.assertRegex(done.err, r"\Aberth: cuda:0: (there is no CUDA driver on this machine "
                                       r"\(.*\)|this library was built without support for CUDA "
                                       r"devices)\n\Z")
            self.assertEqual((done.out, self.entries()), ("", before))

    def test_a_failure_removes_what_was_written(self):
        import resource
        done = self.bench("--size", "8MiB", code=2, preexec_fn=lambda: (
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))))
        self.assertIn("File too large", done.err)
        self.assertEqual(done.err.count("\n"), 1)

    def test_a_signal_removes_what_was_written(self):
        cancel(self, "save", "--size", "512MiB")


class BenchLoad(Benchmark):
    name = "load"

    def test_keys_and_sums_of_the_report(self):
        report = self.report("--size", "8MiB", "--tensors", "4", "--set", "debug=off")
        self.assertEqual((report["nbytes"], report["tensors"], report["storages"], report["check"],
                          report["cold"]), (8 << 20, 4, 4, "directory", False))
        self.assertGreater(report["file_nbytes"], 8 << 20)
        self.assertGreaterEqual(report["resident_before"], 0.99)
        self.assertAlmostEqual(report["GiB_per_s"], 8 / 1024 / report["seconds"])
        self.assertEqual(list(report["phases"]), ["open", "names", "transfer", "touch"])
        self.assertAlmostEqual(sum(report["phases"].values()), report["seconds"])
        self.assertNotIn("parse", report)

    def test_storages_go_to_a_device(self):
        for words in (["--size", "8MiB", "--tensors", "3"], [self.demo],
                      ["--size", "1MiB", "--cold", "--set", "load.check=data"]):
            report = self.report("--device", "simulated:1", "--stats", *words)
            self.assertEqual(report["device"], "simulated:1")
            self.assertEqual(report["stats"]["device_nbytes"], report["nbytes"])
            self.assertIn(report["method"], ("read", "direct"))
        self.assertEqual(self.report(self.demo)["device"], "cpu")
        self.assertIn("MiB to simulated:0; read", self.bench("--device", "simulated:0", self.demo).out)

    def test_methods_and_what_is_touched(self):
        for method in ("map", "read", "direct"):
            report = self.report("--size", "64MiB", "--set", f"load.method={method}")
            if report["method"] != method:
                self.assertEqual(method, "direct")  # not every file system has direct reads
                continue
            self.assertEqual(report["reason"], f"load.method={method}")
            # What is read is there already; of a map every byte is looked at.
            seconds = report["phases"]
            self.assertEqual(seconds["touch"] > seconds["transfer"] / 100, method == "map", seconds)
            self.assertGreaterEqual(report["peak_nbytes"], 60 << 20)

    def test_with_a_prefetch_each_storage_is_asked_for_when_it_is_touched(self):
        report = self.report("--size", "64MiB", "--cold", "--set",
                             "load.method=map", "--set", "load.prefetch=populate")
        self.assertEqual((report["method"], report["prefetch"]), ("map", "populate"))
        self.assertGreater(report["phases"]["touch"], report["phases"]["transfer"] * 10)

    def test_cold_is_counted(self):
        report = self.report("--size", "32MiB", "--cold", "--set", "load.method=read")
        self.assertLess(report["resident_before"], 1)
        self.assertEqual(report["cold"], report["resident_before"] <= 0.01)
        if report["cold"]:  # not where files live in memory
            self.assertGreaterEqual(report["fetched_nbytes"], 32 << 20)
            self.assertEqual(self.bench("--cold", self.demo).err, "")

    @unittest.skipUnless(os.path.isdir("/dev/shm"), "no file system in memory")
    def test_what_cannot_be_evicted_is_told(self):
        path = tempfile.mkdtemp(dir="/dev/shm")
        self.addCleanup(shutil.rmtree, path, ignore_errors=True)
        path = shutil.copy(self.demo, path)
        done = self.bench("--cold", path, "--json")
        self.assertEqual(done.err, f"berth: {path}: cannot be evicted: 100 % stayed in the "
                                   "page cache\n")
        self.assertEqual([json.loads(done.out)[key] for key in ("cold", "resident_before")],
                         [False, 1])
        done = self.bench("--cold", path, "--quiet")
        self.assertEqual(done.err, "")
        self.assertIn("not fully evicted", done.out)

    def test_a_file_of_ones_own(self):
        before = self.read("demo.pt")
        report = self.report(self.demo)
        self.assertEqual((report["tensors"], report["storages"], report["nbytes"],
                          report["file_nbytes"]), (9, 8, 4 * (256 * 256 + 256) * 4, len(before)))
        self.assertEqual(self.read("demo.pt"), before)
        self.assertEqual(self.report(old("many-1.13-stream.pth"))["storages"], 13)
        self.refused("bench", "load", self.write("x.pt", b"nothing\0of the kind"), code=1,
                     says="x.pt: neither a zip archive nor PyTorch's legacy format")
        self.refused("bench", "load", "nowhere.pt", says="nowhere.pt: cannot be opened: No such file or directory")

    def test_opening_alone(self):
        debug_off = ["--set", "debug=off"]
        report = self.report("--open", "--size", "5MiB", "--tensors", "2000", *debug_off,
                             "--set", "load.check=none")
        self.assertEqual((report["n_requests"], report["open_requests"]), (1, 1))
        self.assertEqual(list(report["phases"]), ["open", "names", "addresses"])
        self.assertGreater(report["parse"]["seconds"], 0)
        self.assertGreater(report["parse"]["nbytes"], 2000 * 50)
        self.assertLess(report["moved_nbytes"], 2 << 20)
        self.assertNotIn("parse", self.report("--open", old("many-1.13-stream.pth")))
        self.assertIn("parsing data.pkl", self.bench("--open", self.demo).out)
        self.assertIn(" check headers (debug), ",
                      self.bench("--open", self.demo, "--set", "debug=on").out)

    def test_text_and_statistics(self):
        done = self.bench("--size", "1MiB", "--stats")
        self.assertRegex(done.out, r"\n\d+\.\d\d GiB/s: \d+\.\d+ s\n")
        self.assertIn("storages: 1,", done.err)
        done = self.bench("--size", "1MiB", "--stats", "--json")
        self.assertEqual((json.loads(done.out)["stats"]["n_storages"], done.err), (1, ""))

    def test_what_it_does_not_take(self):
        self.takes_not((["--device", "disk:0"], "disk:0: not the name of a device"),
                       (["--device", "simulated:7"], "simulated:7: there is no such device"),
                       (["--device", "simulated", "--open"], "--device does not apply"),
                       (["--size", "12XB"], "12XB"), (["--tensors", "0"], "--tensors"),
                       (["a", "b"], "too many arguments: at most"),
                       (["--cold", "--warm"], "exclude each other"),
                       ([self.demo, "--size", "1MiB"], "--size"),
                       ([self.demo, "--tensors", "3"], "--tensors"))

    def test_a_signal_removes_what_was_made(self):
        cancel(self, "load", "--size", "512MiB")


class BenchRows(Benchmark):
    name = "rows"
    usual = ["--size", "8MiB", "--batch", "256", "--batches", "4"]

    def test_keys_and_sums_of_the_report(self):
        report = self.report()
        self.assertEqual((report["n_ids"], report["row_nbytes"], report["table_nbytes"],
                          report["cache_nbytes"], report["nbytes"]),
                         (1024, 512, 8 << 20, 4 << 20, 1024 * 512))
        self.assertAlmostEqual(sum(report["phases"].values()), report["seconds"])
        counts = report["cache"]
        self.assertEqual(counts["hits"] + counts["misses"], counts["unique"])
        self.assertGreater(counts["unique"], 1000)

    def test_ids_of_ones_own(self):
        path = self.write("ids", struct.pack("=1024q", *(i % 7 for i in range(1024))))
        self.assertEqual(self.report("--ids", path)["cache"]["unique"], 4 * 7)
        for ids, says in ((b"12345678", "it holds only 1 of 1024 ids"),
                          (struct.pack("=1024q", *range(1 << 14, (1 << 14) + 1024)), "16384")):
            self.assertIn(says, self.bench(*self.usual, "--ids", self.write("ids", ids), code=2).err)
        self.assertIn("nowhere: No such file", self.bench(*self.usual, "--ids", "nowhere", code=2).err)

    def test_a_file_of_ones_own(self):
        report = json.loads(self.bench("--json", "--batch", "10", "--batches", "3", "--warm",
                                       self.demo).out)
        self.assertEqual((report["row_nbytes"], report["table_nbytes"], report["cold"]),
                         (1024, 256 * 1024, False))
        header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        self.write("a.safetensors", struct.pack("<Q", len(header)) + header + bytes(4))
        self.berth("convert", "a.safetensors", "a.pt")
        self.refused("bench", "rows", "a.pt",
                     says="a.pt: there is no contiguous tensor of two dimensions")

    def test_text(self):
        done = self.bench(*self.usual)
        self.assertIn("4 batches of 256 rows of 512 bytes, of 8.0 MiB; memory: 4.0 MiB", done.out)
        self.assertRegex(done.out, r"distinct rows: \d+, \d+ of them in the cache; reads: \d+")
        self.assertEqual(done.err, "")
        done = self.bench(*self.usual, "--stats")
        self.assertRegex(done.err, r"^rows: 1024 requested, \d+ distinct, .*\nbytes: .*; lines: \d+ "
                                   r"of 512 bytes\n$")

    def test_what_it_does_not_take(self):
        self.takes_not((["--row", "6"], "--row"), (["--row", "0"], "--row"),
                       (["--size", "100", "--row", "104"], "--row"),
                       (["--batch", "0"], "--batch"), (["--cache", "x"], "--cache"),
                       ([self.demo, "--size", "1MiB"], "--size"),
                       ([*self.usual, "--cache", "1000"], "bytes"))

    def test_a_signal_removes_what_was_made(self):
        cancel(self, "rows", "--size", "512MiB")


class BenchSaveTool(Tool):
    name = "save"

    def start(self, *words):
        return super().start("--tmpfs", self.path("memory"), *words)

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("memory"))

    def test_a_quick_run_measures_every_ratio_and_leaves_nothing(self):
        report, out = self.measure("--size", "8MiB", "--shapes", "llama,small,one")
        self.assertEqual(os.listdir(self.path("memory")), [])
        self.assertEqual([each["shape"] for each in report["shapes"]], ["llama", "small", "one"])
        self.assertEqual([len(each["ratios"]) for each in report["shapes"]], [10, 5, 10])
        for each in report["shapes"]:
            self.assertIn(each["what"], out)
            for ratio in each["ratios"]:
                self.assertEqual(len(ratio["rounds"]), 2)
                self.assertTrue(0 < ratio["min"] <= ratio["median"] <= ratio["max"], ratio)
            for name, figure in each["figures"].items():
                self.assertEqual(len(figure["seconds"]), 2)
                self.assertGreater(figure["GiB_per_s"], 0, name)
            self.assertEqual(len(each["costs"]), 2)
        llama = report["shapes"][0]["figures"]
        raw = min(figure["seconds"][0] for name, figure in llama.items() if " direct, " in name)
        self.assertAlmostEqual(report["shapes"][0]["ratios"][0]["rounds"][0],
                               raw / llama["disk: berth, durable"]["seconds"][0])

    def test_wrong_usage_and_a_refused_option(self):
        self.takes_not((["--shapes", "round"], "round"), (["--size", "5X"], "5X"),
                       (["--rounds", "0"], "--rounds"),
                       (["--quick", "--set", "save.durability=maybe"], "maybe"))

    def test_a_signal_removes_what_was_written(self):
        before = self.entries()
        for number, code in ((signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            job = self.start("--quick", "--shapes", "uniform", "--size", "16MiB", "--rounds", "1000")
            for line in job.stderr:
                if "round 1 of" in line:
                    break
            self.assertGreater(len(self.entries()), len(before))
            job.send_signal(number)
            job.communicate(timeout=600)
            self.assertEqual((job.returncode, self.entries(), os.listdir(self.path("memory"))),
                             (code, before, []))


class BenchLoadTool(Tool):
    name = "load"

    def test_a_quick_run_measures_every_case_and_leaves_nothing(self):
        # A folder that looks like a memory cgroup: to be in it changes nothing.
        os.mkdir(self.path("cgroup"))
        self.write("cgroup/memory.max", b"8388608\n")
        report, out = self.measure("--size", "8MiB", "--rounds", "1", "--shape", "llama", "--cgroup",
                                   self.path("cgroup"))
        self.assertEqual([each["case"] for each in report["sections"]],
                         ["open", "open", "cold", "warm", "map", "startup", *["startup"] * HAS_SIMULATED, "passes",
                          "rows", "rows", "verify", "parse"])
        for each in report["sections"]:
            self.assertIn(each["what"], out)
            for ratio in each["ratios"]:
                self.assertTrue(0 < ratio["min"] <= ratio["median"] <= ratio["max"], ratio)
            for name, figure in each["figures"].items():
                self.assertTrue(1 <= len(figure["seconds"]) <= 2, (name, figure))
        self.assertEqual(out.count("all in a memory cgroup of 8 MiB"), 2)
        self.assertEqual(self.read("cgroup/cgroup.procs"), b"0")
        for each in report["sections"][:2]:
            self.assertTrue(all(cost["value"] <= cost["at_most"] for cost in each["costs"]), each)
        warm = report["sections"][3]
        self.assertAlmostEqual(warm["ratios"][0]["rounds"][0],
                               warm["figures"]["torch.load"]["seconds"][0] /
                               warm["figures"]["berth"]["seconds"][0])

    def test_wrong_usage_and_a_refused_option(self):
        self.takes_not((["--shape", "round"], "round"), (["--size", "5X"], "5X"),
                       (["--rounds", "0"], "--rounds"), (["--cases", "hot"], "hot"),
                       (["--read-ahead", "much"], "much"),
                       (["--quick", "--cases", "open", "--set", "load.check=maybe"], "maybe"))


class BenchPythonTool(Tool):
    name = "python"

    def test_a_quick_run_has_each_operation_in_a_fresh_and_a_warmed_process(self):
        before, self.name = self.entries(), "figures"  # it runs the other, and keeps what it said
        code, out, err = self.finish("--only", "python", "--quick", "--reports", "r", "--set", "io.large_pages=on")
        self.assertEqual(code, 0, err)
        self.assertEqual(self.entries(), sorted(before + ["r"]))
        report = json.loads(self.read("r/fresh.json"))
        rows = [(each["operation"], each["state"]) for each in report["fresh"]]
        self.assertEqual(rows, [(operation, state) for operation in ("load", "load mmap", "save", "save_async", "open")
                                for state in ("fresh", "warmed")] + [("save durable", "fresh"), ("load cold", "fresh")])
        for each in report["fresh"]:
            self.assertAlmostEqual(each["ratio"], each["torch"]["median"] / each["berth"]["median"])
            self.assertGreaterEqual(each["large"], 0)
        self.assertEqual(self.read("r/fresh.txt").count(b" | fresh | "), 7)
        self.assertIn("`io.large_pages=on` gave large pages to ", out)
        self.assertIn("A QUICK RUN, WHICH SAYS NOTHING.", " ".join(out.split()))
        self.assertEqual(out.count(" x |\n"), 7)

    def test_weights_beside_those_that_are_there(self):
        """One contestant is found in a folder and does not work, one is nowhere: both are named."""
        os.makedirs(self.path("others/fastsafetensors-9.dist-info"))
        self.write("others/fastsafetensors-9.dist-info/METADATA", b"Metadata-Version: 2.1\nName: fastsafetensors\nVersion: 9\n")
        self.write("others/fastsafetensors.py", b"raise ImportError('it needs a GPU')\n")
        report, out = self.measure("--rounds", "1", "--weights", "--cases", "warm,slices,plan", "--contestants", "others")
        warm, slices, plan = report["sections"]
        self.assertIn("fastsafetensors 9", report["contestants"])
        self.assertIn("by fastsafetensors 9 ended with 1: ImportError: it needs a GPU", out)
        if not any(each.startswith("runai") for each in report["contestants"]):
            self.assertIn("without runai-model-streamer, which is not here", out)
        package = report["contestants"][0]  # which BERTH_PYTHON has
        self.assertEqual({name.split(", ")[0] for name in warm["figures"]}, {"berth", package})
        self.assertIn((f"in memory of its own, against {package}", 1.5), [(each["case"], each["aim"]) for each in warm["ratios"]])
        for section, cost in ((warm, "memory above the tensors, berth, MiB"),
                              (slices, "bytes from the disk by those of the file, berth"),
                              (plan, "memory, pread, MiB; at most the window")):
            self.assertIn(cost, [each["case"] for each in section["costs"]])
        self.assertGreater(plan["costs"][1]["value"], 1)  # of a window of 8 MiB

    def test_wrong_usage_and_a_refused_option(self):
        self.takes_not((["--cases", "many"], "--cases is for --no-fresh and --weights"),
                       (["--weights", "--cases", "many"], "there is no case 'many'; there are warm, cold, "),
                       (["--contestants", "."], "--contestants and --size are for --weights"),
                       (["--no-fresh", "--cases", "hot"], "hot"),
                       (["--quick", "--set", "io.large_pages=maybe"], "maybe"))


class BenchFiguresTool(Tool):
    """Of made reports: nothing is run."""

    name = "figures"
    pages = {"README.md": "# A\n\n<!-- figures: readme -->\nold\n<!-- end of figures -->\n\nb\n",
             "docs/p.md": "<!-- figures: fresh -->\n<!-- end of figures -->\nbetween\n"
                          "<!-- figures: writers -->\nkept\n<!-- end of figures -->\n"}

    def setUp(self):
        Case.setUp(self)  # no PyTorch is needed
        os.mkdir(self.path("docs"))
        os.mkdir(self.path("r"))
        for name, text in self.pages.items():
            self.write(name, text.encode())
        machine = {"processor": "Fast One", "processors": 2, "memory_nbytes": 23 << 30, "file_system": "ext4",
                   "kernel": "6.18.1-x"}
        self.head = {"date": "2026-11-28T21:40:00+00:00", "quick": False, "rounds": 3, "set": [], "build": "release",
                     "torch": "2.13.0", "machine": machine, "others_before": 0.01, "commit": "abc"}

        def row(case, operation, state, berth, *ratios):
            return {"case": case, "operation": operation, "state": state, "berth": {"median": berth},
                    "torch": {"median": berth * ratios[1]}, "ratios": ratios, "ratio": ratios[1], "large": 0.97}

        self.keep("fresh", fresh=[
            row("8 x 64 MiB", "load", "fresh", 0.25, 1.25, 1.5, 2), row("8 x 64 MiB", "load", "warmed", 0.1, 3, 4.04, 5),
            row("8 x 64 MiB", "save_async", "fresh", 0.0125, 0.9, 0.91, 1),
            row("100,000 x 2 KiB", "save durable", "fresh", 1.5, 20, 28.4, 1200)])
        figure, ratio = {"median": 0.5}, {"median": 9.7, "min": 9, "max": 10, "aim": 2.5}
        self.keep("loading", sections=[
            {"case": "startup", "what": "started", "nbytes": 1 << 30, "figures": {"berth": figure, "slow": {"median": 5}},
             "ratios": [dict(ratio, case="against slow", ours="berth", theirs="slow")]},
            {"case": "verify", "what": "checked", "nbytes": 1 << 30, "figures": {"berth verify, warm": figure},
             "ratios": [dict(ratio, case="warm, against unzip -t", ours="berth verify, warm", median=86)]}])

    def keep(self, name, **parts):
        self.write(f"r/{name}.json", json.dumps(dict(self.head, **parts)).encode())

    def render(self, *words):
        return self.finish("--from", "r", "--pages", ".", *words)

    def test_kept_reports_make_the_same_tables_and_only_what_is_between_markers_is_written(self):
        conditions = (
            "`tools/bench/python`, 2026-11-28, commit abc: Fast One, 2 processors, 23 GiB of memory, ext4, Linux 6.18; PyTorch\n"
            "2.13.0; medians of 3 rounds, and the range of the rounds' ratios; each turn a process of its own;\n"
            "`io.large_pages=auto` gave large pages to 97 % of the bytes of the first `load` of 8 x 64 MiB.\n\n")
        missed = "\nAims that were missed (1 of 4): 8 x 64 MiB, load, warmed: 4.0, the aim is 5.0.\n"
        fresh = conditions + (
            "| tensors | the first call of a process | Berth | PyTorch | PyTorch / Berth |"
            " a later call, after large pages were touched |\n| --- | --- | --- | --- | --- | --- |\n"
            "| 8 x 64 MiB | load | 250 ms | 375 ms | 1.50 (1.25 to 2.0) | 4.0 (3.0 to 5.0) |\n"
            "| 8 x 64 MiB | the call of `save_async` | 12.5 ms | 11.4 ms | 0.91 (0.90 to 1.00) | |\n"
            "| 100,000 x 2 KiB | save, durable | 1.5 s | 42.6 s | 28 (20 to 1,200) | |\n") + missed
        readme = conditions + (
            "| | Berth | against: their time divided by ours |\n| --- | --- | --- |\n"
            "| save, durable: 100,000 x 2 KiB | 1.5 s | `torch.save` and fsync: 28 (20 to 1,200) |\n"
            "| the call of `save_async`: 8 x 64 MiB | 12.5 ms | cloning the tensors: 0.91 (0.90 to 1.00) |\n"
            "| load: 8 x 64 MiB | 250 ms | `torch.load`: 1.50 (1.25 to 2.0) |\n"
            "| started (warmed process) | 500 ms | slow: 9.7 (9.0 to 10) |\n"
            "| checked: warm (warmed process) | 2.00 GiB/s | unzip -t: 86 (9.0 to 10) |\n") + missed
        code, out, err = self.render("--only", "fresh")
        self.assertEqual((code, out, err), (0, f"<!-- figures: fresh -->\n{fresh}<!-- end of figures -->\n", ""))
        for _ in range(2):  # writing it again changes nothing
            code, out, err = self.render("--write")
            self.assertEqual((code, out), (0, ""), err)
            self.assertIn("writers: there is no r/writers.json", err)
            self.assertEqual(self.read("README.md").decode(), self.pages["README.md"].replace("old\n", readme))
            self.assertEqual(self.read("docs/p.md").decode(),
                             self.pages["docs/p.md"].replace("fresh -->\n", "fresh -->\n" + fresh))
        self.assertEqual(self.render("--only", "python")[1].split("\n\n")[1].splitlines()[2:-1], [
            "| load | `torch.load` | 250 ms; 1.50 x | |", "| the call of `save_async` | cloning the tensors | 12.5 ms; 0.91 x | |",
            "| save, durable | `torch.save` and fsync | | 1.5 s; 28 x |"])

    def test_saves_have_a_column_for_each_part(self):
        def part(what, speed, *ratios):
            return {"what": what, "nbytes": 1 << 29, "costs": [{"case": "memory, MiB", "value": 33.2}],
                    "figures": {"writers, berth.dcp.save": {"GiB_per_s": speed}},
                    "ratios": [{"case": case, "median": each, "min": each, "max": each, "aim": 0.9}
                               for case, each in zip("ab", ratios)]}

        self.keep("writers", sections=[part("rows", 1.9, 0.899, 3), part("columns", 1.26, 0.5)])
        code, out, err = self.render("--only", "writers")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(out.split("\n\n")[1:], [
            "| | rows, 0.5 GiB | columns, 0.5 GiB |\n| --- | --- | --- |\n| `berth.dcp.save`, GiB/s | 1.90 | 1.26 |\n"
            "| a | 0.90 (0.90 to 0.90) | 0.50 (0.50 to 0.50) |\n| b | 3.0 (3.0 to 3.0) | |\n| memory, MiB | 33 | 33 |",
            "Aims that were missed (1 of 3): columns, a: 0.50, the aim is 0.90.\n<!-- end of figures -->\n"])

    def test_each_table_has_its_place_in_the_pages_of_the_source(self):
        code, _, err = self.finish("--from", "r")  # refuses a marker that it does not know
        self.assertEqual(code, 0, err)
        root, found = os.path.join(HERE, "..", ".."), []
        for path in ("README.md", *(f"docs/{name}.md" for name in ("performance", "python", "scale", "weights"))):
            with open(os.path.join(root, path), encoding="utf-8") as file:
                found += [line.split()[2] for line in file if line.startswith("<!-- figures:")]
        self.assertEqual(sorted(found), ["fresh", "loading", "python", "readme", "saving", "weights", "writers"])

    def test_what_it_does_not_take(self):
        before = {name: self.read(name) for name in self.pages}
        self.takes_not((["--only", "speed"], "there is no 'speed'"), (["--quick", "--write"], "--quick"),
                       (["--rounds", "0"], "--rounds"), (["--from", "none"], "none has none of the reports"))
        for head, says in ((dict(quick=True), "of a quick run"), (dict(build="debug"), "of the debug build")):
            self.keep("fresh", fresh=[], **head)
            self.takes_not((["--from", "r", "--pages", ".", "--write"], says))
        tool = os.path.join(HERE, "..", "..", "tools", "bench", self.name)  # it says so before it runs anything
        done = subprocess.run([tool, "--write", "--pages", ".", "--reports", "r"], cwd=self.folder, text=True,
                              stderr=subprocess.PIPE, env=dict(os.environ, BERTH_BUILD="/there/debug"))
        self.assertEqual((done.returncode, "is the debug build" in done.stderr), (2, True), done.stderr)
        self.write("r/fresh.json", b"[]")
        self.takes_not((["--from", "r"], "r/fresh.json is no report of tools/bench/figures"))
        self.assertEqual({name: self.read(name) for name in self.pages}, before)
        for text in (b"<!-- figures: speed -->\n<!-- end of figures -->\n", b"<!-- figures: fresh -->\n",
                     b"<!-- end of figures -->\n", b"<!-- figures: fresh -->\n" * 2 + b"<!-- end of figures -->\n"):
            self.write("docs/p.md", text)
            self.takes_not((["--from", "r", "--pages", "."], "docs/p.md: a marker"))


@unittest.skipUnless(HAS_SIMULATED, "the library for tests is not built")
class BenchDeviceTool(Tool):
    """Without a GPU."""

    name = "device"

    def test_a_quick_run_on_a_simulated_device_measures_all_of_ours_and_leaves_nothing(self):
        report, out = self.measure("--size", "8MiB", "--device", "simulated", "--shapes", "llama,linear",
                                   "--scale", "0.5", "--rounds", "1")
        self.assertEqual((report["device"]["device"], report["device"]["name"]),
                         ("simulated:0", "simulated"))
        self.assertEqual([each["case"] for each in report["sections"]],
                         ["save", "b: load, cold", "b: load, warm", "save", "e: load, cold", "e: load, warm"])
        for first in (0, 3):
            self.assertLess(abs(report["sections"][first]["nbytes"] - (4 << 20)), 1 << 20)
        self.assertEqual(report["sections"][3]["tensors"], 20)
        for each in report["sections"]:
            self.assertIn(each["what"], out)
            self.assertEqual(len(each["ratios"]), 4 if each["case"] == "save" else 2)
            for ratio in each["ratios"]:
                self.assertIsNone(ratio["aim"])  # what is simulated is not fast
                self.assertTrue(0 < ratio["min"] <= ratio["median"] <= ratio["max"], ratio)
            limit = each["figures"]["the slower limit"]["seconds"]
            copies = each["figures"]["copy loop"]["seconds"]
            self.assertTrue(all(a >= b for a, b in zip(limit, copies)))
        saved = report["sections"][0]
        self.assertAlmostEqual(saved["ratios"][0]["rounds"][0],
                               saved["figures"]["the slower limit"]["seconds"][0] /
                               saved["figures"]["berth, durable"]["seconds"][0])
        self.assertEqual(saved["command"]["device"], "simulated:0")

    def test_without_a_gpu_it_says_so_and_measures_nothing(self):
        has_gpu = subprocess.run([os.environ["BERTH_PYTHON"], "-c", "import sys, torch; "
                                  "sys.exit(not torch.cuda.is_available())"]).returncode == 0
        if has_gpu:
            self.skipTest("there is a GPU here")
        before = self.entries()
        code, out, err = self.finish("--quick", "--json", "j")
        self.assertEqual((code, out, self.entries()), (2, "", before))
        self.assertIn("PyTorch finds no GPU here", err)
        self.assertIn("nothing was measured", err)
        self.assertEqual(err.count("\n"), 1)

    def test_wrong_usage(self):
        self.takes_not((["--shapes", "round"], "round"), (["--size", "5X"], "5X"),
                       (["--scale", "2"], "--scale 2.0: must be above 0 and at most 1"),
                       (["--device", "disk:0"], "disk:0"),
                       (["--device", "cuda:one"], "cuda:one"),
                       (["--device", "simulated:9"], "there is no such device"))


class BenchWritersTool(Tool):
    name = "writers"

    def test_a_quick_run_compares_files_measures_every_ratio_and_leaves_nothing(self):
        report, out = self.measure("--size", "8MiB", "--writers", "2")
        self.assertEqual([(each["shards"], each["writers"]) for each in report["sections"]],
                         [("rows", 2), ("columns", 2)])
        for each in report["sections"]:
            self.assertIn(each["what"], out)
            self.assertEqual((len(each["figures"]), len(each["ratios"]), each["nbytes"]), (5, 4, 8 << 20))
            # Rank 0 gets half of it by this; who saves shards of rows needs no copy.
            gathered = each["memory"]["gather + torch.save + fsync"]
            self.assertTrue(4 << 20 <= gathered <= 64 << 20, each["memory"])
            one = each["figures"]["one process, berth.save"]["seconds"]
            ours = each["figures"]["writers, berth.dcp.save"]["seconds"]
            self.assertEqual(each["ratios"][0]["rounds"], [a / b for a, b in zip(one, ours)])

    def test_a_simulation_counts_what_is_sent(self):
        report, out = self.measure("--simulate", "16", "--tensors", "20", "--slice", "4KiB")
        aligned, fragments, exchanged, own = report["sections"]
        for each in report["sections"]:
            self.assertEqual([run["writers"] for run in each["runs"]], [2, 4, 8, 16])
            self.assertIn(each["what"], out)
            for run in each["runs"]:
                self.assertGreater(run["seconds"]["all"]["wall"], run["seconds"]["finish"]["wall"])
        for a, b, c in zip(aligned["runs"], fragments["runs"], own["runs"]):
            n = a["writers"]
            # Head and end, 32 bytes a part; a slice that is not aligned is a fragment.
            self.assertEqual(a["receipts_nbytes"], n * (44 + 20 * 32))
            self.assertEqual(c["receipts_nbytes"], n * (44 + 20 * 32))
            self.assertEqual(b["receipts_nbytes"], n * (44 + 20 * (32 + 4096)))
            self.assertGreater(a["file_nbytes"], n * 20 * 4096)
            self.assertLess(a["ticket_nbytes"], 20 * 300)
            self.assertGreater(c["ticket_nbytes"], n * 20 * 100)
        for run in exchanged["runs"]:  # of each tensor two ends, which are a block together, and one window
            self.assertEqual(run["receipts_nbytes"], run["writers"] * 44 + 20 * (3 * 32 + 4096))

    def test_wrong_usage_and_a_refused_option(self):
        self.takes_not((["--shards", "layers"], "layers"), (["--writers", "0"], "--writers"),
                       (["--simulate", "0"], "--simulate"), (["--cases", "all"], "all"),
                       (["--slice", "3"], "--slice"), (["--size", "5X"], "5X"),
                       (["--quick", "--writers", "1", "--set", "save.durability=maybe"], "maybe"))
