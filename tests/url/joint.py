# SPDX-License-Identifier: BSD-3-Clause
"""One object of S3 by many ranks of torch.distributed: bytes, faults, kills, deadlines, memory; and what each rank reads."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import files
from packaged import BUILT, PACKAGE
from uploads import PART, Writing

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ranks.py")
URL = "s3://bucket/model.pt"
LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")
OLD = b"the old object"


@unittest.skipUnless(os.path.exists(PACKAGE), "the package is not built")
class Joint(Writing):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = cls.torch("torch.save(whole(), f'{folder}/model.pt')\nprint(f'{folder}/model.pt')")

    @classmethod
    def torch(cls, text):
        """The file that PyTorch writes of the whole state."""
        folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, folder)
        code = f"import sys\nsys.path.insert(0, {os.path.dirname(PROGRAM)!r})\nfrom ranks import *\nfolder = {folder!r}\n{text}"
        name = subprocess.run([files.PYTHON, "-c", code], env=cls.env_of({}), check=True, capture_output=True, text=True).stdout
        with open(name.strip(), "rb") as file:
            return file.read()

    @staticmethod
    def env_of(more):
        return dict(os.environ, PYTHONPATH=os.path.join(BUILT, "python"), OMP_NUM_THREADS="1", **more)

    def ranks(self, bucket, text, n=4, seconds=60):
        """{rank: what it raised}; a rank that was killed has said nothing."""
        folder = tempfile.mkdtemp(dir=self.folder)
        done = subprocess.run([files.PYTHON, PROGRAM, str(n), str(seconds), folder, text], env=self.env_of(bucket.env),
                              capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))

    def filled(self, *arguments):
        bucket = self.bucket(*arguments)
        bucket.objects["model.pt"] = (OLD, '"old"', "")
        return bucket

    SAVE = f"berth.dcp.save(shards(whole(), mesh), {URL!r})"

    def test_bytes(self):
        for n in (4, 3, 1) if LONG else (4, 1):
            with self.subTest(n=n):
                bucket = self.filled()
                self.assertEqual(self.ranks(bucket, self.SAVE, n), dict.fromkeys(range(n)))
                self.assertEqual((bucket.problems, bucket.uploads), ([], {}))
                self.assertTrue(bucket.objects["model.pt"][0] == self.model)
                parts = -(-len(self.model) // PART)
                self.assertEqual(sorted(bucket.steps), ["begin", "complete"] + parts * ["part"])

    def test_other_states(self):
        """What one rank has alone; nothing that is sharded; below one part; a key with odd characters."""
        bucket = self.bucket()
        bucket.long_ids = "+/x" * 330
        text = f"""
small = {{"a": torch.arange(5), "b": [torch.ones(2), 3]}}
berth.dcp.save(small, "s3://bucket/ü ?&+/small.pt")
berth.dcp.save({{"model": {{f"of.{{rank}}": torch.full((700, 1000), float(rank))}}, "all": torch.ones(4)}}, "s3://bucket/own.pt")
berth.dcp.save({{}}, "s3://bucket/empty.pt")
berth.dcp.async_save(shards(whole(), mesh), {URL!r}).result()
"""
        self.assertEqual(self.ranks(bucket, text), dict.fromkeys(range(4)))
        self.assertEqual((bucket.problems, bucket.uploads), ([], {}))
        self.assertTrue(bucket.objects["model.pt"][0] == self.model)
        for key, value in (("ü ?&+/small.pt", '{"a": torch.arange(5), "b": [torch.ones(2), 3]}'), ("empty.pt", "{}"), (
                "own.pt", '{"model": {f"of.{i}": torch.full((700, 1000), float(i)) for i in range(4)}, "all": torch.ones(4)}')):
            made = self.torch(f"name = f'{{folder}}/{key}'\nos.makedirs(os.path.dirname(name), exist_ok=True)\n"
                              f"torch.save({value}, name)\nprint(name)")
            self.assertTrue(bucket.objects[key][0] == made, key)

    # ---- what fails ----

    def check_old(self, bucket, said, pattern):
        """All ranks raise the same; the old object is there, and no upload."""
        for rank, why in said.items():
            self.assertRegex(why or "", pattern, f"rank {rank}")
        self.assertEqual(bucket.objects["model.pt"][0], OLD)
        self.assertEqual(bucket.uploads, {})

    def test_a_fault_at_each_request(self):
        """One that lasts: the error names the step. One that passes: the object is whole."""
        n_parts = -(-len(self.model) // PART)
        ends = [("begin", 0, "beginning the upload"), ("complete", 0, "completing the upload")] * LONG
        for step, number, says in ends + [
                ("part", i, f"part {i + 1} of {n_parts}") for i in range(n_parts) if LONG or i == n_parts // 2]:
            with self.subTest(step=step, number=number):
                def broken(request, step=step, number=number):
                    if request.step == step and int(request.query.get("partNumber", 1)) == number + 1 or (
                            request.step == step != "part"):
                        request.take()
                        request.fail(403, "AccessDenied")

                bucket = self.filled(broken)
                said = self.ranks(bucket, self.SAVE)
                self.assertEqual(sorted(said), [0, 1, 2, 3])
                self.check_old(bucket, said, f"rank [0-3]: s3://bucket/model.pt: .*{says}")

    def test_faults_that_pass(self):
        """Every request fails once: by 503, by a cut before the answer, and behind it."""
        kinds = []

        def once(request):
            key = (request.step, request.query.get("partNumber"))
            if key not in kinds:
                kinds.append(key)
                request.take()
                (request.fail(503, "SlowDown") if len(kinds) % 2 else request.cut())

        bucket = self.filled(once)
        self.assertEqual(self.ranks(bucket, self.SAVE), dict.fromkeys(range(4)))
        self.assertTrue(bucket.objects["model.pt"][0] == self.model)
        self.assertEqual(len(kinds), 2 + -(-len(self.model) // PART))

    def test_one_rank_fails(self):
        for text, pattern in (
                ("if rank == 2: os.environ['AWS_SECRET_ACCESS_KEY'] = 'x' * 40", "rank 2: s3://bucket/model.pt: .*part .*403"),
                ("if rank == 3: os.environ['AWS_ENDPOINT_URL'] = 'nowhere'", "rank 3: AWS_ENDPOINT_URL must be"),
                ("if rank == 1: state['model']['rows'] = state['model']['rows'].double()", "rank 1: .*rows.* is torch.float64"))[:3 if LONG else 1]:
            with self.subTest(pattern):
                bucket = self.filled()
                said = self.ranks(bucket, f"state = shards(whole(), mesh)\n{text}\nberth.dcp.save(state, {URL!r})")
                self.check_old(bucket, said, pattern)

    def test_conditions(self):
        bucket = self.filled()
        said = self.ranks(bucket, f"with berth.config.patch('save.if_match=none'):\n    {self.SAVE}")
        self.check_old(bucket, said, "FileExistsError|there is an object already, which stays")
        text = f"with berth.config.patch('save.if_match=\"old\"'):\n    {self.SAVE}"
        self.assertEqual(self.ranks(bucket, text), dict.fromkeys(range(4)))
        self.assertTrue(bucket.objects["model.pt"][0] == self.model)

    # ---- who dies, who never comes ----

    KILLS = {
        "begins": "kill_at(_dcp_save.Saving, '_begin')",
        "has a ticket": "kill_at(_dcp_save.Saving, '_choose')",
        "sums": "kill_at(_native, 'joint_write')",
        "exchanges": "kill_at(_dcp_group.Group, 'exchange', 2)",
        "sends": "kill_at(_dcp_group.Group, 'exchange', 11)",
        "ends": "kill_at(_dcp_group.Group, 'exchange', 13)",
        "has sent": "kill_at(_dcp_group.Group, '_gather', 4)",
    }

    def test_kills(self):
        """The others get an error that names it, in time. A coordinator's upload is left, and clean removes it."""
        for rank in (2, 0):
            for name, kill in self.KILLS.items() if LONG else [(name, self.KILLS[name]) for name in ("sums", "sends")[rank == 0:]]:
                with self.subTest(rank=rank, place=name):
                    bucket = self.filled()
                    said = self.ranks(bucket, f"state = shards(whole(), mesh)\nif rank == {rank}: {kill}\n"
                                      f"berth.dcp.save(state, {URL!r})", seconds=10)
                    self.assertEqual(sorted(said), [each for each in range(4) if each != rank])
                    self.assertEqual(bucket.objects["model.pt"][0], OLD)
                    for each, why in said.items():
                        self.assertIn(f"rank {rank} of 4 is missing", why, each)
                    if rank:
                        self.assertEqual(bucket.uploads, {})
                        continue
                    self.assertEqual(len(bucket.uploads), name != "begins")
                    self.berth("clean", "--remove", "--older-than=0", "s3://bucket/", env={**os.environ, **bucket.env})
                    self.assertEqual(bucket.uploads, {})

    def test_a_rank_never_comes(self):
        bucket = self.filled()
        said = self.ranks(bucket, f"state = shards(whole(), mesh)\nif rank == 3: time.sleep(7)\nelse: berth.dcp.save(state, {URL!r})",
                          seconds=3)
        self.assertIn("rank 3 of 4 is missing: died, or not come within 3 s", said[0])
        self.assertEqual((said[3], bucket.uploads), (None, {}))
        if not LONG:
            return
        said = self.ranks(bucket, f"if rank == 3: kill_at(_native, 'joint_write', 1, signal.SIGSTOP)\n{self.SAVE}", seconds=3)
        self.assertIn("rank 3 of 4 is missing", said[0])
        self.assertEqual((bucket.objects["model.pt"][0], bucket.uploads), (OLD, {}))

    def test_interrupts(self):
        """^C on one rank, while parts are sent: it is raised there, and the others fail with it."""
        def slow(request):
            if request.step == "part":
                request.take()
                time.sleep(1)

        for rank in (1, 0) if LONG else (1,):
            with self.subTest(rank=rank):
                bucket = self.filled(slow)
                said = self.ranks(bucket, f"state = shards(whole(), mesh)\ndist.barrier()\n"
                                  f"if rank == {rank}: threading.Timer(1.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
                                  f"berth.dcp.save(state, {URL!r})")
                self.assertRegex(said.pop(rank), "^KeyboardInterrupt")
                self.check_old(bucket, said, f"^RuntimeError: rank {rank}: KeyboardInterrupt")

    def test_an_interrupt_of_a_silent_store(self):
        """It does not answer to a part: ^C does not wait for the deadline."""
        for rank in (1, 0) if LONG else (1,):
            with self.subTest(rank=rank):
                ended = threading.Event()

                def behave(request, rank=rank, ended=ended):
                    number, pid = request.headers["x-amz-security-token"].split(".")
                    if request.step == "part" and int(number) == rank:
                        request.take()
                        if not ended.wait(2) and request.owner.steps.count("abort") == 0:  # all wait for it
                            os.kill(int(pid), signal.SIGINT)
                        ended.wait(25)
                        request.cut()

                bucket = self.filled(behave)
                begin = time.monotonic()
                said = self.ranks(bucket, f"os.environ['AWS_SESSION_TOKEN'] = f'{{rank}}.{{os.getpid()}}'\n{self.SAVE}", n=2)
                seconds = time.monotonic() - begin
                ended.set()
                self.assertRegex(said.pop(rank), "^KeyboardInterrupt")
                self.check_old(bucket, said, f"^RuntimeError: rank {rank}: KeyboardInterrupt")
                self.assertLess(seconds, 20)

    def test_an_interrupt_of_the_coordinator(self):
        """While the server does not begin the upload, or complete it: ^C does not wait for the deadline."""
        for step, is_new in (("begin", False), ("complete", True)):
            with self.subTest(step=step):
                ended = threading.Event()

                def behave(request, step=step, ended=ended):
                    if request.step == step:
                        os.kill(int(request.headers["x-amz-security-token"]), signal.SIGINT)
                        ended.wait(9 if step == "begin" else 1)
                        if step == "begin":
                            request.cut()

                bucket = self.filled(behave)
                begin = time.monotonic()
                said = self.ranks(bucket, f"os.environ['AWS_SESSION_TOKEN'] = str(os.getpid())\n{self.SAVE}", n=2)
                seconds = time.monotonic() - begin
                ended.set()
                self.assertRegex(said[0], "^KeyboardInterrupt: ; .*" + ("it came too late: the save is complete" if is_new
                                                                       else "cancelled"))
                self.assertRegex(said[1], "^RuntimeError: rank 0: KeyboardInterrupt")
                self.assertEqual((bucket.objects["model.pt"][0] == self.model, bucket.uploads), (is_new, {}), seconds)

    # ---- memory, and what is read ----

    @unittest.skipUnless(LONG, "the long form")
    def test_memory(self):
        """At most 64 MiB beside the parts in flight: 5 of 8 MiB."""
        text = f"""
state = {{"w": distribute_tensor(torch.ones(70_000_000), mesh, [Shard(0)]), "c": distribute_tensor(torch.ones(6000, 4000), mesh, [Shard(1)])}}
berth.dcp.save(state, {URL!r})  # what a first call imports, and keeps
open("/proc/self/clear_refs", "w").write("5")
before = int(open("/proc/self/statm").read().split()[1]) * 4096
berth.dcp.save(state, {URL!r})
most = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
assert most - before <= 64 * MIB + 5 * 8 * MIB, (most - before) / MIB
os.write(2, b"%d MiB\\n" % ((most - before) // MIB))
"""
        self.assertEqual(self.ranks(self.bucket(), text), dict.fromkeys(range(4)))

    def test_each_rank_reads_its_own(self):
        """Of the object's bytes each rank gets its rows, its columns' lines, and what opening takes."""
        read = dict.fromkeys(map(str, range(4)), 0)

        def count(request):
            if request.step == "get":
                with request.owner.lock:
                    read[request.headers["x-amz-security-token"]] += len(request.said[1])

        bucket = self.bucket(None, count)
        self.assertEqual(self.ranks(bucket, self.SAVE), dict.fromkeys(range(4)))
        for names, nbytes in (("rows", 3_000_001 * 8 / 4), ("columns", 1500 * 2000 * 4), ("replicated", 1_300_000 * 8))[:3 if LONG else 1]:
            text = f"""
os.environ["AWS_SESSION_TOKEN"] = str(rank)
expected, state = whole()["model"][{names!r}], {{"model": {{{names!r}: shards(whole(0), mesh)["model"][{names!r}]}}}}
berth.dcp.load(state, {URL!r})
assert torch.equal(state["model"][{names!r}].full_tensor(), expected)
"""
            read.update(dict.fromkeys(read, 0))
            self.assertEqual(self.ranks(bucket, text), dict.fromkeys(range(4)))
            for rank, n in read.items():
                self.assertLess(n, nbytes + (3 << 20), f"{names} of rank {rank}")
                self.assertGreater(n, min(nbytes, nbytes / 4), f"{names} of rank {rank}")

    @unittest.skipUnless(LONG, "the long form")
    def test_everything_is_loaded(self):
        bucket = self.bucket()
        self.assertEqual(self.ranks(bucket, self.SAVE), dict.fromkeys(range(4)))
        text = f"""
state, expected = shards(whole(0), mesh), whole()
berth.dcp.load(state, {URL!r})
for name, tensor in expected["model"].items():
    mine = state["model"][name]
    assert torch.equal(mine.full_tensor() if isinstance(mine, DTensor) else mine, tensor), name
assert torch.equal(state["plain"], expected["plain"]) and state["step"] == 7
"""
        self.assertEqual(self.ranks(bucket, text, 3), dict.fromkeys(range(3)))
