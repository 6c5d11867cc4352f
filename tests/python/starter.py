# SPDX-License-Identifier: BSD-3-Clause
"""Many short processes for the price of one: it imports PyTorch, and forks for each piece of code.

Each line of stdin is JSON: [code, [argument...], stdout, stderr]. The child runs the code as a
script does, and ends as an interpreter does. The exit code is written to stdout.
"""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

SECONDS = 900 if os.environ.get("BERTH_LONG", "0") not in ("", "0") else 60  # then it is killed


class Starter:
    """The process, from a test's side."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def run(self, code, *arguments):
        """(exit code, stdout, stderr) of a process that runs this code."""
        with tempfile.TemporaryDirectory(prefix="berth-starter-") as folder:
            paths = [os.path.join(folder, name) for name in ("out", "err")]
            self.process.stdin.write(json.dumps([code, arguments, *paths]) + "\n")
            self.process.stdin.flush()
            status = int(self.process.stdout.readline())
            texts = []
            for path in paths:
                with open(path, encoding="utf-8") as file:
                    texts.append(file.read())
            return (status, *texts)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def redirect(path, fd):
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(file, fd)
    os.close(file)


def kill(_signal, _frame):
    """Of a child that takes too long; first it writes to its stderr where its threads are."""
    os.kill(_pid, signal.SIGQUIT)
    time.sleep(1)
    os.kill(_pid, signal.SIGKILL)


if __name__ == "__main__":
    import berth  # noqa: F401
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, kill)  # the starter's own: the code may use the child's
    while _line := sys.stdin.readline():
        _code, _arguments, _out, _err = json.loads(_line)
        _pid = os.fork()
        if _pid == 0:
            redirect(_out, 1)
            redirect(_err, 2)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.register(signal.SIGQUIT)
            sys.argv[1:] = _arguments
            exec(compile(_code, "<code>", "exec"))
            break
        signal.alarm(SECONDS)
        _status = os.waitpid(_pid, 0)[1]
        signal.alarm(0)
        print(os.waitstatus_to_exitcode(_status), flush=True)
