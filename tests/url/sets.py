# SPDX-License-Identifier: BSD-3-Clause
"""Sets of files at a URL: their index names them, in its own folder."""

import json
import os
import subprocess
import threading
import unittest
import urllib.parse

import case
import files
import signature
from server import Server

INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
QUICKLY = ("--set", "save.durability=none")
KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


class Sets(case.Case):
    """A folder with both kinds of sets; serve() serves it, by the last part of a path."""

    def setUp(self):
        super().setUp()
        self.berth("convert", self.demo, "whole.pt", "--root", "model", "--without", "head", *QUICKLY)
        for index in INDICES:
            self.berth("convert", "whole.pt", index, "--shard-size", "300KiB", *QUICKLY)

    def serve(self, behave=None, **more):
        data = {urllib.parse.quote(name): self.read(name) for name in self.entries()}
        server = Server({**data, **more}, behave)
        server.__enter__()
        self.addCleanup(server.__exit__)
        return server

    def rename_shards(self, index, renamed):
        """Gives the files of a set other names: renamed(name)."""
        content = json.loads(self.read(index))
        for old in set(content["weight_map"].values()):
            os.rename(self.path(old), self.path(renamed(old)))
        content["weight_map"] = {name: renamed(old) for name, old in content["weight_map"].items()}
        self.write(index, json.dumps(content).encode())

    def test_answers_are_those_of_the_files(self):
        server = self.serve()
        for index in INDICES:
            name = next(iter(json.loads(self.read(index))["weight_map"]))
            for words in (["ls"], ["info"], ["show"], ["verify"], ["cat", "--force"]):
                more = [name] if words[0] == "cat" else []
                here = self.berth(*words, index, *more).out
                there = self.berth(*words, f"{server.url}/a/{index}", *more).out
                self.assertEqual(there.replace(f"{server.url}/a/", ""), here, words)
            contents = []
            for source in (index, f"{server.url}/{index}"):
                self.berth("convert", source, "made.pt")
                contents.append(self.read("made.pt"))
            self.assertEqual(*contents)
            self.berth("diff", f"{server.url}/{index}", index)

    def test_each_file_is_opened_once(self):
        server = self.serve()
        for words, most in ((["ls"], 1), (["show"], 1), (["verify"], 2)):
            server.requests.clear()
            self.berth(*words, f"{server.url}/model.safetensors.index.json")
            paths = [request["path"] for request in server.requests]
            self.assertEqual(paths[0], "/model.safetensors.index.json")
            self.assertEqual(len(set(paths)), 5)
            for path in set(paths):
                self.assertLessEqual(paths.count(path), most, (words, paths))

    def test_files_are_opened_at_once(self):
        together = threading.Barrier(4)
        server = self.serve(lambda request: "000" in request.path and together.wait(20))
        self.berth("ls", f"{server.url}/model.safetensors.index.json")

    def test_names_are_encoded(self):
        index = "model.safetensors.index.json"
        self.rename_shards(index, lambda name: f"ä %2e?x=1#&;\\{name}")
        server = self.serve()
        there = urllib.parse.unquote(self.berth("ls", f"{server.url}/a/{index}").out)
        self.assertEqual(there.replace(f"{server.url}/a/", ""), self.berth("ls", index).out)
        self.assertIn("/a/%C3%A4%20%252e%3Fx%3D1%23%26%3B%5Cmodel-00001-of-00004.safetensors",
                      [request["path"] for request in server.requests])

    def test_user_and_password_go_on_and_the_query_does_not(self):
        """U1, U2"""
        server = self.serve()
        url = server.url.replace("//", "//user:hunter2@", 1) + "/a/model.safetensors.index.json?sig=c0ffee#x"
        for words in (["ls"], ["verify", "--json"], ["info"]):
            server.requests.clear()
            done = self.berth(*words, url)
            self.assertTrue(all("Authorization" in request for request in server.requests))
            asked = [request["path"] for request in server.requests]
            self.assertEqual(asked[0], "/a/model.safetensors.index.json?sig=c0ffee")
            self.assertTrue(all("c0ffee" not in path and path.startswith("/a/") for path in asked[1:]), asked)
            for secret in ("hunter2", "c0ffee"):
                self.assertNotIn(secret, done.out + done.err)

    def test_a_redirected_index(self):
        """U2: the files are beside the URL that was given; another host never gets the password."""
        elsewhere = self.serve()
        far = f"{elsewhere.url}/far/model.safetensors.index.json".replace("127.0.0.1", "localhost")
        server = self.serve(lambda request: request.path.endswith(".json") and request.send(302, Location=far))
        self.berth("ls", server.url.replace("//", "//user:hunter2@", 1) + "/a/model.safetensors.index.json")
        self.assertEqual([request["path"] for request in elsewhere.requests],
                         ["/far/model.safetensors.index.json"])
        self.assertNotIn("Authorization", elsewhere.requests[0])
        self.assertEqual(len(server.requests), 5)

    def test_no_name_leaves_the_folder(self):
        """D2"""
        for name in ("../x.safetensors", "a/../b.safetensors", "/x", "//host/x", "..", ".", "", None, 1):
            bad = json.dumps({"weight_map": {"w": name}}).encode()
            server = self.serve(**{"bad.index.json": bad})
            self.refused("ls", f"{server.url}/bad.index.json", says=("bad.index.json", "\"w\""), code=1)
            self.assertEqual(len(server.requests), 1)

    def test_a_folder_below(self):
        """D2: a slash of a name is one of the path."""
        name = "a b/c/x.safetensors"
        first, file = next(iter(json.loads(self.read(INDICES[0]))["weight_map"].items()))
        below = json.dumps({"weight_map": {first: name}}).encode()
        server = self.serve(**{"below.index.json": below, "x.safetensors": self.read(file)})
        self.assertIn(first, self.berth("ls", f"{server.url}/below.index.json").out)
        self.assertIn("/a%20b/c/x.safetensors", [request["path"] for request in server.requests])

    def test_what_is_no_index(self):
        server = self.serve(**{"no.index.json": b"<html>", "map.index.json": b"{}", "twice.index.json":
                               b'{"weight_map": {"a": "x", "a": "y"}}'})
        for name, says in (("no", "is no index of a checkpoint"), ("map", "has no weight_map"),
                           ("twice", "duplicate")):
            self.refused("ls", f"{server.url}/{name}.index.json", says=(server.url, says), code=1)

    def test_a_size_that_no_index_has(self):
        """U4"""
        huge = (64 << 20) + 1
        server = self.serve(lambda request: request.send_range(
            size=huge, first=huge - (1 << 20), last=huge - 1, body=bytes(1 << 20)),
            **{"huge.index.json": b""})
        self.refused("ls", f"{server.url}/huge.index.json", says=("huge.index.json", "more than 64 MiB"))
        self.assertEqual(len(server.requests), 1)

    def test_a_large_index(self):
        """Larger than the first request."""
        large = json.loads(self.read(INDICES[0]))
        large["metadata"]["remark"] = "x" * (3 << 20)
        server = self.serve(**{"large.index.json": json.dumps(large).encode()})
        self.assertEqual(self.berth("show", f"{server.url}/large.index.json").out,
                         self.berth("show", INDICES[0]).out)
        self.assertEqual([request["path"] for request in server.requests].count("/large.index.json"), 2)

    def test_a_file_that_is_not_there(self):
        server = self.serve(lambda request: "00002" in request.path and request.send(404))
        url = f"{server.url}/model.safetensors.index.json"
        for words in (["show", url], ["convert", url, "out.pt"], ["diff", url, "whole.pt"]):
            self.refused(*words, code=1, says=("model-00002-of-00004.safetensors", "no such object (status 404)"))
        server.requests.clear()
        done = self.berth("verify", url, code=1)
        self.assertIn("/model-00002-of-00004.safetensors: missing: ", done.out)
        self.assertEqual(sum("00002" in request["path"] for request in server.requests), 1)
        self.assertIn("not all of its 4 files", done.out)
        self.assertNotIn("out.pt", self.entries())

    def test_an_object_that_changes(self):
        """U3"""
        self.berth("convert", self.demo, "large.safetensors", "--root", "model")
        data = bytearray(self.read("large.safetensors"))
        header = json.dumps({"w": {"dtype": "U8", "shape": [3 << 20], "data_offsets": [0, 3 << 20]}}).encode()
        data = len(header).to_bytes(8, "little") + header + bytes(3 << 20)
        index = json.dumps({"weight_map": {"w": "w.safetensors"}}).encode()
        server = self.serve(lambda request: "w.safe" in request.path and "If-Match" in request.headers and
                            request.send(412), **{"w.safetensors": data, "w.index.json": index})
        self.refused("convert", f"{server.url}/w.index.json", "out.pt",
                     says=("w.safetensors", "the object changed"))

    def test_of_s3(self):
        """Keys have their characters as they are; all requests are signed."""
        index = "model.safetensors.index.json"
        self.rename_shards(index, lambda name: f"ä %2e?{name}")
        problems = []

        def verify(request):
            problem = signature.problem("GET", request.path, request.headers, KEY, SECRET, "eu-west-1")
            problems.append(problem) if problem else None

        server = self.serve(verify)
        env = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu-west-1",
               "AWS_ENDPOINT_URL": server.url}
        done = self.berth("ls", f"s3://bucket/some folder/{index}", env=env)
        self.assertEqual(done.out.replace("s3://bucket/some folder/", ""), self.berth("ls", index).out)
        self.assertEqual(problems, [])
        self.assertEqual(len(server.requests), 5)

    def test_commands_that_take_one_file(self):
        for words in (["copy", "out.pt"], ["map"]):
            self.refused(words[0], "http://host/a/model.safetensors.index.json", *words[1:], code=1,
                         says="`berth convert http://host/a/model.safetensors.index.json NEW.pt`")


    def test_more_files_than_descriptors(self):
        """Connections of files that were read are no reason to fail for those that come."""
        content = {"weight_map": {}}
        body = bytes(9 << 20)
        header = json.dumps({"NAME": {"dtype": "U8", "shape": [9 << 20], "data_offsets": [0, 9 << 20]}})
        data = {}
        for i in range(40):
            text = header.replace("NAME", f"w{i:03}").encode()
            data[f"{i}.safetensors"] = len(text).to_bytes(8, "little") + text + body
            content["weight_map"][f"w{i:03}"] = f"{i}.safetensors"
        server = self.serve(**data, **{"w.index.json": json.dumps(content).encode()})
        done = subprocess.run(["bash", "-c", 'ulimit -n 128; exec "$@"', "-", case.BERTH, "convert",
                               f"{server.url}/w.index.json", "out.pt", "--set", "save.durability=none"],
                              cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
