# SPDX-License-Identifier: BSD-3-Clause
"""The man page and the completions, which are made from the same table as --help; in real shells."""

import os
import re
import select
import shutil
import subprocess
import time

from case import BERTH, Case

COMMANDS = ("ls", "info", "map", "show", "verify", "cat", "copy", "convert", "diff", "clean", "config", "bench save",
            "bench load", "bench rows", "demo")
OPTION = re.compile(r"^ +(?:-(\w), |    )--([\w-]+)(?:=(\S+))?", re.MULTILINE)


def needs(case, program):
    """The program, which is only missing where it was not installed."""
    if not shutil.which(program):
        case.assertNotEqual(os.environ.get("CI"), "true", f"there is no {program}")
        case.skipTest(f"there is no {program}")


class Manual(Case):
    def setUp(self):
        super().setUp()
        self.help = {name: self.berth(*name.split(), "--help").out for name in COMMANDS}
        self.options = {name: set(OPTION.findall(told)) for name, told in self.help.items()}

    def test_the_table_is_whole(self):
        listed = re.findall(r"^  (\S+(?: \S+)?)  ", self.berth("--help").out, re.MULTILINE)
        self.assertEqual(tuple(listed), COMMANDS)
        for name, options in self.options.items():
            self.assertGreaterEqual({each[1] for each in options}, {"help", "set", "json", "color"}, name)

    def test_the_man_page_says_what_help_says(self):
        page = self.berth("--man").out
        plain = re.sub(r"\\(&|f[BIR])", "", page).replace("\\-", "-").replace("\\e", "\\")
        sections = {name: text for name, text in re.findall(
            r'^\.SS "berth (\w+(?: (?:save|load|rows))?) \[OPTION[^\n]*\n(.*?)(?=^\.S[SH] )', plain,
            re.MULTILINE | re.DOTALL)}
        self.assertEqual(tuple(sections), COMMANDS)
        common = plain[plain.index('.SH "OPTIONS OF ALL'):plain.index(".SH CONFIGURATION")]
        pattern = re.compile(r"^\.TP\n(?:-(\w), )?--([\w-]+)(?:=(\S+))?\n", re.MULTILINE)
        for name, text in sections.items():
            self.assertEqual(set(pattern.findall(text + common)), self.options[name], name)
            about = " ".join(text.split(".TP")[0].split())
            self.assertIn(about, " ".join(self.help[name].split()), name)
        for line in self.berth("config").out.splitlines():
            self.assertIn(f".TP\n{line.split()[0]} = ", plain)

    def test_the_man_page_is_good_roff(self):
        needs(self, "groff")
        done = subprocess.run(["groff", "-man", "-ww", "-Tutf8"], input=self.berth("--man").stdout,
                              capture_output=True, check=True)
        self.assertEqual(done.stderr, b"")
        self.assertGreater(len(done.stdout.splitlines()), 200)

    def test_completions_have_every_option(self):
        bash, zsh, fish = (self.berth("--completion", shell).out for shell in ("bash", "zsh", "fish"))
        for name, options in self.options.items():
            row = re.search(rf"^    '{name}'\) options='(.*)' ;;$", bash, re.MULTILINE)[1].split()
            wanted = [f"--{option}{'=' * bool(value)}" for _, option, value in options]
            self.assertEqual(sorted(row), sorted(wanted), name)
            part = re.search(rf"^    '{name}'\)\n(.*?);;$", zsh, re.MULTILINE | re.DOTALL)[1]
            self.assertEqual(set(re.findall(r"--([\w-]+)=?['}]", part)), {each[1] for each in options}, name)
            words = name.split()
            condition = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in words)
            rows = re.findall(rf"^complete -c berth -n '{condition}'(?: -s (\w))? -l (\S+)", fish,
                              re.MULTILINE)
            self.assertEqual(set(rows), {each[:2] for each in options}, name)
        self.refused("--completion", "csh", says="'csh' is not bash, zsh or fish")
        self.refused("--completion", says="bash, zsh or fish")


class Shells(Case):
    def setUp(self):
        super().setUp()
        os.symlink(BERTH, self.path("berth"))
        path = f"{self.folder}:{os.environ['PATH']}"
        self.environment = dict(os.environ, PATH=path, TERM="dumb", PS1="> ")

    def drain(self, master, seconds=0.2):
        seen = b""
        while select.select([master], [], [], seconds)[0]:
            seen += os.read(master, 65536)
        return seen.decode().replace("\a", "")

    def start(self, *words, setup):
        """A shell on a terminal that has read the completions."""
        pid, master = os.forkpty()
        if pid == 0:
            try:
                os.chdir(self.folder)
                os.execvpe(words[0], words, self.environment)
            finally:
                os._exit(77)
        os.write(master, f"{setup}; echo rea''dy\n".encode())
        seen, until = b"", time.monotonic() + 60
        while b"ready\r\n" not in seen and time.monotonic() < until:
            seen += os.read(master, 65536)
        self.drain(master)
        return pid, master

    def completed(self, master, typed, until):
        """What the shell shows after the words and a tab."""
        os.write(master, typed.encode() + b"\t")
        seen, end = "", time.monotonic() + 30
        while until not in seen and time.monotonic() < end:
            seen += self.drain(master, 0.05)
        os.write(master, b"\x15")  # the line is gone
        self.drain(master, 0.05)
        return seen

    def test_bash(self):
        needs(self, "bash")
        self.write("completion", self.berth("--completion", "bash").stdout)
        pid, master = self.start("bash", "--norc", "--noprofile", "-i",
                                 setup="bind 'set enable-bracketed-paste off'; source ./completion")
        for typed, whole in (("berth ver", "berth verify "), ("berth bench lo", "berth bench load "),
                             ("berth help conv", "berth help convert "),
                             ("berth convert --tens", "berth convert --tensors-only "),
                             ("berth verify de", "berth verify demo.pt "),
                             ("berth copy --onl", "berth copy --only="),
                             ("berth ls --color=nev", "berth ls --color=never "),
                             ("berth ls --set load.inf", "berth ls --set load.inflate="),
                             ("berth config save.dur", "berth config save.durability ")):
            self.assertEqual(self.completed(master, typed, whole), whole)
        os.close(master)
        os.waitpid(pid, 0)

    def test_zsh(self):
        needs(self, "zsh")
        self.write("_berth", self.berth("--completion", "zsh").stdout)
        pid, master = self.start("zsh", "-f", "-i",
                                 setup="fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -d ./dump")
        for typed, rest in (("berth ver", "verify"), ("berth bench lo", "load"),
                            ("berth convert --tens", "tensors-only"), ("berth verify de", "demo.pt"),
                            ("berth ls --set load.inf", "load.inflate="),
                            ("berth config save.dur", "save.durability")):
            self.assertIn(rest, self.completed(master, typed, rest))
        os.close(master)
        os.waitpid(pid, 0)

    def test_fish(self):
        needs(self, "fish")
        self.write("completion", self.berth("--completion", "fish").stdout)

        def complete(typed):
            script = f"source ./completion; complete -C '{typed}'"
            done = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True, text=True,
                                  cwd=self.folder, env=dict(self.environment, HOME=self.folder), check=True)
            self.assertEqual(done.stderr, "")
            return [line.split("\t")[0] for line in done.stdout.splitlines()]

        self.assertEqual(complete("berth ver"), ["verify"])
        self.assertEqual(complete("berth bench lo"), ["load"])
        self.assertEqual(complete("berth convert --tens"), ["--tensors-only"])
        self.assertEqual(complete("berth verify dem"), ["demo.pt"])
        self.assertEqual(complete("berth ls --color nev"), ["never"])
        self.assertIn("save.durability", complete("berth config save.dur"))
