# SPDX-License-Identifier: BSD-3-Clause
"""The package for Python and a program in C with URLs; and machines without libcurl."""

import json
import os
import subprocess
import sys
import threading
import time
import unittest

import case
import files
from server import Server

FAILS = """
def fails(kind, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError("nothing was raised")
"""
BEGIN = FAILS + """
import os, signal, sys, threading, time
import torch
import berth
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" leaves it ignored
server, folder = sys.argv[1:]
url, name = f"{server}/mid.pt", f"{folder}/mid.pt"
expected = torch.load(name)
def same(a, b):
    assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
"""
BUILT = os.path.dirname(case.BERTH)
PACKAGE = os.path.join(BUILT, "python", "berth", "_native.abi3.so")


@unittest.skipUnless(os.path.exists(PACKAGE), "the package is not built")
class Package(case.Case):
    def setUp(self):
        super().setUp()
        self.server = Server({name: files.read(name) for name in ("mid.pt", "old.pt", "classes.pt")})
        self.server.__enter__()
        self.addCleanup(self.server.__exit__)

    def python(self, text):
        env = dict(os.environ, PYTHONPATH=os.path.join(BUILT, "python"))
        done = subprocess.run([files.PYTHON, "-c", BEGIN + text, self.server.url, files.folder()],
                              capture_output=True, text=True, env=env, timeout=600, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_everything_is_read(self):
        self.python("""
same(berth.load(url), expected)
with berth.open(url) as file:
    assert file.keys() == list(expected)
    mine = file["layers.3.weight"]
    assert torch.equal(mine, expected["layers.3.weight"])
    mine += 1  # memory of its own
    assert (file.numpy("layers.5.weight") == expected["layers.5.weight"].numpy()).all()
    assert file.info["container"] == "zip"
assert berth.verify(url)
assert mine.sum() != 0
fails(ValueError, berth.load, url, mmap=True)
same(berth.load(f"{server}/old.pt"), torch.load(f"{folder}/old.pt"))
classes = f"{server}/classes.pt"
fails(berth.UnsafeFileError, berth.load, classes)
assert type(berth.load(classes, weights_only=False)["linear"]) is torch.nn.Linear
""")

    def test_an_object_that_is_exchanged(self):
        """Y1: between Berth's reading and PyTorch's, with the same ETag: PyTorch gets what Berth has read."""
        self.python(f"""
import fractions
for name, n in (("first", 1), ("second", 2)):
    torch.save([fractions.Fraction(n), torch.full((30_000,), n)], {self.folder!r} + f"/{{name}}.pt")
""")
        first, second = (self.read(f"{name}.pt") for name in ("first", "second"))
        self.server.data = {"first.pt": first, "exchange": b"x"}
        self.server.behave = lambda request: "exchange" in request.path and self.server.data.update({"first.pt": second})
        self.python("""
import fractions, urllib.request
scan = berth._gate.try_pickle
def scan_and_exchange(kept):
    scan(kept)
    urllib.request.urlopen(urllib.request.Request(f"{server}/exchange", headers={"Range": "bytes=0-0"})).read()
berth._gate.try_pickle = scan_and_exchange
with torch.serialization.safe_globals([fractions.Fraction]):
    number, tensor = berth.load(f"{server}/first.pt")
assert number == 1 and tensor.unique().tolist() == [1], (number, tensor)
""")

    def test_only_what_is_asked_for_is_requested(self):
        """U5: and nothing through functions of PyTorch."""
        self.python("""
with berth.open(url) as file:
    part = file.slice("layers.4.weight")[100:200]
assert torch.equal(part, expected["layers.4.weight"][100:200])
berth.install()
fails(FileNotFoundError, torch.load, url)
fails(FileNotFoundError, torch.load, url.replace(".pt", ".safetensors"))
fails(FileNotFoundError, berth.load, os.fsencode(url))
""")
        self.assertEqual(len(self.server.requests), 3)
        first, last = map(int, self.server.ranges()[2][len("bytes="):].split("-"))
        self.assertEqual(last - first + 1, 400)

    def test_errors_have_classes_and_words(self):
        """U1, U3"""
        def change(request):
            if request.path.startswith("/none"):
                request.send(404)
            elif "changes" in request.path and "If-Match" in request.headers and request.first > 4096:
                request.send(412)

        self.server.behave = change
        self.python("""
secret = url.replace("//", "//user:hunter2@").replace("mid.pt", "changes/mid.pt") + "?sig=c0ffee"
missing = fails(FileNotFoundError, berth.load, secret.replace("/changes", "/none"))
assert "no such object (status 404)" in str(missing), missing
changed = fails(OSError, berth.load, secret)
assert isinstance(changed, berth.FileError) and "the object changed" in str(changed), changed
assert isinstance(fails(berth.FileError, berth.verify, secret), OSError)
for error in (missing, changed):
    assert "hunter2" not in str(error) and "c0ffee" not in str(error), error
shown = repr(berth.open(url.replace("//", "//user:hunter2@") + "?sig=c0ffee"))
assert url in shown and "hunter2" not in shown and "c0ffee" not in shown, shown

# X11: a child reads on through its parent's file, by connections of its own: both read at once.
file = berth.open(url)
def reads_right(number):
    name = f"layers.{number}.weight"
    for row in range(100):
        part = file.slice(name)[row * 64:row * 64 + 64]
        if not torch.equal(part, expected[name][row * 64:row * 64 + 64]):
            return False
    return True
assert reads_right(3)
child = os.fork()
good = False
try:
    good = reads_right(7 if child else 8)
finally:
    if not child:
        os._exit(0 if good else 1)
assert good and os.waitpid(child, 0)[1] == 0
""")

    def test_the_deadline_is_an_option(self):
        """U4"""
        self.server.behave = lambda request: request.send(503)
        self.python("""
with berth.config.patch("io.url_deadline=1"):
    begin = time.monotonic()
    error = fails(OSError, berth.load, url)
    assert "io.url_deadline" in str(error) and time.monotonic() - begin < 30, error
""")

    def test_no_text_of_a_url_has_a_credential(self):
        """U1: its repr, in a list too; and a pickle of it opens the same address in another process."""
        self.python("""
import pickle
from berth._source import from_caller
for text in ("https://us:hunter2@host/a.pt", "https://us:hunter2/swordfish@host/a.pt", "s3://us:hunter2/x@b/k",
             "https://host/a.pt?X-Amz-Signature=c0ffee", "https://host/a?x=@c0ffee"):
    for found in (from_caller(text), pickle.loads(pickle.dumps(from_caller(text)))):
        shown = f"{found!r} {[found]} {ascii(found)}"
        assert str(found) == text and shown.startswith("Url('"), shown
        for secret in ("hunter2", "swordfish", "c0ffee"):
            assert secret not in shown, shown
""")

    def serve_a_set(self, behave=None, **more):
        """An index and its four files; Python's `index`, with a password, and `whole`, a path of the same tensors."""
        self.berth("convert", self.demo, "whole.pt", "--root", "model", "--without", "head")
        self.berth("convert", "whole.pt", "m.safetensors.index.json", "--shard-size", "300KiB")
        self.server.data = {name: self.read(name) for name in self.entries()} | more
        self.server.behave = behave
        return (f"index = server.replace('//', '//me:hunter2@') + '/a/m.safetensors.index.json?sig=c0ffee'\n"
                f"whole = {self.path('whole.pt')!r}\n")

    def test_an_index(self):
        """U1, U2: its files are read beside it, with its user and password, without its query."""
        begin = self.serve_a_set()
        self.python(begin + """
expected = torch.load(whole)
with berth.open(index) as file:
    assert sorted(file.keys()) == sorted(expected) and file.info["n_files"] == 4, file.info
    name = file.keys()[0]
    assert torch.equal(file[name], expected[name])
    assert torch.equal(file.slice(name)[1:], expected[name][1:])
    assert "hunter2" not in repr(file) and "c0ffee" not in repr(file), file
same(berth.load(index), expected)
assert berth.verify(index)
fails(ValueError, berth.load, index, mmap=True)
berth.install()
fails(FileNotFoundError, torch.load, index)
""")
        asked = self.server.requests
        self.assertEqual(len({request["path"] for request in asked}), 5)
        for request in asked:
            self.assertIn("Authorization", request)
            self.assertEqual("c0ffee" in request["path"], request["path"].startswith("/a/m.safetensors.index.json"))

    def test_the_files_of_an_index_are_opened_at_once(self):
        """By the options of the caller's thread; of those that fail the first is told; ^C waits for none."""
        together, opened = threading.Barrier(4), set()

        def behave(request):
            if "/all/" in request.path and "-of-" in request.path and request.path not in opened:
                opened.add(request.path)
                together.wait(20)
            elif "/none/" in request.path and "-of-" in request.path:
                if "00001" not in request.path:
                    time.sleep(0.5 if "00002" in request.path else 0)
                    request.send(404)
            elif "/slow/" in request.path and "-of-" in request.path:
                time.sleep(10)

        self.python(self.serve_a_set(behave) + """
for call in (berth.open, berth.load):
    def at(folder):
        return index.replace("/a/", f"/{call.__name__}/{folder}/")
    call(at("all"))
    error = fails(FileNotFoundError, call, at("none"))
    assert "m-00002-of-00004" in str(error), error
    with berth.config.patch("io.url_deadline=1"):
        error = fails(OSError, call, at("slow"))
        assert "io.url_deadline" in str(error), error
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    fails(KeyboardInterrupt, call, at("slow"))
    assert time.monotonic() - begin < 9
same(berth.load(at("all")), torch.load(whole))
""")

    def test_an_index_that_is_refused(self):
        """D2, U1, U3, U4: nothing but the index is requested; of a file that changes nothing is taken."""
        huge = (64 << 20) + 1

        def behave(request):
            if "huge" in request.path:
                request.send_range(size=huge, first=huge - (1 << 20), last=huge - 1, body=bytes(1 << 20))
            elif "00002" in request.path:
                request.send(404)
            elif "w.safetensors" in request.path and "If-Match" in request.headers:
                request.send(412)

        header = b'{"w": {"dtype": "U8", "shape": [3145728], "data_offsets": [0, 3145728]}}'
        changing = len(header).to_bytes(8, "little") + header + bytes(3 << 20)
        more = {f"{i}.index.json": json.dumps({"weight_map": {"w": name}}).encode() for i, name in enumerate(
            ("../x.safetensors", "/x", "//host/x", "a/../../x", "", "x\0", None, "w.safetensors", "8.index.json"))}
        begin = self.serve_a_set(behave, **more, **{"huge.index.json": b"", "w.safetensors": changing})
        self.python(begin + """
for name in (*range(7), "huge"):
    for call in (berth.load, berth.open):
        error = fails(berth.DamagedFileError, call, index.replace("m.safetensors", str(name)))
        assert "is no index of a checkpoint" in str(error) and "hunter2" not in str(error), error
""")
        self.assertEqual(len(self.server.requests), 2 * 8)
        self.python(begin + """
for call in (berth.load, berth.open):
    error = fails(FileNotFoundError, call, index)
    assert "/a/m-00002-of-00004.safetensors: there is no such object" in str(error), error
    assert "hunter2" not in str(error) and "c0ffee" not in str(error), error
assert "the object changed" in str(fails(OSError, berth.load, index.replace("m.safetensors", "7")))
fails(berth.Error, berth.load, index.replace("m.safetensors", "8"))  # which names itself
""")
        self.assertEqual(sum("8.index.json" in request["path"] for request in self.server.requests), 2)  # as index, and as file

    def test_an_interrupt_stops_what_waits(self):
        def stall(request):
            if "If-Match" in request.headers and (request.first > 0 or "load" not in request.path):
                time.sleep(10)

        self.server.behave = stall
        self.python("""
file = berth.open(url.replace("mid.pt", "load/mid.pt"))
for i, wait in enumerate((lambda: berth.open(url), lambda: berth.load(url.replace("mid.pt", "load/mid.pt")),
                          lambda: berth.verify(url.replace("mid.pt", "load/mid.pt")),
                          lambda: file["layers.3.weight"])):
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    fails(KeyboardInterrupt, wait)
    assert time.monotonic() - begin < 9, (i, time.monotonic() - begin)
""")


PROGRAM = r"""
#include "adapters/curl/berth_curl.h"
#include <berth/more.h>
#include <stdio.h>
#include <string.h>
static int cancel(void *context)
{
    return ++*(int *)context > 0;
}
int main(int n, char **words)
{
    int asked = 0;
    berth_url_params params = {.cancelled = cancel, .context = &asked};
    berth_source source;
    berth_checkpoint *model = NULL;
    berth_error error;
    if (n > 2) /* what waits is cancelled */
        return berth_source_url(words[1], &params, &source, &error) == BERTH_E_CANCELLED && asked ? 0 : 1;
    params.reserved[2] = 1;
    if (berth_source_url(words[1], &params, &source, &error) != BERTH_E_ARGUMENT || source.read)
        return 2;
    berth_source_url_free(&source);
    berth_source_url_free(NULL);
    if (berth_is_url("model.pt") || !berth_is_url("HTTPS://host/") || berth_is_url(NULL))
        return 3;
    if (berth_source_url("model.pt", NULL, &source, NULL) != BERTH_E_ARGUMENT)
        return 4;
    if (berth_source_url(words[1], NULL, &source, &error) < 0)
        return fprintf(stderr, "%s\n", error.message), 5;
    if (berth_open_source(&source, NULL, &model, &error) < 0)
        return fprintf(stderr, "%s\n", error.message), 6;
    if (berth_load(model, NULL, NULL, &error) != BERTH_E_CALLBACK)
        return 7;
    if (berth_source_url_explain(&source, &error) != BERTH_E_SYSTEM)
        return 8;
    puts(error.message);
    berth_close(model);
    berth_source_url_free(&source);
    berth_source_url_free(&source);
    return 0;
}
"""


class FromC(case.Case):
    def test_a_program(self):
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
        self.write("program.c", PROGRAM.encode())
        libraries = [os.path.join(BUILT, f"lib{name}.a") for name in ("berth_curl", "berth")]
        subprocess.run(["gcc", "-Wall", "-Werror", "-I", root, "program.c", *libraries, "-ldeflate", "-lz",
                        "-ljansson", "-ldl", "-pthread", "-o", "program"], cwd=self.folder, check=True)
        with Server(files.read("mid.pt"), lambda request: request.n > 3 and request.send(412)) as server:
            said = subprocess.run([self.path("program"), f"{server.url}/mid.pt"], check=True, text=True,
                                  stdout=subprocess.PIPE).stdout
            changed = "the object changed while it was read: open it again"
            self.assertEqual(said, f"{server.url}/mid.pt: {changed}\n")
        with Server(b"", lambda request: time.sleep(2)) as server:
            subprocess.run([self.path("program"), f"{server.url}/mid.pt", "cancel"], check=True, timeout=600)


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
