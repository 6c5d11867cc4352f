#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs the commands of a section of docs/first-ten-minutes.md, and compares what they print with the page.

usage: page.py SECTION COMMAND...     the shell's script is COMMAND's last argument: page.py source bash -c

On the page "..." is any number of lines, and a number any number; /home/you/berth for the checkout.
"""
import re
import subprocess
import sys

PAGE = "docs/first-ten-minutes.md"
MARK = "\x1e"  # after each command, before its exit code


def commands(section):
    """(command, what the page shows below it) of each command of a section."""
    with open(PAGE, encoding="utf-8") as page:
        text = re.split(r"^## ", page.read(), flags=re.M)
    body = next(part for part in text if part.startswith(section + "\n"))
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", body, flags=re.M | re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append([line[2:], ""])
            elif line.startswith("> "):  # of a command of several lines
                found[-1][0] += "\n" + line[2:]
            elif line == ">":
                found[-1][0] += "\n"
            else:
                found[-1][1] += line + "\n"
    return found


def pattern(shown):
    """A regular expression of what the page shows."""
    def of_line(line):
        if line == "...":
            return r"(?:.*\n)*?"
        words = re.escape(line).replace(re.escape("/home/you/berth"), r"\S*")
        words = re.sub(r"(\\ )+", " +", words)
        return re.sub(r"(?<![A-Za-z_])\d+(\\\.\d+)*", r"\\d+(?:\\.\\d+)*", words) + r"\n"
    return "".join(of_line(line) for line in shown.splitlines())


def main():
    wanted = commands(sys.argv[1])
    script = "".join(f"{command}\nprintf '{MARK}%s\\n' $?\n" for command, _ in wanted)
    result = subprocess.run(sys.argv[2:] + [script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, check=False)
    printed = result.stdout.decode(errors="replace")
    print(printed.replace(MARK, "exit code "))
    answers = re.findall(f"(.*?){MARK}(\\d+)\n", printed, flags=re.S)
    wrong = [f"$ {command}\n-- the page:\n{shown}-- printed, exit code {code}:\n{text}"
             for (command, shown), (text, code) in zip(wanted, answers)
             if code != "0" or not re.fullmatch(pattern(shown), text)]
    print("\n".join(wrong))
    print(f"{sys.argv[1]}: {len(answers)} of {len(wanted)} commands ran, {len(wrong)} are not as on the page")
    sys.exit(not wanted or len(answers) != len(wanted) or bool(wrong))


main()
