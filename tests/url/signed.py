# SPDX-License-Identifier: BSD-3-Clause
"""s3://: addresses, credentials and signatures, against a server that verifies each signature."""

import os
import unittest

import case
import files
import signature
from server import Server

KEY, SECRET, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "c0f+fee/token=="
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class Verifier(unittest.TestCase):
    """The other tests are as good as their verifier."""

    def test_amazons_published_examples(self):
        """Source: the examples of GET in the reference of Amazon S3, on signing by the header."""
        headers = {"host": "examplebucket.s3.amazonaws.com", "x-amz-content-sha256": EMPTY,
                   "x-amz-date": "20130524T000000Z"}
        for target, more, signature_of_it in (
                ("/test.txt", {"range": "bytes=0-9"},
                 "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
                ("/?lifecycle", {}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
                ("/?max-keys=2&prefix=J", {},
                 "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7")):
            sent = {**headers, **more}
            self.assertEqual(
                signature.sign("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "GET", target, sent,
                               sorted(sent), "20130524T000000Z", "us-east-1"), signature_of_it, target)

    def test_it_sees_every_change(self):
        headers = {"Host": "h", "x-amz-content-sha256": EMPTY, "X-Amz-Date": "20130524T000000Z"}
        signed = ["host", "x-amz-content-sha256", "x-amz-date"]
        made = signature.sign(SECRET, "GET", "/b/k", {name.lower(): text for name, text in headers.items()},
                              signed, "20130524T000000Z", "eu-west-1")
        headers["Authorization"] = (f"AWS4-HMAC-SHA256 Credential={KEY}/20130524/eu-west-1/s3/aws4_request, "
                                    f"SignedHeaders={';'.join(signed)}, Signature={made}")
        good = ["GET", "/b/k", headers, KEY, SECRET, "eu-west-1"]
        self.assertIsNone(signature.problem(*good))
        for i, other in enumerate(("PUT", "/b/K", {**headers, "Host": "i"}, "OTHER", "x", "eu-west-2")):
            self.assertIsNotNone(signature.problem(*good[:i], other, *good[i + 1:]))
        token = {**headers, "X-Amz-Security-Token": "t"}  # not signed
        self.assertIsNotNone(signature.problem(*good[:2], token, *good[3:]))


class Signed(case.Case):
    def setUp(self):
        super().setUp()
        self.problems = []
        self.server = Server(files.read("mid.pt"), self.verify)
        self.server.__enter__()
        self.addCleanup(self.server.__exit__)
        clean = case.unittest.mock.patch.dict(os.environ)
        clean.start()
        self.addCleanup(clean.stop)
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]
        os.environ.update(HOME=self.folder, AWS_ENDPOINT_URL=self.server.url)
        os.mkdir(self.path(".aws"))
        self.region = "eu-west-1"

    def verify(self, request):
        problem = signature.problem("GET", request.path, request.headers, KEY, SECRET, self.region)
        if problem:
            self.problems.append(problem)
            request.send(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")

    def keys(self, **more):
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": self.region, **more}

    def accepted(self, url="s3://bucket/a/mid.pt", env=None):
        self.server.requests.clear()
        self.berth("info", url, env=env)
        self.assertEqual(self.problems, [])
        self.assertEqual(len(self.server.requests), 2)

    def test_every_request_is_signed(self):
        self.berth("copy", "s3://bucket/mid.pt", "copy.pt", env=self.keys())
        self.assertEqual(self.read("copy.pt"), self.server.data)
        self.assertEqual(self.problems, [])
        last = self.server.requests[-1]
        self.assertEqual((last["path"], last["If-Match"], last["x-amz-content-sha256"]),
                         ("/bucket/mid.pt", '"one"', EMPTY))
        self.assertIn("SignedHeaders=host;if-match;", last["Authorization"])

    def test_keys_of_any_characters(self):
        for key, path in (
                ("a b+c.pt", "a%20b%2Bc.pt"), ("ü/x~y.pt", "%C3%BC/x~y.pt"), ("a//b.pt", "a//b.pt"),
                ("a/../b$&,=:;@!'()*?#%.pt", "a/../b%24%26%2C%3D%3A%3B%40%21%27%28%29%2A%3F%23%25.pt")):
            self.accepted(f"s3://buck.et/{key}", self.keys())
            self.assertEqual(self.server.requests[0]["path"], f"/buck.et/{path}")

    def test_a_token(self):
        self.accepted(env=self.keys(AWS_SESSION_TOKEN=TOKEN))
        self.assertEqual({request["X-Amz-Security-Token"] for request in self.server.requests}, {TOKEN})

    def test_the_region_of_other_variables(self):
        self.region = "us-east-1"
        self.accepted(env=self.keys(AWS_REGION=""))
        self.region = "ap-south-1"
        self.accepted(env=self.keys(AWS_REGION="", AWS_DEFAULT_REGION="ap-south-1"))

    def test_profiles(self):
        self.write(".aws/credentials", f"""# [default]
[default]
aws_access_key_id = wrong
aws_secret_access_key = wrong
[ work ]
aws_access_key_id={KEY}
  aws_secret_access_key = indented lines belong to another setting
aws_secret_access_key =   {SECRET}
""".encode())
        self.write(".aws/config", b"[default]\nregion = us-west-1\n[profile work]\nregion = eu-west-1\n")
        self.accepted(env={"AWS_PROFILE": "work"})
        self.refused("info", "s3://bucket/mid.pt", says="the request was signed")
        self.problems.clear()
        self.accepted(env=self.keys(AWS_PROFILE="default"))  # the variables are stronger

    def test_other_files(self):
        self.write("my config", f"""[default]
region = eu-west-1
endpoint_url = {self.server.url}
aws_access_key_id = {KEY}
aws_secret_access_key = {SECRET}
aws_session_token = {TOKEN}
""".encode())
        self.accepted(env={"AWS_CONFIG_FILE": self.path("my config"), "AWS_ENDPOINT_URL": ""})
        self.assertEqual(self.server.requests[0]["X-Amz-Security-Token"], TOKEN)

    def test_half_a_pair_is_not_used(self):
        self.write(".aws/credentials", f"[default]\naws_access_key_id = {KEY}\n"
                   f"aws_secret_access_key = {SECRET}\n".encode())
        self.accepted(env={"AWS_ACCESS_KEY_ID": "other", "AWS_REGION": self.region})

    def test_the_endpoint_of_s3_comes_first(self):
        self.accepted(env=self.keys(AWS_ENDPOINT_URL="http://127.0.0.1:1",
                                    AWS_ENDPOINT_URL_S3=self.server.url + "/"))
        self.refused("info", "s3://bucket/mid.pt", says="AWS_ENDPOINT_URL must be",
                     env={"AWS_ENDPOINT_URL": "http://user:hunter2@host"})

    def test_amazons_own_hosts(self):
        """A proxy sees where requests go; https would hide it, so that a tunnel is asked for."""
        tunnels = []

        class Handler(self.server.http.RequestHandlerClass):
            def do_CONNECT(self):
                tunnels.append(self.path)
                self.send_error(403)

        self.server.http.RequestHandlerClass = Handler
        for bucket, region, host in (("my-bucket", "eu-west-1", "my-bucket.s3.eu-west-1.amazonaws.com"),
                                     ("my.bucket", "eu-west-1", "s3.eu-west-1.amazonaws.com"),
                                     ("My_Bucket", "eu-west-1", "s3.eu-west-1.amazonaws.com"),
                                     ("bucket", "cn-north-1", "bucket.s3.cn-north-1.amazonaws.com.cn")):
            self.refused("info", f"s3://{bucket}/mid.pt", says=f"s3://{bucket}/mid.pt", env=self.keys(
                AWS_ENDPOINT_URL="", https_proxy=self.server.url, AWS_REGION=region))
            self.assertEqual(tunnels.pop(), f"{host}:443")

    def test_unsigned(self):
        self.refused("info", "s3://bucket/mid.pt",
                     says=("status 403", "was not signed", "AWS_PROFILE", "AWS_ACCESS_KEY_ID"))
        self.assertNotIn("Authorization", self.server.requests[0])
        self.server.behave = None
        self.problems.clear()
        self.accepted()

    def test_another_region(self):
        """U2: a redirect of S3 is told, and not followed."""
        self.server.behave = lambda request: request.send(
            301, b"<Error><Code>PermanentRedirect</Code></Error>", Location=self.server.url + "/elsewhere",
            x_amz_bucket_region="eu-central-1")
        self.refused("info", "s3://bucket/mid.pt", env=self.keys(AWS_SESSION_TOKEN=TOKEN),
                     says="the bucket is in the region eu-central-1: set AWS_REGION=eu-central-1")
        self.assertEqual([request["path"] for request in self.server.requests], ["/bucket/mid.pt"])

    def test_no_message_has_a_credential(self):
        """U1"""
        env = self.keys(AWS_SESSION_TOKEN=TOKEN)
        for status in (301, 400, 403, 404, 501):
            self.server.behave = lambda request, status=status: request.send(
                status, f"<Code>{KEY} {SECRET}</Code>{TOKEN}".encode())
            for words in (["info", "--json", "--stats"], ["verify"]):
                done = self.berth(*words, "s3://bucket/mid.pt", code=2, env=env)
                for secret in (KEY, SECRET, TOKEN):
                    self.assertNotIn(secret, done.out + done.err)
