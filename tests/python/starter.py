# SPDX-License-Identifier: BSD-3-Clause
"""Many processes for the price of one: it imports PyTorch once, and forks for each piece of code.

It is asked by messages: JSON [code, [argument...], seconds], and three descriptors: for what the starter says, for
the child's stdout and its stderr. The child runs the code as a script does, and ends as an interpreter does. The
starter says its process id, then its exit code.
"""

import atexit
import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types

SECONDS = 900 if os.environ.get("BERTH_LONG", "0") not in ("", "0") else 60  # then it is killed
_requests = None  # to the one starter of this process and of those that it forks


def begin():
    """Starts the starter. PyTorch it imports when it is asked for the first time."""
    global _requests
    _requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], stdin=subprocess.DEVNULL,
                               pass_fds=[theirs.fileno()])
    theirs.close()
    atexit.register(end, process, os.getpid())


def end(process, owner):
    if os.getpid() == owner:
        process.terminate()
        process.wait()


class Process:
    """One that runs this code. It is killed when its time is over; its stderr then tells where it was."""

    def __init__(self, code, *arguments, seconds=SECONDS):
        if _requests is None:
            begin()
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        mine, theirs = socket.socketpair()
        with mine, theirs:
            socket.send_fds(_requests, [json.dumps([code, arguments, seconds]).encode()],
                            [theirs.fileno(), self._out.fileno(), self._err.fileno()])
            self._says = mine.makefile()
        self.pid = int(self._says.readline())

    def printed(self):
        """By now."""
        return os.pread(self._out.fileno(), 1 << 20, 0).decode()

    def wait(self):
        """(exit code, stdout, stderr)"""
        with self._says, self._out, self._err:
            status, texts = int(self._says.readline()), []
            for file in (self._out, self._err):
                file.seek(0)
                texts.append(file.read().decode())
        return (status, *texts)


def run(code, *arguments, seconds=SECONDS):
    """(exit code, stdout, stderr) of a process that runs this code."""
    return Process(code, *arguments, seconds=seconds).wait()


# ---- the starter ----


def kill(_signal, _frame):
    """Of a child that takes too long; first it writes to its stderr where its threads are."""
    os.kill(_child, signal.SIGQUIT)
    time.sleep(1)
    os.kill(_child, signal.SIGKILL)


def requests(fd):
    """(code, arguments) in each child; the starter does not return from here."""
    global _child
    with socket.socket(fileno=fd) as asked:
        while True:
            message, fds, _, _ = socket.recv_fds(asked, 1 << 20, 3, socket.MSG_CMSG_CLOEXEC)
            if not message:
                os._exit(0)
            import berth  # noqa: F401
            import torch
            import torch._dynamo  # noqa: F401: optimizers and DTensor import it at their first use, for 2 s

            torch.set_num_threads(1)
            if os.fork() == 0:
                break
            for each in fds:
                os.close(each)
    code, arguments, seconds = json.loads(message)
    says, out, err = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _child = os.fork()
    if _child:
        signal.signal(signal.SIGALRM, kill)
        signal.alarm(seconds)
        os.write(says, b"%d\n" % _child)
        os.write(says, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(_child, 0)[1]))
        os._exit(0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for each in fds:
        os.close(each)
    faulthandler.register(signal.SIGQUIT)
    return code, arguments


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _code, _arguments = requests(int(sys.argv[1]))
    sys.argv[1:] = _arguments
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(_code, "<code>", "exec"), sys.modules["__main__"].__dict__)
