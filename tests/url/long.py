# SPDX-License-Identifier: BSD-3-Clause
"""What takes long (BERTH_LONG=1): servers that stay broken or fall silent, and moto instead of S3."""

import os
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

import case
import files
from faulty import Misbehaves


@unittest.skipUnless(os.environ.get("BERTH_LONG") == "1", "BERTH_LONG=1 runs it")
class Long(Misbehaves):
    def test_a_server_that_stays_broken(self):
        server = self.serve(lambda request: request.send(503))
        begin = time.monotonic()
        self.refused("info", f"{server.url}/mid.pt", says="status 503")
        self.assertEqual(len(server.requests), 6)
        self.assertGreater(time.monotonic() - begin, 3.8)

    def test_a_server_that_falls_silent(self):
        server = self.serve(lambda request: request.n == 1 and time.sleep(60))
        begin = time.monotonic()
        self.berth("info", f"{server.url}/mid.pt")
        self.assertLess(time.monotonic() - begin, 45)
        self.assertEqual(len(server.requests), 3)

    def test_moto(self):
        """In a virtual environment of its own: moto[server] and boto3, from PyPI."""
        there = os.path.join(os.path.dirname(os.path.abspath(os.environ["BERTH_BUILD"])), "moto")
        python = os.path.join(there, "bin", "python")
        if not os.path.exists(python):
            subprocess.run([sys.executable, "-m", "venv", there], check=True)
            subprocess.run([python, "-m", "pip", "install", "-q", "moto[server]==5.1.16", "boto3"],
                           check=True)
        port = files.free_ports(1)[0]
        env = dict(os.environ, AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing",
                   AWS_REGION="eu-west-1", AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}",
                   AWS_DEFAULT_REGION="eu-west-1")
        server = subprocess.Popen([python, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/").close()
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.2)
        upload = """
import boto3, sys
s3 = boto3.client("s3")
s3.create_bucket(Bucket="models", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
s3.upload_file(sys.argv[1], "models", "a b/mid.pt")
"""
        subprocess.run([python, "-c", upload, files.path("mid.pt")], check=True, env=env)
        self.berth("copy", "s3://models/a b/mid.pt", "copy.pt", env=env)
        self.assertEqual(self.read("copy.pt"), self.data)
        self.refused("info", "s3://models/none.pt", says="NoSuchKey", env=env)
        self.assertEqual(case.subprocess.run([case.BERTH, "verify", "s3://models/a b/mid.pt"], env=env,
                                             check=False).returncode, 0)
