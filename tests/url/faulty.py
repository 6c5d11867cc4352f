# SPDX-License-Identifier: BSD-3-Clause
"""The command against a server that breaks off, is overloaded, lies, or has another object."""

import os
import signal
import subprocess
import threading
import time

import case
import files
from server import Server

SECRETS = ("hunter2", "swordfish", "c0ffee")


class Misbehaves(case.Case):
    @classmethod
    def setUpClass(cls):
        cls.data = files.read("mid.pt")

    def serve(self, behave=None, data=None, **options):
        server = Server(self.data if data is None else data, behave, **options)
        server.__enter__()
        self.addCleanup(server.__exit__)
        return server

    def same(self, server):
        """A copy of what the server has is equal to it."""
        self.berth("copy", f"{server.url}/mid.pt", "copy.pt")
        self.assertEqual(self.read("copy.pt"), server.data)


class Passing(Misbehaves):
    def test_a_cut_connection_goes_on_inside_the_range(self):
        def cut_often(request):
            if request.n in (0, 2, 5, 6):
                request.cut(100_000)

        server = self.serve(cut_often)
        self.same(server)
        first = server.ranges()[:2]
        begin = len(self.data) - (1 << 20)
        self.assertEqual(first, [f"bytes=-{1 << 20}", f"bytes={begin + 100_000}-{len(self.data) - 1}"])

    def test_a_range_with_the_status_200(self):
        """As rclone's server sends it, with Content-Range; it has no end that is longer than the object."""
        self.same(self.serve(lambda request: request.send_range(status=200)))
        small = self.serve(lambda request: request.headers["Range"][6] == "-" and request.send(416, b"no"),
                           files.read("small.pt"))
        self.same(small)
        self.assertEqual(small.ranges()[:2], [f"bytes=-{1 << 20}", f"bytes=0-{(1 << 20) - 1}"])

    def test_statuses_that_pass_are_tried_again(self):
        statuses = {0: 408, 2: 429, 6: 500, 10: 502, 14: 503, 18: 504}

        def overloaded(request):
            if request.n in statuses:
                request.send(statuses[request.n], b"no")

        server = self.serve(overloaded)
        self.same(server)
        ranges = server.ranges()
        for n in statuses:
            self.assertIn(ranges[n], ranges[n + 1:])

    def test_others_are_not(self):
        for status in (400, 401, 403, 404, 410, 501):
            with self.subTest(status=status):
                server = self.serve(lambda request, status=status: request.send(status, b"no"))
                self.refused("info", f"{server.url}/mid.pt", says=f"status {status}")
                self.assertEqual(len(server.requests), 1)

    def test_retry_after_is_obeyed(self):
        times = []

        def busy(request):
            times.append(time.monotonic())
            if request.n == 0:
                request.send(503, Retry_After="1")

        server = self.serve(busy)
        self.berth("info", f"{server.url}/mid.pt")
        self.assertGreaterEqual(times[1] - times[0], 1)

    def test_retry_after_is_bounded(self):
        """U4"""
        server = self.serve(lambda request: request.send(429, Retry_After="3600"))
        self.refused("info", f"{server.url}/mid.pt", says=("status 429", "come back in 3600 seconds"))

    def test_a_whole_object_begins_again(self):
        def no_ranges(request):
            part = request.data[:1000] if request.n == 0 else request.data
            request.send(200, part, len(request.data))

        server = self.serve(no_ranges)
        self.same(server)
        self.assertEqual(len(server.requests), 2)

    def test_ranges_are_read_in_parallel(self):
        running, most = [], []

        def wait_for_others(request):
            if request.n > 1:
                running.append(1)
                most.append(len(running))
                time.sleep(0.05)
                running.pop()

        self.berth("verify", f"{self.serve(wait_for_others).url}/mid.pt")
        self.assertGreater(max(most), 2)

    def test_content_encoding_changes_nothing(self):
        """S3 tells how an object was uploaded."""
        def told(request):
            request.send(206, request.data[request.first:request.last + 1], Content_Encoding="aws-chunked",
                         Content_Range=f"bytes {request.first}-{request.last}/{len(request.data)}")

        server = self.serve(told)
        self.same(server)
        self.assertEqual({request["Accept-Encoding"] for request in server.requests}, {"identity"})

    def test_a_proxy(self):
        proxy = self.serve()
        self.berth("info", "http://nowhere.invalid/mid.pt", env={"http_proxy": proxy.url})
        self.assertEqual(proxy.requests[0]["path"], "http://nowhere.invalid/mid.pt")
        self.assertEqual(proxy.requests[0]["Host"], "nowhere.invalid")


class Changes(Misbehaves):
    """U3"""

    def changed(self, behave, says="the object changed while it was read: open it again", **options):
        server = self.serve(behave, **options)
        for words in (["verify"], ["copy"]):
            self.refused(*words, f"{server.url}/mid.pt", *(["out.pt"] if words == ["copy"] else []),
                         says=(f"{server.url}/mid.pt", says))
            server.requests.clear()
        self.assertNotIn("out.pt", self.entries())

    def test_the_etag_of_the_first_answer_is_asked_for(self):
        server = self.serve()
        self.berth("verify", f"{server.url}/mid.pt")
        sent = [request.get("If-Match") for request in server.requests]
        self.assertEqual(sent, [None] + ['"one"'] * (len(sent) - 1))

    def test_412(self):
        self.changed(lambda request: request.n >= 3 and request.send(412))

    def test_another_etag(self):
        self.changed(lambda request: request.n >= 3 and request.send_range(etag='"two"'))

    def test_another_weak_etag(self):
        def weak(request):
            self.assertIsNone(request.headers["If-Match"])
            request.send_range(etag='W/"two"' if request.n >= 3 else 'W/"one"')

        self.changed(weak)

    def test_another_size(self):
        self.changed(lambda request: request.n >= 3 and request.send_range(size=len(self.data) + 1))

    def test_a_shorter_object(self):
        self.changed(lambda request: request.n >= 3 and request.send(416, Content_Range="bytes */100"))

    def test_another_time_of_change(self):
        def dated(request):
            second = int(request.n >= 3)
            request.send(206, self.data[request.first:request.last + 1],
                         Last_Modified=f"Mon, 01 Jan 2024 00:00:0{second} GMT",
                         Content_Range=f"bytes {request.first}-{request.last}/{len(self.data)}")

        self.changed(dated)


    def test_what_the_first_answer_said_each_other_says(self):
        """An answer without the validators that were pinned is of another object."""
        tag, date = {"ETag": '"one"'}, {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}

        def answers(first, later):
            return lambda request: request.send(
                206, self.data[request.first:request.last + 1], **(later if request.n >= 3 else first),
                Content_Range=f"bytes {request.first}-{request.last}/{len(self.data)}")

        for first, later in ((tag, {}), (date, {}), ({**tag, **date}, tag), ({**tag, **date}, date),
                             ({"ETag": 'W/"one"'}, {}), (tag, {"ETag": ""}), (tag, {"ETag": '"' + 300 * "a" + '"'})):
            with self.subTest(first=first, later=later):
                self.changed(answers(first, later))
        for first, later in (({}, {}), ({}, tag), (date, {**tag, **date})):
            with self.subTest(first=first, later=later):
                self.same(self.serve(answers(first, later)))

    def test_what_an_object_is_known_by_is_said_once(self):
        def twice(request):
            request.send(206, self.data[request.first:request.last + 1], ETag='"one"', Etag='"two"',
                         Content_Range=f"bytes {request.first}-{request.last}/{len(self.data)}")

        for behave in (twice, lambda request: request.send_range(etag='"' + 300 * "a" + '"'),
                       lambda request: request.send_range(etag='"' + 5000 * "a" + '"'),
                       lambda request: request.send_range(etag='"a\rX-Mine: 1"')):  # it would be sent back
            server = self.serve(behave)
            self.refused("info", f"{server.url}/mid.pt", says="breaks the rules of HTTP: two ETags")


class Slow(Misbehaves):
    """U4: a server that sends a little now and then."""

    def slow(self, behave, *words, deadline=1, says="less than 64 KiB in 1 seconds: io.url_deadline=SECONDS"):
        server = self.serve(behave)
        begin = time.monotonic()
        self.refused(*words, f"{server.url}/mid.pt", "--set", f"io.url_deadline={deadline}",
                     says=(f"{server.url}/mid.pt", says))
        self.assertLess(time.monotonic() - begin, deadline + 5)

    @staticmethod
    def drip(request, seconds=0.05, nbytes=100):
        asked = request.data[request.first:request.last + 1]
        request.send_range(body=asked[:1], length=len(asked))
        try:
            for at in range(1, len(asked), nbytes):
                request.wfile.write(asked[at:at + nbytes])
                time.sleep(seconds)
        except OSError:
            pass

    def test_a_drip_ends(self):
        self.slow(self.drip, "info")
        self.slow(lambda request: request.n > 2 and self.drip(request), "verify")

    def test_so_does_one_that_breaks_off_again_and_again(self):
        self.slow(lambda request: request.cut(100), "info")

    def test_or_is_overloaded(self):
        self.slow(lambda request: request.send(503), "info")
        self.slow(lambda request: request.send(503, Retry_After="10"), "info", says="come back in 10 seconds")

    def test_a_slow_one_that_goes_on_does_not(self):
        server = self.serve(lambda request: request.n == 0 and self.drip(request, 0.25, 100_000))
        self.berth("info", f"{server.url}/mid.pt", "--set", "io.url_deadline=1")


class Lies(Misbehaves):
    """U3, U4"""

    def lie(self, says, at_once=False, **changes):
        server = self.serve(lambda request: (at_once or request.n > 0) and request.send_range(**changes))
        self.refused("info", f"{server.url}/mid.pt", says=(f"{server.url}/mid.pt", says))

    def test_a_range_that_was_not_asked_for(self):
        for at_once in (True, False):
            self.lie("Content-Range is not the range", at_once, first=3)
        self.lie("Content-Range is not the range", last=2_000_000)

    def test_a_range_without_content_range(self):
        server = self.serve(lambda request: request.send(206, b"abc"))
        self.refused("info", f"{server.url}/mid.pt", says="without a valid Content-Range")

    def test_two_content_ranges(self):
        """The second one, which says nothing, does not make the object larger than all files."""
        self.berth("convert", files.path("mid.pt"), "m.safetensors")
        server = self.serve(lambda request: request.send(
            206, request.data[request.first:request.last + 1],
            Content_Range=f"bytes {request.first}-{request.last}/{len(request.data)}", Content_range="items"),
            self.read("m.safetensors"))
        self.refused("info", f"{server.url}/m.safetensors", says="without a valid Content-Range")

    def test_content_ranges_that_make_no_sense(self):
        for text in ("bytes 5-3/10", "bytes 0-10/5", "bytes 0-9/*", "bytes 0-9/99999999999999999999999",
                     "bytes 0-9", "items 0-9/10", "bytes -1-9/10"):
            with self.subTest(text=text):
                server = self.serve(lambda request, text=text: request.send(206, b"abc", Content_Range=text))
                self.refused("info", f"{server.url}/mid.pt", says="the server breaks the rules of HTTP")

    def test_a_huge_size(self):
        end = 2**62
        server = self.serve(lambda request: request.send_range(
            size=end, first=end - (1 << 20), last=end - 1, body=self.data[-(1 << 20):]))
        self.refused("info", f"{server.url}/mid.pt", says="the server breaks the rules of HTTP")

    def test_a_length_that_does_not_fit(self):
        self.lie("Content-Length does not fit Content-Range", length=1000, body=bytes(1000))

    def test_more_bytes_than_the_range(self):
        self.lie("more bytes than the range has", length=None, body=bytes(5 << 20))

    def test_the_whole_object_after_ranges(self):
        server = self.serve(lambda request: request.n > 0 and request.send(200, self.data))
        self.refused("info", f"{server.url}/mid.pt", says="the whole object (200) instead of a range")

    def test_a_whole_object_without_end(self):
        server = self.serve(lambda request: request.send(200, bytes(66 << 20), None))
        self.refused("info", f"{server.url}/mid.pt", says=("serves no ranges", "more than 64 MiB"))

    def test_a_long_text_instead(self):
        server = self.serve(lambda request: request.send(404, b"x" * 10_000_000))
        self.refused("info", f"{server.url}/mid.pt", says="")

    def test_an_empty_object(self):
        server = self.serve(lambda request: request.send(416, Content_Range="bytes */0"))
        self.refused("info", f"{server.url}/mid.pt", code=1, says="empty")

    def test_a_directory_that_is_none(self):
        """Whatever is in the tail, the adapter only guesses from it."""
        for at in (-22, -12, -6, -42, -98):
            broken = bytearray(self.data)
            broken[at:at + 4] = b"\xff\xff\xff\x7f"
            self.refused("info", f"{self.serve(data=bytes(broken)).url}/mid.pt", code=1)


class Secrets(Misbehaves):
    def test_redirects_carry_no_credentials_to_another_host(self):
        """U2"""
        other = self.serve()
        elsewhere = other.url.replace("127.0.0.1", "localhost")
        first = self.serve(lambda request: request.send(302, Location=f"{elsewhere}/mid.pt"))
        self.berth("info", f"{first.url}/mid.pt".replace("//", "//user:hunter2@", 1))
        self.assertTrue(all("Authorization" in request for request in first.requests))
        self.assertTrue(other.requests)
        self.assertFalse(any("Authorization" in request for request in other.requests))

    def test_redirects_lead_to_no_link_local_address(self):
        """U2: where clouds give credentials; in any writing, and with the range asked for."""
        for host in ("169.254.169.254", "0xa9fea9fe", "2852039166", "[::ffff:169.254.169.254]", "[fd00:ec2::254]",
                     "[fe80::1]", "[64:ff9b::a9fe:a9fe]"):
            server = self.serve(lambda request, host=host: request.send(302, Location=f"http://{host}/latest/meta-data"))
            says = self.refused("info", f"{server.url}/mid.pt", says=f"{server.url}/mid.pt: ")
            self.assertIn("a redirect leads to a link-local address", says, host)

    def test_redirects_lead_to_no_file(self):
        """U2"""
        for place in (f"file://{self.demo}", "ftp://127.0.0.1/a", "gopher://127.0.0.1/a"):
            server = self.serve(lambda request, place=place: request.send(302, Location=place))
            self.refused("info", f"{server.url}/mid.pt", says="redirect leads to another protocol")

    def test_redirects_on_the_same_host(self):
        server = self.serve(
            lambda request: request.path != "/real.pt" and request.send(302, Location="/real.pt"))
        self.berth("info", f"{server.url}/mid.pt".replace("//", "//user:hunter2@", 1))
        self.assertTrue(all("Authorization" in request for request in server.requests))

    def test_a_message_moves_no_cursor(self):
        server = self.serve(lambda request: request.send(
            302, Location="http://\x1b[2Jno\xc2\x9b.invalid\x1b/mid.pt"))
        done = self.berth("info", f"{server.url}/mid.pt", code=2)
        key = self.berth("info", "s3://bucket/\x1b[2J\xc2\x9b", code=2, env={"AWS_ENDPOINT_URL": server.url})
        for text in (done.stderr, key.stderr):
            self.assertNotIn(b"\x1b", text)
            self.assertNotIn(b"\xc2\x9b", text)

    def test_a_circle_of_redirects(self):
        server = self.serve(lambda request: request.send(302, Location="/mid.pt"))
        self.refused("info", f"{server.url}/mid.pt", says="redirects")

    @staticmethod
    def text(path):
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8") as file:
            return file.read()

    def test_no_message_has_a_credential(self):
        """U1"""
        trace = self.path("trace.json")
        free = files.free_ports(1)[0]
        wrong = [f"http://user:hunter2@127.0.0.1:{free}/a.pt?sig=c0ffee#swordfish",
                 "http://user:hunter2@nowhere.invalid/a.pt?sig=c0ffee",
                 "http://user:hunter2@127.0.0.1:port/a.pt?sig=c0ffee",
                 "http://user:hunter2@[::1/a.pt?sig=c0ffee",
                 "http://hunter2@swordfish@127.0.0.1:1/a.pt?sig=c0ffee",
                 "https://user:hunter2@127.0.0.1:1/a b?sig=c0ffee", "http://user:hunter2@/?c0ffee",
                 "s3://user:hunter2@bucket/key", "s3://user:hunter2@bucket", "HTTP://user:hunter2@127.0.0.1:1/"]
        for status in (400, 401, 403, 404, 412, 500 + 1):
            server = self.serve(lambda request, status=status: request.send(status, b"no"))
            wrong.append(server.url.replace("//", "//user:hunter2@", 1) + "/mid.pt?X-Amz-Signature=c0ffee")
        lies = self.serve(lambda request: request.n > 0 and request.send_range(first=1))
        wrong.append(lies.url.replace("//", "//user:hunter2@", 1) + "/mid.pt?token=swordfish")
        loop = self.serve(lambda request: request.send(302, Location="ftp://u:swordfish@h/?c0ffee"))
        wrong.append(loop.url + "/mid.pt?token=swordfish")
        for url in wrong:
            for words in (["info", "--json", "--stats"], ["verify"], ["ls", "--records"],
                          ["info", "--json", self.demo], ["copy", self.demo]):
                done = subprocess.run([case.BERTH, *words, "--trace", trace, url], capture_output=True, text=True,
                                      check=False)
                self.assertEqual(done.returncode, 2, (url, done))
                for secret in SECRETS:
                    self.assertNotIn(secret, done.stdout + done.stderr + self.text(trace))

    def test_a_password_with_any_character_is_shown_nowhere(self):
        """U1: what is no URL by the rules, too; and proxies, and redirects."""
        trace = self.path("trace.json")
        free = files.free_ports(1)[0]
        host = f"127.0.0.1:{free}"
        addresses = [f"http://{user}@{host}/a.pt" for user in (
            "us:hunter2/swordfish", "us:hunter2?swordfish", "us:hunter2#swordfish", "us:hunter2@swordfish",
            "us:hunter2:swordfish", "us:hunter2%swordfish", "us:12/hunter2", "us:12?hunter2", "us:12#hunter2/x",
            "hunter2/swordfish", "hunter2?swordfish", "us:/hunter2/@/swordfish/", "us:hunter2\\swordfish",
            "us:@hunter2?a@swordfish", "us:hunter2]swordfish", "us:[hunter2]:swordfish", "us:" + "hunter2" * 90)]
        addresses += [f"http://{host}/a.pt?" + query for query in (
            "X-Amz-Signature=c0ffee", "a=b@c0ffee", "a@b=c0ffee#hunter2", "/c0ffee/@x/", "sig=%63;c0ffee")]
        addresses += ["http://us:hunter2", "http://us:hunter2/swordfish", "http:///us:hunter2@x/y", "s3://us:hunter2",
                      "s3://us:hunter2/swordfish@bucket/key", "s3://us:hunter2/swordfish", "s3://us@hunter2@b/key",
                      "ftp://us:hunter2@host/a.pt", "gs://us:hunter2/c0ffee@host/a.pt"]
        server = self.serve(lambda request: request.send(302, Location=f"http://us:hunter2/c0ffee@{host}/?c0ffee"))
        proxies = ["http://us:hunter2/swordfish@127.0.0.1:1", "http://us:hunter2#c0ffee@127.0.0.1:1",
                   "socks9://us:" + "hunter2" * 60 + "@127.0.0.1:1", "http://us:hunter2@127.0.0.1:1", "http://us:hunter2"]
        runs = [(address, {}) for address in [*addresses, server.url + "/mid.pt"]]
        runs += [("http://nowhere.invalid/a.pt", {"http_proxy": proxy}) for proxy in proxies]
        for url, environment in runs:
            for words in (["info", "--json", "--stats"], ["verify"], ["copy", self.demo], ["map", self.demo, "-o"],
                          ["clean"], ["diff", self.demo]):
                done = subprocess.run([case.BERTH, *words, url, "--trace", trace], capture_output=True, text=True,
                                      check=False, env={**os.environ, **environment}, timeout=600)
                self.assertNotEqual(done.returncode, 0, (url, done))
                for secret in SECRETS:
                    self.assertNotIn(secret, done.stdout + done.stderr + self.text(trace), (url, words))

    def test_a_sign_at_in_a_path_is_none(self):
        server = self.serve(data={"small.pt": files.read("small.pt")})
        self.berth("verify", f"{server.url}/models@1/small.pt")
        self.refused("info", f"{server.url}/models@1/none.pt", says=("http://***@1/none.pt: ", "no such object"))

    def test_no_report_has_a_credential(self):
        """U1"""
        server = self.serve(data=files.read("small.pt"))
        url = server.url.replace("//", "//user:hunter2@", 1) + "/small.pt?sig=c0ffee"
        for words in (["info"], ["ls"], ["show"], ["verify", "--stats"], ["verify", "--json"],
                      ["info", "--json", files.path("small.pt")], ["verify", files.path("small.pt")]):
            done = self.berth(*words, url, "--trace", "trace.json")
            trace = self.text(self.path("trace.json"))
            self.assertIn(server.url, trace)
            for secret in SECRETS:
                self.assertNotIn(secret, done.out + done.err + trace, words)


class Stops(Misbehaves):
    def test_a_signal_stops_what_waits(self):
        """X14"""
        stalled, may_end = threading.Event(), threading.Event()
        self.addCleanup(may_end.set)

        def stall(request):
            if request.n > 2:
                stalled.set()
                may_end.wait(20)

        server = self.serve(stall)
        for words, code in ((["ls"], -signal.SIGINT), (["copy"], 130), (["verify"], 130)):
            stalled.clear()
            server.requests[:] = [{}] * (3 if words == ["ls"] else 0)
            process = subprocess.Popen(
                [case.BERTH, *words, f"{server.url}/mid.pt"] + ["out.pt"] * (words == ["copy"]),
                cwd=self.folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
            self.assertTrue(stalled.wait(10))
            begin = time.monotonic()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=15)
            self.assertEqual(process.returncode, code, (words, err))
            self.assertLess(time.monotonic() - begin, 15)
        self.assertEqual(self.entries(), ["demo.pt"])
