# SPDX-License-Identifier: BSD-3-Clause
"""The package for Python with URLs, each test in a process of its own; and machines without libcurl."""

import os
import subprocess
import sys
import time
import unittest

import case
import files
from server import Server

BEGIN = """
import os, signal, sys, threading, time
import torch
import berth
url, name = sys.argv[1:]
def same(a, b):
    assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
def fails(kind, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError("nothing was raised")
"""
BUILT = os.path.dirname(case.BERTH)
PACKAGE = os.path.join(BUILT, "python", "berth", "_native.abi3.so")


@unittest.skipUnless(os.path.exists(PACKAGE), "the package is not built")
class Package(case.Case):
    def setUp(self):
        super().setUp()
        self.server = Server(files.read("mid.pt"))
        self.server.__enter__()
        self.addCleanup(self.server.__exit__)

    def python(self, text, name="mid.pt", **environment):
        self.server.data = files.read(name)
        env = dict(os.environ, PYTHONPATH=os.path.join(BUILT, "python"), **environment)
        done = subprocess.run([files.PYTHON, "-c", BEGIN + text, f"{self.server.url}/{name}", files.path(name)],
                              capture_output=True, text=True, env=env, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_everything_is_read(self):
        self.python("""
expected = torch.load(name)
same(berth.load(url), expected)
with berth.open(url) as file:
    assert file.keys() == list(expected)
    mine = file["layers.3.weight"]
    assert torch.equal(mine, expected["layers.3.weight"])
    mine += 1  # memory of its own
    assert torch.equal(file.slice("layers.4.weight")[5:10], expected["layers.4.weight"][5:10])
    assert (file.numpy("layers.5.weight") == expected["layers.5.weight"].numpy()).all()
    assert file.info["container"] == "zip"
assert berth.verify(url)
assert mine.sum() != 0
fails(ValueError, berth.load, url, mmap=True)
""")

    def test_only_what_is_asked_for_is_requested(self):
        self.python("""
with berth.open(url) as file:
    file.slice("layers.4.weight")[100:200]
""")
        self.assertEqual(len(self.server.requests), 3)
        first, last = map(int, self.server.ranges()[2][len("bytes="):].split("-"))
        self.assertEqual(last - first + 1, 400)

    def test_old_files_and_classes(self):
        self.python("same(berth.load(url), torch.load(name))", "old.pt")
        self.python("""
fails(berth.UnsafeFileError, berth.load, url)
assert type(berth.load(url, weights_only=False)["linear"]) is torch.nn.Linear
""", "classes.pt")

    def test_errors_have_classes_and_words(self):
        """U1, U3"""
        def change(request):
            if request.n == 0 and request.path.startswith("/none"):
                request.send(404)
            elif request.n >= 3:
                request.send(412)

        self.server.behave = change
        self.python("""
secret = url.replace("//", "//user:hunter2@") + "?sig=c0ffee"
missing = fails(FileNotFoundError, berth.load, secret.replace("/mid.pt", "/none.pt"))
assert "no such object (status 404)" in str(missing), missing
changed = fails(OSError, berth.load, secret)
assert isinstance(changed, berth.FileError) and "the object changed while it was read" in str(changed), changed
assert isinstance(fails(berth.FileError, berth.verify, secret), OSError)
for error in (missing, changed):
    assert "hunter2" not in str(error) and "c0ffee" not in str(error), error
""")

    def test_a_child_reads_on(self):
        """X11"""
        self.python("""
expected = torch.load(name)
file = berth.open(url)
first = file["layers.3.weight"]
child = os.fork()
if child == 0:
    good = torch.equal(torch.from_numpy(file.numpy("layers.7.weight")), expected["layers.7.weight"])
    os._exit(0 if good else 1)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(file["layers.8.weight"], expected["layers.8.weight"])
""")

    def test_an_interrupt_stops_what_waits(self):
        self.server.behave = lambda request: request.n > 0 and time.sleep(3)
        self.python("""
threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begin = time.monotonic()
fails(KeyboardInterrupt, berth.open, url)
assert time.monotonic() - begin < 2.5
""")

    def test_torch_reaches_no_network(self):
        """U5"""
        self.python("""
berth.install()
fails(FileNotFoundError, torch.load, url)
fails(FileNotFoundError, berth.load, os.fsencode(url))
berth.uninstall()
""")
        self.assertEqual(self.server.requests, [])


class WithoutLibcurl(case.Case):
    def test_the_command_says_what_to_install(self):
        """U5: the command does not need libcurl, but for URLs. What is found first is no library."""
        for name in ("libcurl.so.4", "libcurl-gnutls.so.4"):
            self.write(name, b"no library")
        hidden = {"LD_LIBRARY_PATH": self.folder}
        self.refused("info", "https://host/mid.pt", says="apt-get install libcurl4", env=hidden)
        self.berth("info", self.demo, env=hidden)

    def test_the_library_is_not_linked(self):
        """U5"""
        for name in (case.BERTH, os.path.join(BUILT, "libberth.so")):
            done = subprocess.run(["readelf", "-d", name], capture_output=True, text=True, check=True)
            self.assertIn("NEEDED", done.stdout)
            self.assertNotIn("curl", done.stdout)
        shown = subprocess.run(["nm", "-D", os.path.join(BUILT, "libberth.so")], capture_output=True,
                               text=True, check=True).stdout
        self.assertIn("berth_open_source", shown)
        for name in ("socket", "connect", "getaddrinfo", "berth_source_url"):
            self.assertNotRegex(shown, rf"\b{name}\b")


if __name__ == "__main__":
    sys.exit("tests/url/run runs these tests")
