# SPDX-License-Identifier: BSD-3-Clause
"""The command against nginx: the same answers as for files, in few requests."""

import json
import os
import unittest

import case
import files
from trace_rules import Trace


class Served(case.Case):
    @classmethod
    def setUpClass(cls):
        if not files.NGINX and os.environ.get("CI") != "true":
            raise unittest.SkipTest("there is no nginx")
        cls.nginx = files.Nginx()
        cls.addClassCleanup(cls.nginx.stop)

    def setUp(self):
        super().setUp()
        self.seen = {name: len(self.nginx.asked(name)) for name in self.nginx.urls}

    def url(self, name, server="ranges"):
        return f"{self.nginx.urls[server]}/{name}"

    def asked(self, server="ranges"):
        return self.nginx.asked(server, self.seen[server])

    def test_answers_are_those_of_the_file(self):
        for name in ("mid.pt", "small.pt", "many.safetensors", "old.pt"):
            there, here = self.url(name), files.path(name)
            for words in (["ls"], ["info"], ["show"], ["verify"], ["ls", "--json"]):
                with self.subTest(name=name, words=words):
                    self.assertEqual(self.berth(*words, there).out, self.berth(*words, here).out)
        self.assertEqual({request[0] for request in self.asked()}, {"GET"})

    def test_bytes_are_those_of_the_file(self):
        there, here = self.url("mid.pt"), files.path("mid.pt")
        for words in (["cat", there, "layers.5.weight"], ["cat", here, "layers.5.weight"]):
            with open(self.path(f"{words[1] == here}"), "wb") as out:
                done = case.subprocess.run([case.BERTH, *words], stdout=out, check=False)
            self.assertEqual(done.returncode, 0)
        self.assertEqual(self.read("True"), self.read("False"))
        self.berth("copy", there, "copy.pt")
        self.assertEqual(self.read("copy.pt"), files.read("mid.pt"))
        for source, out in ((there, "there.safetensors"), (here, "here.safetensors")):
            self.berth("convert", source, out)
        self.assertEqual(self.read("there.safetensors"), self.read("here.safetensors"))
        self.berth("diff", there, here)

    def check_cost(self, name, n_requests, limit):
        self.berth("ls", self.url(name))
        asked = self.asked()
        self.assertEqual(len(asked), n_requests, asked)
        self.assertLessEqual(sum(request[3] for request in asked), limit, asked)

    def test_10000_tensors_take_two_requests(self):
        self.check_cost("many.pt", 2, min(files.cost_limit("many.pt"), 2 << 20))

    def test_a_map_takes_the_requests_of_ls(self):
        """It has no extents and no page cache."""
        for name in ("many.pt", "mid.pt", "many.safetensors", "old.pt"):
            self.seen = {server: len(self.nginx.asked(server)) for server in self.nginx.urls}
            there = json.loads(self.berth("map", "--json", self.url(name)).out)
            of_map = self.asked()
            self.berth("ls", self.url(name))
            self.assertEqual(of_map, self.asked()[len(of_map):])
            here = json.loads(self.berth("map", "--json", files.path(name)).out)
            self.assertEqual(here.pop("file"), files.path(name))
            self.assertEqual(there.pop("file"), self.url(name))
            for report in (here, there):
                cache, extents = report.pop("page_cache"), report.pop("extents")
                self.assertTrue(report is here or cache is extents is None)
            self.assertEqual(there, here)
        self.berth("map", self.url("mid.pt"), "-o", "map.svg")
        self.assertIn(b"layers.5.weight", self.read("map.svg"))
        self.assertEqual(self.berth("map", "-r", "--json", self.url("mid.pt")).out.count('"storage"'), 1)
        self.refused("map", self.url("none.pt"), says=("none.pt", "no such object (status 404)"))

    def test_a_large_directory_takes_three_requests(self):
        self.check_cost("more.pt", 3, files.cost_limit("more.pt"))

    def test_few_tensors_take_two_small_requests(self):
        self.check_cost("mid.pt", 2, files.cost_limit("mid.pt"))

    def test_a_small_file_takes_one_request(self):
        self.check_cost("small.pt", 1, os.path.getsize(files.path("small.pt")))

    def test_safetensors_take_one_request(self):
        self.check_cost("many.safetensors", 1, 1 << 20)

    def test_an_old_file_takes_one_request_for_each_storage(self):
        self.check_cost("old.pt", 5, (3 << 20) + 8192)

    def test_verify_reads_everything_once(self):
        self.berth("verify", self.url("mid.pt"))
        size = os.path.getsize(files.path("mid.pt"))
        self.assertLess(sum(request[3] for request in self.asked()), size + size // 8)

    def test_a_trace_has_the_requests_of_the_library(self):
        done = self.berth("verify", self.url("mid.pt"), "--trace", "t.json", "--stats", "--json")
        trace = Trace(self.path("t.json"))
        (verify,) = trace.operations("verify")
        trace.check_requests(verify, "read")
        self.assertEqual(verify.args["moved_nbytes"], json.loads(done.out)["stats"]["moved_nbytes"])
        self.assertEqual(verify.args["path"], self.url("mid.pt"))

    def test_reads_that_follow_each_other_are_one(self):
        """A copy takes 256 KiB at a time; they are requested by the MiB."""
        self.berth("copy", self.url("mid.pt"), "copy.pt")
        asked, size = self.asked(), os.path.getsize(files.path("mid.pt"))
        self.assertLess(len(asked), 2 * (size >> 20))
        self.assertLess(sum(request[3] for request in asked), size + size // 4)

    def test_without_ranges_a_small_file_is_taken_whole(self):
        self.assertEqual(self.berth("ls", self.url("many.pt", "no_ranges")).out,
                         self.berth("ls", files.path("many.pt")).out)
        self.assertEqual([request[2] for request in self.asked("no_ranges")], [200])

    def test_without_ranges_a_large_file_is_refused(self):
        self.refused("ls", self.url("huge.pt", "no_ranges"),
                     says=("huge.pt", "serves no ranges", f"{65 << 20} bytes", "download it"))

    def test_http_2_over_tls(self):
        trust = {"CURL_CA_BUNDLE": f"{self.nginx.there}/ca.pem"}
        self.berth("verify", self.url("many.pt", "tls"), env=trust)
        self.assertEqual({request[4] for request in self.asked("tls")}, {"HTTP/2.0"})
        self.berth("info", self.url("many.pt", "tls"),
                   env={"CURL_CA_BUNDLE": "", "SSL_CERT_FILE": f"{self.nginx.there}/ca.pem"})

    def test_an_unknown_certificate_is_refused(self):
        self.refused("info", self.url("small.pt", "tls"), says="certificate",
                     env={"CURL_CA_BUNDLE": "", "SSL_CERT_FILE": ""})

    def test_https_never_goes_to_http(self):
        """U2"""
        self.refused("info", self.url("down/small.pt", "tls"), says="https goes only to https",
                     env={"CURL_CA_BUNDLE": f"{self.nginx.there}/ca.pem"})
        self.assertEqual(self.asked("ranges"), [])

    def test_a_slow_server(self):
        self.berth("ls", self.url("small.pt", "slow"))
        self.assertEqual(self.berth("cat", self.url("many.safetensors", "slow"), "layers.9.weight",
                                    "--force").stdout, bytes(32))

    def test_what_is_not_there(self):
        self.refused("info", self.url("none.pt"), says=("none.pt", "there is no such object (status 404)"))
        self.refused("info", f"http://127.0.0.1:{files.free_ports(1)[0]}/a.pt", says="Failed to connect")
        self.refused("ls", "s3://bucket", says="s3://BUCKET/KEY")
        self.refused("ls", "http://host/a b", says="character 14")

    def test_several_files_and_records(self):
        several = self.berth("info", "--json", self.url("small.pt"), files.path("small.pt"))
        self.assertEqual(several.out.count('"version"'), self.berth(
            "info", "--json", files.path("small.pt"), files.path("small.pt")).out.count('"version"'))
        self.assertEqual(self.berth("ls", "--records", self.url("mid.pt")).out,
                         self.berth("ls", "--records", files.path("mid.pt")).out)
