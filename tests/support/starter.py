#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Starts Pythons that have imported PyTorch already: importing it takes seconds, and tests start many that do.

start() starts a server, a process of BERTH_PYTHON that forks for each child that is wanted, and puts a small program
in the place of BERTH_PYTHON. A test asks by run() and Child; who runs BERTH_PYTHON asks by the small program, which
passes signals on, and ends as the child ends. A child has the environment, folder, umask and descriptors 0 to 2 of
who asks. Nobody waits for it any more, or its time is over: it says where it is, and is ended.
"""

import atexit
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import resource
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

SECONDS = 900 if os.environ.get("BERTH_LONG", "0") not in ("", "0") else 300  # ends what hangs, not what is slow
IMPORTED = ("torch", "numpy", "torch.distributed.checkpoint")
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MAX_REQUEST = 1 << 20


def start(modules=IMPORTED):
    """The server, which imports these modules where they are, ends with this process and those that it forks."""
    real = os.environ.get("BERTH_PYTHON")
    if not real or os.path.exists(address_of(real)):
        return
    folder = tempfile.mkdtemp(prefix="berth-starter-")
    program, preload = os.path.join(folder, "python"), os.environ.get("LD_PRELOAD")
    with open(program, "w", encoding="utf-8") as file:
        here = os.path.dirname(os.path.abspath(__file__))
        file.write(f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {here!r})\nimport starter\n"
                   f"starter.ask({real!r}, {program!r}, {preload!r}, sys.argv[1:])\n")
    os.chmod(program, 0o755)
    server = subprocess.Popen([real, os.path.abspath(__file__), program, *modules], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    server.stdout.read(1)  # it listens
    start.server = server  # its standard input stays open
    os.environ["BERTH_PYTHON"] = program


def address_of(program):
    return os.path.join(os.path.dirname(program), "socket")


class Connection:
    """To the process that keeps a child, which runs words of a command line of Python's."""

    def __init__(self, program, words, files, **more):
        umask = os.umask(0)
        os.umask(umask)
        request = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ), "umask": umask,
                   "ignored": [each for each in PASSED_ON if signal.getsignal(each) == signal.SIG_IGN], **more}
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(address_of(program))
        socket.send_fds(self.socket, [json.dumps(request).encode()], files)
        self.pid = int(self.socket.recv(64))

    def wait(self):
        """The exit code, or minus a signal."""
        with self.socket:
            return int(self.socket.recv(64))


class Child:
    """One that runs this code, for no longer than this. whole_end: it ends as an interpreter does."""

    def __init__(self, code, *arguments, seconds=SECONDS, whole_end=False):
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        with open(os.devnull, "rb") as none:
            self._connection = Connection(os.environ["BERTH_PYTHON"], ["-c", code, *arguments],
                                          [none.fileno(), self._out.fileno(), self._err.fileno()], seconds=seconds,
                                          whole_end=whole_end)
        self.pid = self._connection.pid

    def printed(self):
        """By now."""
        return os.pread(self._out.fileno(), 1 << 20, 0).decode()

    def wait(self):
        """(exit code, stdout, stderr)"""
        code, texts = self._connection.wait(), []
        for file in (self._out, self._err):
            with file:
                file.seek(0)
                texts.append(file.read().decode())
        return (code, *texts)


def run(code, *arguments, **more):
    """(exit code, stdout, stderr) of a process that runs this code."""
    return Child(code, *arguments, **more).wait()


# ---- the small program ----

def ask(real, program, preload, words):
    """Ends as the child ends. What the server is not for (other options of Python's, a library to be loaded before)
    is run by the real Python."""
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    try:
        if not words or (words[0] != "-c" and words[0].startswith("-")) or os.environ.get("LD_PRELOAD") != preload:
            raise OSError("it is the real one's")
        child = Connection(program, words, [0, 1, 2], seconds=None, whole_end=False)
    except OSError:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        os.execv(real, [real, *words])

    def pass_on(number, _frame):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)

    for each in PASSED_ON:
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    end_with(child.wait())


def end_with(code):
    """At once, as a process ended that has this exit code, or minus a signal."""
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no other way
            signal.signal(-code, signal.SIG_DFL)
        signal.raise_signal(-code)
    os._exit(code & 0xff)


# ---- the server ----

def serve(program, modules):
    """Returns only in a child, with what it has to run; the server ends when its standard input does."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address_of(program))
    listening.listen(64)
    os.close(1)  # start() goes on; who asks now waits for the imports
    os.open(os.devnull, os.O_WRONLY)
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # or each fork would look at all that was imported, and so copy it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while 0 not in select.select([listening, 0], [], [])[0]:
        connection, _ = listening.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            return keep(connection)
        connection.close()
    shutil.rmtree(os.path.dirname(program), ignore_errors=True)
    os._exit(0)


def keep(connection):
    """Forks once more: the child returns, this one tells how it ended."""
    data, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST, 3)
    request = json.loads(data)
    pid = os.fork()
    if pid == 0:
        connection.close()
        return request, descriptors
    for each in descriptors:
        os.close(each)
    tell(connection, pid)
    ends = os.pidfd_open(pid)
    if ends not in select.select([ends, connection], [], [], request["seconds"])[0]:
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        os.kill(pid, signal.SIGQUIT)
        select.select([ends], [], [], 10)
        signal.pidfd_send_signal(ends, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    tell(connection, code)
    os._exit(0)


def tell(connection, number):
    with contextlib.suppress(OSError):  # nobody waits for it any more
        connection.send(b"%d" % number)


def become(request, descriptors, program):
    """This process gets what its caller has; sys as in a new one."""
    for number, each in enumerate(descriptors):
        os.dup2(each, number)
        os.close(each)
    os.chdir(request["folder"])
    os.umask(request["umask"])
    sys.path[:1 + len(python_path())] = []
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = python_path()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for each in request["ignored"]:
        signal.signal(each, signal.SIG_IGN)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    faulthandler.register(signal.SIGQUIT, chain=True)
    sys.executable = program
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))


def python_path():
    return [each for each in os.environ.get("PYTHONPATH", "").split(":") if each]


def run_words(words):
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
        run_words(words)
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
    asked, received = serve(sys.argv[1], sys.argv[2:])
    become(asked, received, sys.argv[1])
    if asked["whole_end"]:
        run_words(asked["words"])
    else:
        end_with(end_of(asked["words"]))
