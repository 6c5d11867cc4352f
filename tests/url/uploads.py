# SPDX-License-Identifier: BSD-3-Clause
"""Saves to s3://: bytes, faults at every request, conditions, kills, and what is left behind."""

import collections
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import threading
import time
import unittest
import unittest.mock

import case
import files
from bucket import KEY, SECRET, Bucket
from packaged import BUILT, FAILS, PACKAGE

PART = 8 << 20


class Writing(case.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.small, cls.large = files.read("small.pt"), files.read("mid.pt")

    def setUp(self):
        super().setUp()
        clean = unittest.mock.patch.dict(os.environ)
        clean.start()
        self.addCleanup(clean.stop)
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]
        os.environ["HOME"] = self.folder

    def bucket(self, behave=None, after=None):
        bucket = Bucket(behave, after)
        bucket.__enter__()
        self.addCleanup(bucket.__exit__)
        return bucket


class Uploads(Writing):
    """The command, which writes what it has read from a file."""

    def copy(self, bucket, name="mid.pt", key="a b/ü&+%.pt", **named):
        return self.berth("copy", files.path(name), "s3://bucket/" + key, env=bucket.env, **named)

    def test_one_request(self):
        """An object below a part is one PUT."""
        bucket = self.bucket()
        self.copy(bucket, "small.pt")
        self.assertEqual((bucket.steps, bucket.problems), (["put"], []))
        self.assertEqual(bucket.objects["a b/ü&+%.pt"][0], self.small)

    def test_parts(self):
        bucket = self.bucket()
        self.copy(bucket)
        n = -(-len(self.large) // PART)
        self.assertEqual(sorted(bucket.steps), ["begin", "complete"] + n * ["part"])
        self.assertEqual((bucket.steps[0], bucket.steps[-1], bucket.problems), ("begin", "complete", []))
        self.assertEqual((bucket.objects["a b/ü&+%.pt"][0] == self.large, bucket.uploads), (True, {}))
        self.berth("verify", "s3://bucket/a b/ü&+%.pt", env=bucket.env)

    def test_statistics(self):
        """They count the last request, too: of one part, and of several."""
        bucket = self.bucket(None, lambda request: time.sleep(0.7 * (request.step in ("put", "complete"))))
        for name in ("small.pt", "mid.pt"):
            told = self.berth("copy", "--stats", files.path(name), "s3://bucket/k.pt", env=bucket.env).err
            numbers = re.search(r"seconds: (\S+) in all, .* (\S+) syncing", told).groups()
            self.assertGreater(min(map(float, numbers)), 0.7, told)
            self.assertRegex(told, "moved in 3 requests" if name == "small.pt" else r"moved in \d+ requests")

    def test_trace(self):
        """It ends with what ends the upload."""
        for fails in (False, True):
            bucket = self.bucket(lambda request, fails=fails: request.fail(403, "AccessDenied")
                                 if fails and request.step == "part" else None)
            trace = self.path(f"trace{fails}.json")
            self.berth("copy", "--trace", trace, files.path("mid.pt"), "s3://bucket/k.pt", env=bucket.env,
                       code=2 if fails else 0)
            with open(trace, encoding="utf-8") as file:
                names = [each.get("name") for each in json.load(file)["traceEvents"]]
            self.assertEqual((names.count("complete"), names.count("abort")), (0, 1) if fails else (1, 0))
            self.assertEqual(bucket.uploads, {})

    def test_the_limit_of_memory(self):
        """Two parts for each worker count for io.memory_nbytes."""
        for limit, most in ((0, range(2, 5)), (40 << 20, (1, 2)), (1, (1,))):
            seen = []
            bucket = self.bucket(lambda request, seen=seen: request.step == "part" and (
                seen.append(request.owner.n_now), time.sleep(0.3)))
            self.berth("copy", "--set", f"io.memory_nbytes={limit}", "--set", "io.threads=4", files.path("mid.pt"),
                       "s3://bucket/k.pt", env=bucket.env)
            self.assertIn(max(seen), most)

    def test_formats(self):
        bucket = self.bucket()
        env = bucket.env
        self.berth("convert", files.path("mid.pt"), "s3://bucket/m.safetensors", env=env)
        self.berth("convert", files.path("mid.pt"), self.path("m.safetensors"))
        self.assertEqual(bucket.objects["m.safetensors"][0], self.read("m.safetensors"))
        self.berth("diff", "s3://bucket/m.safetensors", files.path("mid.pt"), env=env)
        self.berth("convert", "s3://bucket/m.safetensors", "s3://bucket/m.pt", env=env)
        self.berth("copy", "s3://bucket/m.pt", "s3://bucket/n.pt", env=env)
        self.assertEqual(bucket.objects["m.pt"][0], bucket.objects["n.pt"][0])

    def test_what_is_refused(self):
        bucket = self.bucket()
        env = {**os.environ, **bucket.env}
        good = files.path("small.pt")
        for command, url, says in (
                ("copy", "https://host/a.pt", "only those with s3:// are written"),
                ("copy", "s3://bucket", "s3://BUCKET/KEY"),
                ("copy", "s3://other/a.pt", "there is no such bucket (status 404, NoSuchBucket)"),
                ("convert", "s3://bucket/model.safetensors.index.json", "only written to a folder")):
            self.refused(command, good, url, says=says, env=env)
        self.refused("demo", "s3://bucket/a.pt", says="this is not written to a URL", env=env)
        self.assertEqual(bucket.objects, {})

    # ---- faults ----

    FAULTS = {
        "busy": lambda request: request.fail(503, "SlowDown"),
        "cut": lambda request: request.cut(),
        "error in 200": lambda request: request.take() or request.fail(200, "InternalError"),
        "not allowed": lambda request: request.fail(403, "AccessDenied"),
        "expired": lambda request: request.fail(400, "ExpiredToken"),
        "clock": lambda request: request.fail(403, "RequestTimeTooSkewed"),
        "elsewhere": lambda request: request.fail(301, "PermanentRedirect", x_amz_bucket_region="us-west-2"),
    }
    PASSES = ("busy", "cut", "error in 200")
    SAYS = {"busy": "status 503, SlowDown", "cut": "", "error in 200": "InternalError", "not allowed": "not allowed",
            "expired": "expired: get new ones", "clock": "clock is wrong", "elsewhere": "set AWS_REGION=us-west-2"}
    STEPS = {"begin": "beginning the upload", "part": "part 2 of 4", "complete": "completing the upload"}

    def fault(self, kind, step, is_after, for_ever):
        """One save with a fault at a step (of the second part). Returns: what is wrong; None: nothing."""
        seen = []

        def behave(request):
            if request.step == step and (step != "part" or request.query["partNumber"] == "2") and (
                    for_ever or not seen):
                seen.append(request.n)
                self.FAULTS[kind](request)

        bucket = Bucket(None if is_after else behave, behave if is_after else None)
        with bucket:
            bucket.objects["k.pt"] = (b"old", '"old"', "")
            done = subprocess.run([case.BERTH, "copy", files.path("mid.pt"), "s3://bucket/k.pt"],
                                  env={**os.environ, **bucket.env}, capture_output=True, text=True, check=False)
            now = bucket.objects["k.pt"][0]
        about = (kind, step, is_after, for_ever, done.stderr, bucket.steps)
        works = kind in self.PASSES and not for_ever
        # The answer to a request that was carried out is lost: whether the object is new is found out.
        is_new = works or (is_after and step == "complete")
        if bucket.problems or bucket.uploads or not seen:
            return "problems", bucket.problems, bucket.uploads, *about
        if now != (self.large if is_new else b"old"):
            return "the object", len(now), *about
        if works != (done.returncode == 0):
            return "the exit code", done.returncode, *about
        if not works and (self.STEPS[step] not in done.stderr or self.SAYS[kind] not in done.stderr):
            return "the message", *about
        return None

    def test_faults_at_every_step(self):
        """U6: once, or for ever; before the server does it, or when it has done it."""
        cases = [(kind, step, is_after, for_ever) for kind in self.FAULTS for step in self.STEPS
                 for is_after in (False, True) for for_ever in (False, True)
                 if not (is_after and step == "begin") and not (is_after and kind not in self.PASSES)
                 and not (is_after and for_ever)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            wrong = [each for each in pool.map(lambda each: self.fault(*each), cases) if each]
        self.assertEqual(wrong, [])
        self.assertGreater(len(cases), 40)

    def test_what_cannot_be_removed_is_told(self):
        def behave(request):
            if request.step in ("part", "abort"):
                request.fail(403, "AccessDenied")

        bucket = self.bucket(behave)
        done = self.copy(bucket, code=2)
        self.assertRegex(done.err, "part . of 4: not allowed.*removing what was sent: not allowed.*berth clean --remove")
        bucket.behave = None
        env = {**os.environ, **bucket.env}
        self.assertIn("1 uploads; 0 removed", self.berth("clean", "--remove", "s3://bucket/a b/", env=env).out)
        self.assertIn("1 uploads; 1 removed",
                      self.berth("clean", "--remove", "--older-than=0s", "s3://bucket/a b/", env=env).out)
        self.assertEqual(bucket.uploads, {})

    def test_kills(self):
        """SIGKILL in the middle leaves uploads, which `clean` lists, all of them, and removes; SIGTERM leaves none."""
        came, go_on = collections.defaultdict(threading.Event), threading.Event()

        def behave(request):
            if request.step == "part" and not go_on.is_set():
                came[request.key].set()
                go_on.wait(60)

        bucket = self.bucket(behave)
        env = {**os.environ, **bucket.env}
        for i in range(5):
            key = f"k/{i} &<>.pt"
            saving = subprocess.Popen([case.BERTH, "copy", files.path("mid.pt"), f"s3://bucket/{key}"], env=env)
            self.assertTrue(came[key].wait(600))
            saving.kill()
            saving.wait()
        go_on.set()
        for _ in range(100):  # until the server has seen that nobody is there
            if bucket.n_now == 0:
                break
            time.sleep(0.05)
        self.assertEqual((len(bucket.uploads), bucket.objects), (5, {}))
        listed = self.berth("clean", "s3://bucket/k", env=env).out
        self.assertTrue(all(f"k/{i} &<>.pt" in listed for i in range(5)), listed)
        self.assertIn("5 uploads; 0 removed", listed)
        self.berth("clean", "s3://bucket/k", "--remove", "--older-than", "0s", env=env)
        self.assertEqual((bucket.uploads, bucket.problems), ({}, []))

        go_on.clear()
        saving = subprocess.Popen([case.BERTH, "copy", files.path("mid.pt"), "s3://bucket/k.pt"], env=env,
                                  stderr=subprocess.PIPE)
        self.assertTrue(came["k.pt"].wait(600))
        saving.send_signal(signal.SIGTERM)
        saving.communicate(timeout=600)
        go_on.set()
        self.assertEqual((saving.returncode, bucket.uploads, bucket.objects), (128 + signal.SIGTERM, {}, {}))

    def test_a_signal_at_each_step(self):
        """U6: the exit code says which object is there, also if the signal comes while the server begins or ends."""
        for step, is_after, name in (("begin", True, "mid.pt"), ("complete", False, "mid.pt"),
                                     ("complete", True, "mid.pt"), ("put", True, "small.pt")):
            came = threading.Event()

            def behave(request, step=step, came=came):
                if request.step == step:
                    came.set()
                    time.sleep(0.7)

            bucket = self.bucket(None if is_after else behave, behave if is_after else None)
            saving = subprocess.Popen([case.BERTH, "copy", files.path(name), "s3://bucket/k.pt"],
                                      env={**os.environ, **bucket.env}, stderr=subprocess.PIPE, text=True)
            self.assertTrue(came.wait(600))
            saving.send_signal(signal.SIGTERM)
            told = saving.communicate(timeout=600)[1]
            is_new = step != "begin"
            self.assertEqual((saving.returncode, told), (0, "") if is_new else
                             (128 + signal.SIGTERM, "berth: cancelled\n"), (step, is_after))
            self.assertEqual((list(bucket.objects), bucket.uploads), (["k.pt"] if is_new else [], {}), (step, told))

    def test_answers_that_say_nothing(self):
        """U6: a login page with status 200 is no success; a condition that was not set does not fail."""
        for step, name, status, says in (
                ("complete", "mid.pt", 200, "the server does not say that the upload is complete (status 200)"),
                ("put", "small.pt", 200, "the server took the object without an ETag (status 200)"),
                ("complete", "mid.pt", 409, "completing the upload: the server answers with status 409")):
            def behave(request, step=step, status=status):
                if request.step == step:
                    request.take()
                    request.send(status, "<html>Please log in</html>")

            bucket = self.bucket(behave)
            self.assertIn(says, self.copy(bucket, name, code=2).err)
            self.assertEqual((bucket.objects, bucket.uploads), ({}, {}))

    def test_an_answer_that_is_too_late(self):
        """The object is in its place, and the answer does not come: removing the upload tells what became of it."""
        for is_idempotent in (False, True):
            bucket = self.bucket(None, lambda request: request.step == "complete" and time.sleep(5))
            bucket.is_idempotent = is_idempotent
            self.berth("copy", "--set", "io.url_deadline=1", files.path("mid.pt"), "s3://bucket/k.pt", env=bucket.env)
            self.assertEqual((bucket.objects["k.pt"][0] == self.large, bucket.steps[-2:]), (True, ["abort", "head"]))

    def test_a_server_without_checksums(self):
        """U6: of an object of as many bytes and parts it says nothing; a save whose end is unknown says that."""
        old = (bytes(len(self.large)), f'"0-{-(-len(self.large) // PART)}"', "")
        for is_after, is_new in ((False, False), (True, True)):
            def lose(request, is_after=is_after):
                if request.step == "complete" and is_after and request.owner.steps.count("complete") == 1:
                    request.cut()
                elif request.step == "complete" and not is_after:  # somebody else has removed it
                    request.owner.uploads.clear()

            bucket = self.bucket(None, lose) if is_after else self.bucket(lose)
            bucket.tells_checksums = False
            bucket.objects["k.pt"] = old
            done = self.copy(bucket, key="k.pt", code=2)
            self.assertIn("NoSuchUpload); nobody knows whether the object is the new one", done.err)
            self.assertEqual((bucket.objects["k.pt"] != old, bucket.uploads), (is_new, {}))

    def test_a_server_that_does_not_answer(self):
        bucket = self.bucket(lambda request: request.step == "begin" and time.sleep(3))
        self.refused("copy", "--set", "io.url_deadline=1", files.path("mid.pt"), "s3://bucket/k.pt", env=bucket.env,
                     says="beginning the upload: the server has not answered in 1 seconds: io.url_deadline=SECONDS")

    def test_a_long_id(self):
        bucket = self.bucket()
        bucket.long_ids = "+/x" * 330
        self.copy(bucket)
        self.assertEqual((len(bucket.objects), bucket.uploads, bucket.problems), (1, {}, []))

    def test_credentials_that_are_replaced(self):
        """They expire in the middle, and new ones are in the file: of a save, and of a load."""
        def tell(token):
            self.write("credentials", f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
                       f"aws_session_token = {token}\n".encode())

        used = collections.Counter()

        def behave(request):
            token = request.headers["x-amz-security-token"]
            with bucket.lock:
                used[token] += 1
                if used["old"] > 2 or token != "old":
                    tell("new")
            if token == "old" and used["old"] > 2:
                request.take()
                request.fail(400, "ExpiredToken")

        bucket = self.bucket(behave)
        env = {"AWS_SHARED_CREDENTIALS_FILE": self.path("credentials"),
               **{name: text for name, text in bucket.env.items() if "KEY" not in name}}
        for command in (("copy", files.path("mid.pt"), "s3://bucket/k.pt"), ("verify", "s3://bucket/k.pt")):
            used.clear()
            tell("old")
            self.berth(*command, env=env)
            self.assertGreater(min(used["old"], used["new"]), 2, used)
        self.assertEqual((bucket.objects["k.pt"][0] == self.large, bucket.uploads, bucket.problems), (True, {}, []))

    def test_no_memory_for_a_part(self):
        """It is told as what it is, with what needs less; nothing is left."""
        bucket = self.bucket()
        told = []
        for mib in range(12, 200, 2):  # until it is enough: one of them is too little for the part alone
            told.append(subprocess.run(
                ["sh", "-c", f'ulimit -v {mib << 10}; exec "$0" "$@"', case.BERTH, "copy", "--set", "io.threads=1",
                 "--set", "io.chunk_nbytes=1MiB", files.path("mid.pt"), "s3://bucket/k.pt"],
                env={**os.environ, **bucket.env}, capture_output=True, text=True, check=False).stderr)
            if "k.pt" in bucket.objects:
                break
        self.assertIn("berth: s3://bucket/k.pt: no memory for a part of 8388608 bytes: fewer io.threads need less",
                      [text.strip() for text in told])
        self.assertFalse([text for text in told if "sink" in text])
        self.assertEqual(bucket.uploads, {})

    def test_an_upload_that_is_gone(self):
        """Somebody else has removed it: nothing is left, and nothing more to be told."""
        def behave(request):
            if request.step == "part":
                bucket.uploads.clear()

        bucket = self.bucket(behave)
        done = self.copy(bucket, code=2)
        self.assertIn("NoSuchUpload", done.err)
        self.assertNotIn("removing", done.err)

    def test_names_of_strangers(self):
        """`clean` shows the keys of all programs, so that a terminal only shows them."""
        bucket = self.bucket()
        keys = ("k/\x1b[2Jred\n", "k/\u202e\udcff", "k/plain")
        for i, key in enumerate(keys):
            bucket.uploads[str(i)] = {"key": key, "parts": {}, "since": 0}
        out = self.berth("clean", "s3://bucket/k", env=bucket.env).out
        self.assertEqual([line.split()[0] for line in out.splitlines()],
                         [r"k/\x1b[2Jred\n", "k/plain", r"k/\u202e\xff", "3"])
        told = json.loads(self.berth("clean", "--json", "s3://bucket/k", env=bucket.env).out)["temporaries"]
        self.assertEqual([each["name"] for each in told], ["k/\x1b[2Jred\n", "k/plain", r"k/\u202e\xff"])
        self.assertEqual({(each["owner"], each["removed"]) for each in told}, {("", False)})

    def test_lists_that_are_none(self):
        """U4: no answer, an empty one behind a list, a list that goes on for ever."""
        page = ("<ListMultipartUploadsResult><NextKeyMarker>a</NextKeyMarker><NextUploadIdMarker>b</NextUploadIdMarker>"
                "<IsTruncated>true</IsTruncated></ListMultipartUploadsResult>")
        for pages, says in (([""], "is no list of uploads"), ([page, ""], "is no list of uploads"),
                            ([page, page], "is a list of uploads that goes on where it began")):
            bucket = self.bucket(lambda request, pages=pages: request.send(200, pages[request.n]))
            self.refused("clean", "s3://bucket/k", says=says, env=bucket.env)
            self.assertEqual(len(bucket.steps), len(pages))

    def test_conditions(self):
        """save.if_match, of one part and of several: an object that is not the expected one stays."""
        bucket = self.bucket()
        for name in ("small.pt", "mid.pt"):
            key = "s3://bucket/" + name
            copy = ("copy", "--set", "save.if_match=none", files.path(name), key)
            self.berth(*copy, env=bucket.env)
            old = bucket.objects[name]
            self.refused(*copy, says="there is an object already, which stays (status 412)", env=bucket.env)
            self.refused("copy", "--set", 'save.if_match="0"', files.path("small.pt" if name == "mid.pt" else "mid.pt"),
                         key, says="is another one than expected, and stays", env=bucket.env)
            self.assertEqual((bucket.objects[name] == old, bucket.uploads), (True, {}))
            self.berth("copy", "--set", f"save.if_match={old[1]}", files.path("small.pt"), key, env=bucket.env)
            self.assertEqual(bucket.objects[name][0], self.small)
        lost = {"put", "complete"}  # the first answer of each: the repeated request finds the object that it has made

        def lose(request):
            if request.step in lost:
                lost.remove(request.step)
                request.cut()

        bucket = self.bucket(None, lose)
        for name, data in (("small.pt", self.small), ("mid.pt", self.large)):
            self.berth("copy", "--set", "save.if_match=none", files.path(name), "s3://bucket/" + name, env=bucket.env)
            self.assertTrue(bucket.objects[name][0] == data)
        self.assertEqual((lost, bucket.uploads), (set(), {}))
        self.refused("copy", "--set", "save.if_match=a b", files.path("small.pt"), "s3://bucket/c.pt",
                     says="'a b' is no ETag", env=bucket.env)

    def test_two_at_once(self):
        """Each object is whole; the last one to end wins."""
        bucket = self.bucket()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for _ in pool.map(lambda name: self.copy(bucket, name, "k.pt"), 4 * ["mid.pt", "small.pt"]):
                pass
        self.assertIn(bucket.objects["k.pt"][0], (self.large, files.read("small.pt")))
        self.assertEqual((bucket.uploads, bucket.problems), ({}, []))

    def test_credentials_are_nowhere(self):
        bucket = self.bucket(lambda request: request.fail(400, "InvalidRequest"))
        bucket.env["AWS_SESSION_TOKEN"] = "c0f+fee/token=="
        done = self.copy(bucket, "small.pt", code=2)
        for secret in (bucket.env["AWS_SECRET_ACCESS_KEY"], "c0f+fee"):
            self.assertNotIn(secret, done.err)


BEGIN = FAILS + """
import os, resource, signal, sys, threading, time
import torch
import berth
signal.signal(signal.SIGINT, signal.default_int_handler)
large = {"weight": torch.arange(6_000_000.0), "step": 7}
"""


@unittest.skipUnless(os.path.exists(PACKAGE), "the package is not built")
class Package(Writing):
    """berth.save and berth.save_async."""

    def python(self, bucket, text, **named):
        env = dict(os.environ, PYTHONPATH=os.path.join(BUILT, "python"), **bucket.env)
        return subprocess.Popen([files.PYTHON, "-c", BEGIN + text], cwd=self.folder, env=env, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, **named)

    def run_python(self, bucket, text):
        running = self.python(bucket, text)
        out = running.communicate(timeout=600)[0]
        self.assertEqual((running.returncode, bucket.problems, bucket.uploads), (0, [], {}), out)

    def test_the_bytes_of_torch_save(self):
        """Values, what PyTorch pickles, sizes around a part and around nothing; each way of saving."""
        bucket = self.bucket()
        self.run_python(bucket, f"""
part = {PART}
import collections, fractions
values = {{
    "values": {{"w": torch.randn(300), "empty": torch.zeros(0), "byte": torch.zeros(1, dtype=torch.uint8), "n": 3}},
    "pickled": {{"f": fractions.Fraction(1, 3), "w": torch.ones(5)}},
    "many": {{str(i): torch.full((3,), i) for i in range(10_000)}},
    "below": torch.zeros(part - 2000, dtype=torch.uint8), "above": torch.zeros(part + 10, dtype=torch.uint8),
    "shared": [torch.arange(3_000_000.0)[i:] for i in range(3)], "nothing": None, "large": large}}
for name, value in values.items():
    torch.save(value, name + ".pt")
    berth.save(value, f"s3://bucket/a/{{name}}.pt")
    for snapshot in (True, False):
        berth.save_async(value, f"S3://bucket/{{snapshot}}/{{name}}.pt", snapshot=snapshot).result()
berth.save({{"w": large["weight"]}}, "large.safetensors")
berth.save({{"w": large["weight"]}}, "s3://bucket/a/large.safetensors")
import berth.safetensors.numpy, berth.safetensors.torch
berth.safetensors.torch.save_file({{"w": large["weight"]}}, "s3://bucket/t/large.safetensors", {{"format": "pt"}})
berth.safetensors.numpy.save_file({{"w": large["weight"].numpy()}}, "s3://bucket/n/large.safetensors", {{"format": "pt"}})
assert berth.counters()["save"]["records"] == 3, berth.counters()
assert torch.equal(berth.load("s3://bucket/a/large.pt")["weight"], large["weight"])
""")
        written = {key.split("/")[-1] for key in bucket.objects}
        self.assertEqual(len(written), 9)
        for key, (data, _, _) in bucket.objects.items():
            self.assertTrue(data == self.read(key.split("/")[-1]), key)
        self.assertEqual(len(bucket.objects), 3 * 8 + 3)

    def test_memory(self):
        """Of 8 workers, each with a part that it renders and one that it sends; not of the object."""
        self.run_python(self.bucket(), """
value = torch.zeros(75_000_000)
berth.save(value[:10], "s3://bucket/warm.pt")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
berth.save(value, "s3://bucket/k.pt")
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
assert grown < 8 * 2 * 8 + 32, grown
""")

    def test_what_ends_a_save(self):
        """Cancelled, refused, or with a value that cannot be pickled: the old object stays, and nothing is left."""
        bucket = self.bucket(lambda request: request.fail(403, "AccessDenied") if request.step == "part" and
                             "denied" in request.key else time.sleep(0.3 * (request.step == "part")))
        bucket.objects["k.pt"] = (b"old", '"old"', "")
        self.run_python(bucket, """
job = berth.save_async(large, "s3://bucket/k.pt")
assert job.cancel() and "s3://bucket/k.pt" in repr(job)
fails(berth.CancelledError, job.result)
error = fails(berth.FileError, berth.save, large, "s3://bucket/denied.pt")
assert "s3://bucket/denied.pt: part " in str(error) and " of 3: not allowed" in str(error), error
fails(Exception, berth.save, {"lock": threading.Lock()}, "s3://bucket/k.pt")
assert "only those with s3://" in str(fails(berth.Error, berth.save, large, "https://host/k.pt"))
fails(FileNotFoundError, berth.save, large, "s3://none/k.pt")
job = berth.save_async(large, "s3://bucket/k.pt")
del job  # nobody waits for it: it goes on
""")
        self.assertEqual((bucket.objects["k.pt"][0] != b"old", set(bucket.objects)), (True, {"k.pt"}))

    def test_what_cancel_answers(self):
        """True: the old object. False: the new one. At many moments."""
        bucket = self.bucket(lambda request: time.sleep(0.02), lambda request: time.sleep(0.02))
        self.run_python(bucket, """
for i in range(24):
    job = berth.save_async({"i": i, **large}, f"s3://bucket/{i}.pt", snapshot=False)
    time.sleep(i * 0.012)
    is_cancelled = job.cancel()
    if is_cancelled:
        fails(berth.CancelledError, job.result)
        fails(FileNotFoundError, berth.open, f"s3://bucket/{i}.pt")
    else:
        job.result()
        assert berth.open(f"s3://bucket/{i}.pt")["i"] == i
""")

    def test_an_interrupt(self):
        """^C while parts are sent, and while the server does not even begin."""
        for step in ("begin", "part"):
            came = threading.Event()

            def behave(request, step=step, came=came):
                if request.step == step:
                    came.set()
                    time.sleep(2)

            bucket = self.bucket(behave)
            running = self.python(bucket, """
error = fails(KeyboardInterrupt, berth.save, large, "s3://bucket/k.pt")
""")
            self.assertTrue(came.wait(600))
            running.send_signal(signal.SIGINT)
            out = running.communicate(timeout=600)[0]
            self.assertEqual((running.returncode, bucket.objects), (0, {}), out)
            self.assertEqual(bucket.uploads, {})

    def test_an_interrupt_that_leaves_something(self):
        """What cannot be removed then is told with the exception."""
        came = threading.Event()

        def behave(request):
            if request.step == "part":
                came.set()
                time.sleep(1)
            elif request.step == "abort":
                request.fail(403, "AccessDenied")

        bucket = self.bucket(behave)
        running = self.python(bucket, """
error = fails(KeyboardInterrupt, berth.save, large, "s3://bucket/k.pt")
print(error.__notes__)
""")
        self.assertTrue(came.wait(600))
        running.send_signal(signal.SIGINT)
        out = running.communicate(timeout=600)[0]
        self.assertEqual((running.returncode, len(bucket.uploads)), (0, 1), out)
        self.assertIn("removing what was sent: not allowed (status 403, AccessDenied)", out)
        self.assertIn("it is left, and costs", out)

    def test_a_fork(self):
        """A child that ends leaves its parent's upload alone."""
        bucket = self.bucket(lambda request: time.sleep(0.2 * (request.step == "part")))
        self.run_python(bucket, """
job = berth.save_async(large, "s3://bucket/k.pt")
child = os.fork()
if child == 0:
    del job
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
job.result()
""")
        self.assertEqual((list(bucket.objects), "abort" in bucket.steps), (["k.pt"], False))

    def test_torch_save_reaches_no_network(self):
        """U5: under install() a URL is a path that is not there, as in PyTorch."""
        bucket = self.bucket()
        self.run_python(bucket, """
with berth.installed():
    fails(Exception, torch.save, large, "s3://bucket/k.pt")
for path in (b"s3://bucket/k.pt", __import__("pathlib").Path("s3://bucket/k.pt")):
    fails(Exception, berth.save, large, path)
""")
        self.assertEqual(bucket.steps, [])


PROGRAM = r"""
#include "adapters/curl/berth_curl.h"
#include <berth/more.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static const berth_sink *given;
static int stop(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context, (void)done_nbytes, (void)total_nbytes;
    return 1;
}
static void sum_otherwise(void *context, uint64_t offset, size_t nbytes, uint32_t crc32)
{
    given->steps->sum(context, offset, nbytes, offset == 0 ? ~crc32 : crc32);
}
int main(int n, char **words)
{
    const int is_changed = n > 3 && !strcmp(words[3], "changed"), is_stopped = n > 3 && !strcmp(words[3], "stopped");
    const berth_new_record record = {
        .name = "data.pkl", .nbytes = strtoull(words[2], NULL, 10), .data = calloc(1, strtoull(words[2], NULL, 10))};
    const berth_content content = berth_of_records(&record, 1, 0);
    const berth_params stopping = {.progress = stop};
    berth_upload *upload;
    berth_error error;
    if (berth_upload_begin(words[1], 0, NULL, &upload, &error) < 0)
        return 1;
    given = berth_upload_sink(upload);
    berth_sink sink = *given;
    berth_sink_steps steps = *given->steps;
    steps.sum = is_changed ? sum_otherwise : steps.sum;
    sink.steps = &steps;
    berth_target target = berth_to_sink(&sink);
    target.path = words[1];
    for (int i = 0; i < 2; i++) {
        int status = berth_save_to(&target, &content, is_stopped && i == 0 ? &stopping : NULL, &error);
        (void)berth_upload_explain(upload, &error);
        printf("%d %s\n", status < 0 ? (int)error.code : 0, status < 0 ? error.message : "");
    }
    int status = berth_upload_finish(upload, &error);
    printf("%d %s\n", status, status < 0 ? error.message : "");
    free((void *)record.data);
    return berth_upload_end(upload, &error) < 0;
}
"""


class FromC(Writing):
    def test_an_upload_is_of_one_save(self):
        """Another one is refused, also after one that did nothing. A sum that is not of the bytes says what it means."""
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
        self.write("program.c", PROGRAM.encode())
        libraries = [os.path.join(BUILT, f"lib{name}.a") for name in ("berth_curl", "berth")]
        subprocess.run(["gcc", "-Wall", "-Werror", "-I", root, "program.c", *libraries, "-ldeflate", "-lz", "-ljansson",
                        "-ldl", "-pthread", "-o", "program"], cwd=self.folder, check=True)
        again = "an upload is of one save"
        changed = "has other bytes than those that were summed; was a tensor changed while it was saved?"
        for size, part in (("1000", "part 1 of 1"), (str(2 * PART), "part 1 of 3")):
            for how, first, second, end in (
                    ("once", "0 ", again, "0 "), ("stopped", "-8 cancelled", again, again),
                    ("changed", f"{part} {changed}", f"{part} {changed}", f"{part} {changed}")):
                bucket = self.bucket()
                told = subprocess.run([self.path("program"), "s3://bucket/k.pt", size, how], check=True, text=True,
                                      stdout=subprocess.PIPE, env={**os.environ, **bucket.env}).stdout.splitlines()
                for line, says in zip(told, (first, second, end), strict=True):
                    self.assertIn(says, line, (size, how, told))
                self.assertEqual((list(bucket.objects), bucket.uploads, bucket.problems),
                                 (["k.pt"] if how == "once" else [], {}, []), (size, how))
