#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A Python that has imported PyTorch already: importing it takes seconds, and tests start many processes that do.

start() starts a server, a process of BERTH_PYTHON, and puts a small program in the place of BERTH_PYTHON. That one
sends its words, folder, environment and descriptors 0 to 2 to the server, which forks: the fork runs the program as
its own process would. Signals are passed on, and how it ended. What the server is not for (other options of
Python's, a library to be loaded before) is run by the real Python.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types

IMPORTED = ("torch", "numpy", "torch.distributed.checkpoint")
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MAX_REQUEST = 1 << 20


def start():
    """The server ends with this process and those that it forks."""
    real = os.environ.get("BERTH_PYTHON")
    if not real:
        return
    folder = tempfile.mkdtemp(prefix="berth-served-")
    program, address = os.path.join(folder, "python"), os.path.join(folder, "socket")
    with open(program, "w", encoding="utf-8") as file:
        here = os.path.dirname(os.path.abspath(__file__))
        file.write(f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {here!r})\n"
                   f"import served\nserved.ask({real!r}, {address!r}, sys.argv[1:])\n")
    os.chmod(program, 0o755)
    server = subprocess.Popen([real, os.path.abspath(__file__), folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    server.stdout.read(1)  # it listens
    start.server = server  # its standard input stays open
    os.environ["BERTH_PYTHON"] = program


# ---- the small program ----

def ask(real, address, words):
    """Ends as the program ends that the server runs."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    is_known = words and (words[0] == "-c" or not words[0].startswith("-"))
    try:
        if not is_known or "LD_PRELOAD" in os.environ:
            raise OSError("it is the real one's")
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        umask = os.umask(0)
        os.umask(umask)
        ignored = [each for each in PASSED_ON if signal.getsignal(each) == signal.SIG_IGN]
        request = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ), "umask": umask,
                   "ignored": ignored}
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    except OSError:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        os.execv(real, [real, *words])
    pid = int(connection.recv(64))

    def pass_on(number, _frame):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    for each in set(PASSED_ON) - set(ignored):
        signal.signal(each, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    code = int(connection.recv(64))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        signal.raise_signal(-code)
    sys.exit(code)


# ---- the server ----

def serve(folder):
    """Returns only in a fork, with what it has to run; the server ends when its standard input does."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(os.path.join(folder, "socket"))
    listening.listen(64)
    os.close(1)  # start() goes on; who asks now waits for the imports
    os.open(os.devnull, os.O_WRONLY)
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # or each fork would look at all that was imported, and so copy it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while 0 not in select.select([listening, 0], [], [])[0]:
        connection, _ = listening.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            return keep(connection)
        connection.close()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def keep(connection):
    """Forks once more: the other one returns, this one tells how it ended."""
    data, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST, 3)
    pid = os.fork()
    if pid == 0:
        connection.send(str(os.getpid()).encode())
        connection.close()
        return json.loads(data), descriptors
    for each in descriptors:
        os.close(each)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        connection.send(str(code).encode())
    os._exit(0)


def become(request, descriptors, folder):
    """This process gets what its caller has; sys as in a new one."""
    for number, each in enumerate(descriptors):
        os.dup2(each, number)
        os.close(each)
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for each in request["ignored"]:
        signal.signal(each, signal.SIG_IGN)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.executable = os.path.join(folder, "python")
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.path[:1] = [each for each in os.environ.get("PYTHONPATH", "").split(":") if each]


def run(words):
    if words[0] == "-c":
        sys.argv, main = ["-c", *words[2:]], types.ModuleType("__main__")
        sys.path.insert(0, "")
        sys.modules["__main__"] = main
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        runpy.run_path(words[0], run_name="__main__")


def end_of(words):
    """The exit code, or minus a signal. What is registered for the end runs; PyTorch's modules are not taken apart,
    which takes as long as importing them."""
    code = 0
    try:
        run(words)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException as error:
        traceback.print_exc()
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    asked, received = serve(sys.argv[1])
    become(asked, received, sys.argv[1])
    ended = end_of(asked["words"])
    if ended < 0:
        signal.signal(-ended, signal.SIG_DFL)
        signal.raise_signal(-ended)
    os._exit(ended & 0xff)
