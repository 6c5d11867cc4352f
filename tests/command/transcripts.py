# SPDX-License-Identifier: BSD-3-Clause
"""What someone who knows zstd, git and ripgrep tries first, command by command: lines of a shell, what
they print, and how they exit."""

import os
import re
import socket
import subprocess
import sys

from case import BERTH, HERE, Case, old

sys.path.append(os.path.join(HERE, "..", "url"))
from server import Server

# A line, its exit code, and what standard output and standard error match as a whole ("": nothing).
USAGE = r"berth {}: {}\nTry `berth {} --help' or `berth {} --usage' for more information\.\n"
MISSING = {name: USAGE.format(name, "an argument is missing", name, name)
           for name in ("ls", "info", "map", "show", "verify", "cat", "copy", "convert", "diff", "clean")}
NEAREST = r"berth: unknown command '{}'; the nearest is 'berth {}'; `berth --help` lists all\n"
SETS_NOTHING = (r"berth: `berth config` sets nothing: add `--set io\.threads=4` to a command, or "
                r"`eval \"\$\(berth config --export --set io\.threads=4\)\"` sets it for this shell\n")
HELP = r"Usage: berth COMMAND (.|\n)*"
NOT_THERE = r"berth: http://.*/none\.pt: there is no such object \(status 404\)\n"
SCHEME = r"berth: {}://: of URLs, only those with https://, http:// and s3:// are read\n"
TRANSCRIPTS = {
    "berth": [
        ("berth", 2, "", HELP),
        ("berth -h", 0, HELP, ""),
        ("berth --help", 0, HELP, ""),
        ("berth help", 0, HELP, ""), ("berth help bench", 0, r"Usage: berth bench (.|\n)*", ""),
        ("berth --help ls", 0, r"Usage: berth ls (.|\n)*", ""),
        ("berth --help lss", 2, "", r"berth: unknown command 'lss'; the nearest is 'berth ls'; .*\n"),
        ("berth -V", 0, r"berth \d+\.\d+\.\d+\n", ""), ("berth --version", 0, r"berth \d+\.\d+\.\d+\n", ""),
        ("berth --version foo", 0, r"berth \d+\.\d+\.\d+\n", ""),  # as git does
        *((f"berth {words}", 2, "", r"berth: a path is empty: a variable of the shell that is not set\?\n")
          for words in ('ls ""', 'diff demo.pt ""', 'copy demo.pt ""', 'map demo.pt -o ""', 'clean ""', 'demo ""',
                        'convert demo.pt ""', 'convert "" a.pt', 'bench load ""', 'bench save ""', 'bench rows ""')),
        *((f"berth config {words}", 2, "", r"berth: a name of an option is empty: a variable of the shell that is not set\?\n")
          for words in ('""', '"" 1', '=1')),
        ("berth status", 2, "", r"berth: unknown command 'status'; `berth --help` lists all\n"),
        ("berth version", 2, "", NEAREST.format("version", "--version")),
        ("berth -v", 2, "", NEAREST.format("-v", "--version")),
        ("berth --verison", 2, "", NEAREST.format("--verison", "--version")),
        ("berth help version", 2, "", NEAREST.format("version", "--version")),
        ("berth man", 2, "", NEAREST.format("man", "--man")),
        ("berth completion bash", 2, "", NEAREST.format("completion", "--completion")),
        ("berth test", 2, "", NEAREST.format("test", "verify")),
        ("cp demo.pt test; berth test demo.pt", 2, "", NEAREST.format("test", "verify")),
        ("berth list", 2, "", NEAREST.format("list", "ls")),
        ("berth cp demo.pt a.pt", 2, "", NEAREST.format("cp", "copy")),
        ("berth demo.pt", 2, "", r"berth: a command is missing: `berth info demo\.pt` shows .*\n"),
        ("cp demo.pt 'a b.pt'; berth 'a b.pt'", 2, "", r"berth: .*: `berth info 'a b\.pt'` shows .*\n"),
        ("berth http://me:secret@host/a.pt", 2, "", r"berth: a command is missing: `berth info` shows .*\n"),
        ("berth --verbose", 2, "", r"berth: unknown command '--verbose'; .*\n"),
    ],
    "ls": [
        ("berth ls", 2, "", MISSING["ls"]), ("berth help ls", 0, r"Usage: berth ls (.|\n)*", ""),
        ("berth ls demo.pt | head -1", 0, r"dtype +shape +size +offset +device +name\n", ""),
        ("berth ls demo.pt | grep -c weight", 0, "5\n", ""),
        ("berth ls demo.pt --json | grep -c '\"name\"'", 0, "9\n", ""),
        ("berth ls demo.pt --only '*.bias' | tail -1", 0, r"4 of 9 tensors, 4\.0 KiB\n", ""),
        ("berth ls nope.pt", 2, "", r"berth: nope\.pt: cannot be opened: No such file or directory\n"),
        ("berth ls bin", 2, "", r"berth: bin: the folder has no index, no model file \(.*\) and no \.metadata\n"),
        ("berth ls ftp://me:secret@host/a.pt", 2, "", r"berth: ftp://: of URLs, only .*\n"),
        ("berth ls text", 1, "", r"berth: text: .*\n"),
        ("berth ls demo.pt nope.pt | wc -l", 2, r"12\n", r"berth: nope.*\n"),
        ("berth ls -l demo.pt", 2, "", USAGE.format("ls", "invalid option -- 'l'", "ls", "ls")),
    ],
    "info": [
        ("berth info", 2, "", MISSING["info"]),
        ("berth info demo.pt | head -2", 0, r"container +zip\narchive +demo\n", ""),
        ("berth info demo.pt other.pt | grep -c ^container", 0, "2\n", ""),
        ("berth info nope.pt", 2, "", r"berth: nope\.pt: .*\n"),
    ],
    "map": [
        ("berth map", 2, "", MISSING["map"]), ("berth help map", 0, r"Usage: berth map (.|\n)*", ""),
        ("berth map demo.pt | head -1 | cut -d, -f2,4", 0, r" zip, 9 tensors\n", ""),
        ("berth map demo.pt -o - | grep -c '</svg>'", 0, "1\n", ""),
        ("berth map text", 1, "", r"berth: text: .*\n"),
        ("berth map nope.pt", 2, "", r"berth: nope\.pt: .*\n"),
        ("berth map 'a set.index.json'", 1, "",
         r"berth: .*: `berth convert 'a set\.index\.json' NEW\.pt` .*\n"),
    ],
    "show": [
        ("berth show", 2, "", MISSING["show"]), ("berth show demo.pt epoch", 0, "3\n", ""),
        ("berth show demo.pt | tail -1", 0, "  'learning_rate': 0.0001\n", ""),
        ("berth show demo.pt --json model | head -2", 0, '{\n  "layers.0.weight": {\n', ""),
        ("berth show demo.pt nothing", 1, "", r"berth: demo\.pt: no value named \"nothing\"\n"),
        ("berth show demo.pt epoch model", 2, "",
         USAGE.format("show", "too many arguments: at most 2", "show", "show")),
    ],
    "verify": [
        ("berth verify .", 2, "", r"berth: \.: the folder has \d files that may be the checkpoint \(.*\): name one\n"),
        ("berth verify", 2, "", MISSING["verify"]), ("berth verify demo.pt", 0, r"ok: 14 records, .*\n", ""),
        ("berth verify -q demo.pt", 0, "ok: .*\n", ""),
        ("berth verify demo.pt demo.pt", 0, "(demo.pt: ok: .*\n){2}", ""),
        ("berth verify bad.pt && echo never", 1, r"data/0 at byte (.|\n)*bad: 1 of 14 records\n", ""),
        ("berth verify bad.pt demo.pt | grep -c ok:", 1, "1\n", ""),
        ("berth verify text", 1, r"bad: text: .*\n", ""),
        ("berth verify nope.pt", 2, "", r"berth: nope\.pt: .*\n"),
        ("cat demo.pt | berth verify -", 0, "ok: .*\n", ""),
    ],
    "cat": [
        ("berth cat demo.pt", 2, "", MISSING["cat"]),
        ("berth cat demo.pt model.layers.0.bias | wc -c", 0, "1024\n", ""),
        ("berth cat demo.pt epoch", 2, "",
         r"berth: demo\.pt: \"epoch\" is not a strided tensor; its kind is int\n"),
        ("berth cat demo.pt model.layer.0.bias", 1, "", r"berth: .*; near: \"model\.layers\.0\.bias\"\n"),
        ("berth cat demo.pt model.head.weight | head -c 4 | wc -c", 141, "4\n", ""),
    ],
    "copy": [
        ("berth copy demo.pt", 2, "", MISSING["copy"]),
        ("berth copy demo.pt copy.pt && cmp demo.pt copy.pt", 0, "", ""),
        ("berth copy demo.pt demo.pt && berth verify demo.pt", 0, "ok: .*\n", ""),
        ("berth copy demo.pt .", 2, "", r"berth: \.: .*\n"),
        ("berth copy demo.pt no/copy.pt", 2, "", r"berth: no/copy\.pt: .*\n"),
        ("berth copy bad.pt copy2.pt; test -e copy2.pt", 1, "", r"berth: bad\.pt: data/0: its bytes do not have the CRC 0x.*: `berth verify bad\.pt` lists .*\n"),
        ("berth copy demo.pt - | cmp - demo.pt", 0, "", ""),
        ("mkdir dcp; touch dcp/.metadata; berth copy dcp x.pt", 1, "",
         r"berth: dcp: a checkpoint of torch.*: `berth convert dcp NEW\.pt` makes one of it\n"),
        ("berth copy a.index.json x.pt", 1, "", r"berth: .*: `berth convert a\.index\.json NEW\.pt` .*\n"),
    ],
    "convert": [
        ("berth convert demo.pt", 2, "", MISSING["convert"]),
        ("berth convert demo.pt m.safetensors", 2, "", r"berth: .*--tensors-only leaves it out\n"),
        ("berth convert demo.pt m.safetensors --root model && berth ls m.safetensors | tail -1", 0,
         "9 tensors, .*\n", ""),
        ("berth convert demo.pt out.zip", 2, "", r"berth: out\.zip: the name must end in .*\n"),
        ("berth convert demo.pt new.pt && berth diff demo.pt new.pt", 0, "equal\n", ""),
    ],
    "diff": [
        ("berth diff demo.pt", 2, "", MISSING["diff"]), ("berth diff demo.pt demo.pt", 0, "equal\n", ""),
        ("berth diff -q demo.pt demo.pt", 0, "", ""),
        ("berth diff demo.pt other.pt", 1, r"\['learning_rate'\]: only in: demo\.pt \| \ndifferent: only in: 1\n", ""),
        ("berth diff demo.pt nope.pt", 2, "", r"berth: nope\.pt: .*\n"),
    ],
    "clean": [
        ("berth clean", 2, "", MISSING["clean"]),
        ("berth clean .", 0, "0 temporaries, 0 bytes; 0 removed, 0 bytes\n", ""),
        ("berth clean nope", 2, "", r"berth: nope: .*\n"),
        ("berth clean $at/", 2, "", r"berth: http:.*/: this is not written to a URL\n"),
        ("berth clean -n .", 2, "", r"(.|\n)*invalid option -- 'n'(.|\n)*"),
    ],
    "config": [
        ("berth config | grep -c save.durability", 0, "1\n", ""),
        ("berth config save.durability | head -1", 0, r"save\.durability = full .*\n", ""),
        ("berth config save.durabilty", 2, "", r"berth: .*; the nearest is save\.durability\n"),
        ("berth config io.threads 4", 2, "", SETS_NOTHING),
        ("berth config io.threads=4", 2, "", SETS_NOTHING),
        ("berth config io.threads=4 8", 2, "", r"berth: too many arguments: 'io\.threads=4' has .*\n"),
        (f"berth config trace '{'a b/' * 20}'", 2, "", rf".*: add `--set 'trace={'a b/' * 20}'` to .*\n"),
        (f"berth config trace {'a' * 200}", 2, "", r".*: add `--set trace=VALUE` to a command, .*\n"),
        ("berth config io.treads 4", 2, "", r"berth: io\.treads: .*; the nearest is io\.threads\n"),
        ("berth config io.threads many", 2, "", r"berth: io\.threads = many: must be 0 to 1024.*\n"),
        ("eval \"$(berth config --export --set io.threads=4)\"; berth config --changed", 0,
         "io.threads=4\n", ""),
        ("berth config --set io.threads=4 | grep io.threads", 0, r"io\.threads +4 +--set\n", ""),
        ("BERTH_SAVE_DURABILITY=none berth config --changed | grep dura", 0, "save.durability=none\n", ""),
    ],
    "URLs": [  # $at: a server; $nobody: nobody listens there
        ("berth ls $at/demo.pt | head -1", 0, r"dtype +shape +size +offset +device +name\n", ""),
        ("berth ls $at/demo.pt demo.pt | grep -c weight", 0, "10\n", ""),
        ("berth ls --json $at/demo.pt | grep -c '\"name\"'", 0, "9\n", ""),
        ("berth ls $at/model.safetensors | tail -1", 0, r"9 tensors, .*\n", ""),
        ("berth info $at/demo.pt | head -2", 0, r"container +zip\narchive +demo\n", ""),
        ("berth show $at/demo.pt epoch", 0, "3\n", ""),
        ("berth map $at/demo.pt | head -1 | cut -d, -f2,4", 0, r" zip, 9 tensors\n", ""),
        ("berth verify $at/demo.pt", 0, r"ok: 14 records, .*\n", ""),
        ("berth verify $at/bad.pt && echo never", 1, r"data/0 at byte (.|\n)*bad: 1 of 14 records\n", ""),
        ("berth verify $at/demo.pt $at/bad.pt | grep -c ok:", 1, "1\n", ""),
        ("berth verify $at/text", 1, r"bad: http://.*/text: .*\n", ""),
        ("berth cat $at/demo.pt model.layers.0.bias | wc -c", 0, "1024\n", ""),
        ("berth copy $at/demo.pt here.pt && cmp demo.pt here.pt", 0, "", ""),
        ("berth copy $at/demo.pt - | cmp - demo.pt", 0, "", ""),
        ("berth copy $at/demo.pt", 2, "", MISSING["copy"]),  # as curl -O would; a name is needed
        ("berth convert $at/demo.pt new.safetensors --root model && berth ls new.safetensors | tail -1", 0,
         "9 tensors, .*\n", ""),
        ("berth diff $at/demo.pt demo.pt", 0, "equal\n", ""),
        ("berth copy demo.pt $at/new.pt", 2, "", r"berth: http://.*/new\.pt: of URLs, only those with s3:// are written\n"),
        ("berth convert demo.pt $at/new.pt", 2, "", r"berth: http://.*/new\.pt: of URLs, only those with s3:// are written\n"),
        ("berth map demo.pt -o http://me:secret@host/a.svg", 2, "", r"berth: http://host/a\.svg: this is not written to a URL\n"),
        ("berth ls $at/none.pt", 2, "", NOT_THERE), ("berth info $at/none.pt", 2, "", NOT_THERE),
        ("berth verify $at/none.pt", 2, "", NOT_THERE), ("berth cat $at/none.pt a", 2, "", NOT_THERE),
        ("berth show $at/none.pt", 2, "", NOT_THERE), ("berth ls $at/none.pt | wc -l", 2, "0\n", NOT_THERE),
        ("berth convert $at/none.pt no.pt; test -e no.pt", 1, "", NOT_THERE),
        ("berth copy $at/none.pt no.pt; test -e no.pt", 1, "", NOT_THERE),
        ("berth ls $at/none.pt demo.pt | wc -l", 2, r"12\n", NOT_THERE),
        ("berth ls $at", 2, "", r"berth: http://.*:\d+: there is no such object \(status 404\)\n"),
        ("berth ls $nobody/a.pt", 2, "", r"berth: http://127\.0\.0\.1:\d+/a\.pt: Failed to connect to .*\n"),
        ("berth copy $nobody/a.pt no.pt; test -e no.pt", 1, "", r"berth: .*/a\.pt: Failed to connect .*\n"),
        ("berth ls htps://host/a.pt", 2, "", SCHEME.format("htps")),
        ("berth verify gs://bucket/a.pt", 2, "", SCHEME.format("gs")),
        ("berth copy file:///tmp/a.pt a.pt", 2, "", SCHEME.format("file")),
        ("berth ls s3://bucket", 2, "", r"berth: an address of S3 is s3://BUCKET/KEY\n"),
        ("berth ls host/a.pt", 2, "", r"berth: host/a\.pt: cannot be opened: No such file or directory\n"),
        ("berth ls --config http://me:secret@host/a.conf demo.pt", 2, "",
         USAGE.format("ls", r"http://host/a\.conf: No such .*", "ls", "ls")),
    ],
    "bench": [
        ("berth bench", 2, "", r"Usage: berth bench (.|\n)*"),
        ("berth bench load http://host/a.pt", 2, "",
         r"berth: .*: berth bench needs a file: `berth copy` .*\n"),
        ("berth bench save now now", 2, "", r"(.|\n)*too many arguments(.|\n)*"),
        ("berth bench load demo.pt | grep -c ' open  '", 0, r"1\n", ""),
    ],
    "demo": [
        ("berth demo | grep -c ^saved", 0, r"1\n", ""),
        ("berth demo && berth demo | head -1", 0, r"saved (.|\n)*", ""),
        ("berth demo $at/demo.pt", 2, "", r"berth: http:.*/demo\.pt: this is not written to a URL\n"),
        ("berth demo text; cat text", 0, "my thesis",
         r"berth: text exists, and `berth demo` did not make it: .*\n"),
    ],
}


class Transcripts(Case):
    def setUp(self):
        super().setUp()
        bad = bytearray(self.read("demo.pt"))
        bad[100000] ^= 1
        os.mkdir(self.path("bin"))
        os.symlink(BERTH, self.path("bin/berth"))
        self.write("bad.pt", bad)
        self.write("text", b"my thesis")
        self.berth("convert", self.demo, "other.pt", "--without", "learning_rate")
        self.berth("convert", self.demo, "model.safetensors", "--root", "model")
        names = "demo.pt", "bad.pt", "text", "model.safetensors"
        server = Server({name: self.read(name) for name in names})
        self.at = self.enterContext(server).url
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            self.nobody = f"http://127.0.0.1:{nobody.getsockname()[1]}"

    def test_every_line(self):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("BERTH_")}
        environment.update(PATH=f"{self.path('bin')}:{environment['PATH']}", at=self.at, nobody=self.nobody)
        for name, lines in TRANSCRIPTS.items():
            for line, code, out, err in lines:
                with self.subTest(command=name, line=line):
                    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=self.folder,
                                          env=environment, capture_output=True, text=True,
                                          stdin=subprocess.DEVNULL, timeout=600, check=False)
                    self.assertRegex(done.stdout, rf"\A{out}\Z")
                    self.assertRegex(done.stderr, rf"\A{err}\Z")
                    self.assertEqual(done.returncode, code)
