# SPDX-License-Identifier: BSD-3-Clause
"""Exceptions. The library's messages are passed on as they are."""

import _compat_pickle
import concurrent.futures
import contextlib
import os
import pickle
import re
import sys

from berth import _native, _steps

NO_OFFSET = 2**64 - 1


class Error(RuntimeError):
    """An operation failed. The message names the file, the record and the byte where they are known.

    status: the library's name of the reason, for example "BERTH_E_CHECKSUM"
    offset: byte in the file; None: the error concerns no byte
    record: name of the record, or ""
    errno:  of the system call that failed, or 0
    """

    status = ""
    offset = None
    record = ""
    errno = 0


class ArgumentError(Error, ValueError):
    """An argument or an option is invalid."""


class FileError(Error, OSError):
    """The system refuses to read or write: `errno` says why. Also for a full disk."""


class MissingFileError(Error, FileNotFoundError):
    """There is no such file."""


class OutOfMemoryError(Error, MemoryError):
    """There is not enough memory."""


class UnsafeFileError(Error, pickle.UnpicklingError):
    """The file's pickle is malformed, or names code that is no part of tensors. Nothing was run."""


class DamagedFileError(Error):
    """The file is cut, changed or malformed: `record` and `offset` say where."""


class MalformedPickleError(DamagedFileError, UnsafeFileError):
    """Both: who catches one of them, or pickle.UnpicklingError, as PyTorch's users do, catches this."""


class CancelledError(Error, concurrent.futures.CancelledError):
    """The save was cancelled: Job.cancel() returned True. A path has its old file."""


class Declined(TypeError):
    """A value that has no plain form: Berth saves plain Python types and tensors.

    path:   where it is in the value that was saved, "['model'][0]"; "": the value itself
    reason: why it is not saved
    """

    path = ""
    reason = ""


CLASSES = {
    "BERTH_E_ARGUMENT": ArgumentError,
    "BERTH_E_OPTION": ArgumentError,
    "BERTH_E_MEMORY": OutOfMemoryError,
    "BERTH_E_SYSTEM": FileError,
    "BERTH_E_NO_SPACE": FileError,
    "BERTH_E_REPLACE": FileError,
    "BERTH_E_NOT_FOUND": MissingFileError,
    "BERTH_E_PICKLE": MalformedPickleError,
    **dict.fromkeys(("BERTH_E_ARCHIVE", "BERTH_E_CHECKSUM", "BERTH_E_OFFSETS", "BERTH_E_TENSOR",
                     "BERTH_E_TRUNCATED"), DamagedFileError),
    "BERTH_E_FORBIDDEN": UnsafeFileError,
    "BERTH_E_CANCELLED": CancelledError,
}


# What Berth says of a global in front of the list of all of them.
FIRST_GLOBAL = re.compile(r"; it names the global [^;]*, which Berth never calls\Z")
# Modules whose functions run programs or code, reach the network or change files, by the names of Python 3: nobody is
# told to allow what they have, nor what is in modules below them.
RUNNERS = frozenset("""
    _ctypes _io _pickle _posixsubprocess _socket _thread aiohttp antigravity asyncio bdb cProfile cloudpickle code codeop
    concurrent ctypes dill distutils doctest ensurepip fileinput ftplib gc http idlelib imp importlib io joblib
    lib2to3 marshal multiprocessing nt numpy.distutils numpy.f2py numpy.testing os pdb pickle pickletools pip
    pkgutil posix profile pty pydoc requests rlcompleter runpy setuptools shelve shutil signal smtplib socket
    socketserver ssl subprocess sys threading timeit tkinter torch.hub torch.utils.bottleneck
    torch.utils.collect_env torch.utils.cpp_extension trace turtle unittest urllib venv webbrowser xmlrpc zipapp zipimport
    """.split())
# And of modules that have classes of checkpoints, too.
RUNNING_NAMES = {
    "builtins": frozenset("""__build_class__ __import__ apply breakpoint compile delattr eval exec execfile exit file
                          filter getattr globals help input locals map open quit raw_input reload setattr vars""".split()),
    "codecs": frozenset(("open", )),
    "functools": frozenset(("reduce", )),
    "operator": frozenset(("attrgetter", "call", "methodcaller")),
    "torch": frozenset(("load", )),
    "torch.serialization": frozenset(("load", "_load", "_legacy_load")),
    "types": frozenset(("CodeType", "FunctionType", "MethodType")),
}


# pickle writes the names of Python 2 in protocols below 3. PyTorch knows what these were, and no others.
OLD_MODULES = frozenset(("__builtin__", "copy_reg", "Queue", "repr", "_abcoll", "UserDict", "UserList", "UserString",
                         "whichdb", "StringIO", "cStringIO"))
MODULES_OF_OLD_NAMES = frozenset(("__builtin__", "itertools", "UserDict", "UserList", "UserString"))
OLD_ERROR = ("exceptions", "StandardError")


def of_torch(module, name):
    """The names that PyTorch looks up in its list of what is allowed."""
    if module in MODULES_OF_OLD_NAMES or (module, name) == OLD_ERROR:
        found = _compat_pickle.NAME_MAPPING.get((module, name))
        if found:
            return found
    return (_compat_pickle.IMPORT_MAPPING[module] if module in OLD_MODULES else module), name


def _of_python_3(module, name):
    """The names that a program writes."""
    if (module, name) in _compat_pickle.NAME_MAPPING:
        return _compat_pickle.NAME_MAPPING[module, name]
    return _compat_pickle.IMPORT_MAPPING.get(module, module), name


def _runs(module, name):
    """Whether it can run programs or code."""
    module, name = _of_python_3(module, name)
    steps = module.split(".")
    return (any(".".join(steps[:n]) in RUNNERS for n in range(1, len(steps) + 1))
            or name.split(".")[0] in RUNNING_NAMES.get(module, ()))


# The classes of dtypes, which no pickle names, but PyTorch asks for.
NUMPY_DTYPES = '*map(type, map(numpy.dtype, numpy.typecodes["All"]))'


# Modules that PyTorch removes from their package; their classes are in that.
HIDDEN = re.compile(r"torch\.optim\.(?!lr_scheduler|swa_utils)[a-z_]+\Z")


def _expressions(refused):
    """As a program in Python 3 writes them, for a list of what it allows.

    An object that does not say itself by which name PyTorch meets it gets that: of NumPy 1, where NumPy 2 has the same
    object by another name; of Python 2; and what has no name.
    """
    for module, name in refused:
        path = f"{module}.{name}"
        module, name = _of_python_3(module, name)
        if module in ("builtins", "__main__"):
            word = name
        else:
            word = f"{'torch.optim' if HIDDEN.match(module) else module}.{name}"
        says = f"{module}.{name}" == path and path not in ("builtins.Ellipsis", "builtins.NotImplemented")
        yield word if says and not path.startswith("numpy.core.") else f'({word}, "{path}")'
        if path == "numpy.dtype":
            yield NUMPY_DTYPES


def step_of(refused):
    """The step that allows them; "": one of them is no name that can be written."""
    if all(part.isidentifier() and part.isascii() for row in refused for part in ".".join(row).split(".")):
        return f"{OF_LIST}torch.serialization.add_safe_globals([{', '.join(_expressions(refused))}])"
    return ""


def shown(text):
    """A text of a file, or a file's name, as all messages show it: it moves, hides and turns nothing (F7)."""
    is_name = not any("\ud800" <= c <= "\udfff" and not "\udc80" <= c <= "\udcff" for c in text)
    return _native.show_text(text.encode("utf-8", "surrogateescape" if is_name else "backslashreplace"))


OF_LIST, OF_FILE = ". If you trust them: ", _steps.TRUSTED  # the two steps
FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def is_set(variable):
    return os.getenv(variable, "0").lower() in ("1", "y", "yes", "true")


def load_trusted():
    """The last step, if nobody forbids it."""
    return "" if is_set(FORCED) else f"{OF_FILE}berth.load(f, weights_only=False){_steps.RUNS}"


def of_load_alone(message, who):
    """A refusal of a function that obeys no list of allowed classes: the step is one for berth.load."""
    steps, mark, last = message.rpartition(OF_FILE)
    if not mark:
        steps, last = message, ""
    if OF_LIST not in steps:
        return message
    return f"{steps}, then berth.load(f): {who} obeys no list of allowed classes{mark}{last}"


@contextlib.contextmanager
def load_alone(who):
    """For what opens a file, and obeys no list."""
    try:
        yield
    except UnsafeFileError as error:
        error.args = (of_load_alone(str(error), who), )
        raise


MOST_NAMES = 50  # in a message
MOST_LISTED = 4096  # by berth_list_globals


APPENDS, SETS_ITEMS = 1, 2  # as in native/native.h


def _is_never_filled(fills):
    """Whether PyTorch's weights_only unpickler refuses what a pickle does with objects, whatever is allowed.

    It appends to lists alone, and sets items of dicts, OrderedDicts and Counters alone; PyTorch 2.6 of all
    that is allowed.
    """
    theirs = getattr(sys.modules.get("torch._weights_only_unpickler"), "Unpickler", None)
    sets_all = theirs and not hasattr(theirs, "_check_set_item_target")
    return bool(fills & APPENDS or fills & SETS_ITEMS and not sets_all)


def advised(message, named, fills=0):
    """A refusal in the terms of Python: all that is not allowed, and what to do; the safe way first.

    named: rows (module, name, is_allowed), as the native module lists them
    fills: APPENDS, SETS_ITEMS: what the pickle does with objects of its classes
    """
    message = _steps.in_python(message)
    refused = list(dict.fromkeys(of_torch(module, name) for module, name, is_allowed in named if not is_allowed))
    is_protocol = "pickle_protocol=" in message
    if not refused and not is_protocol:
        return message
    are_many = len(refused) > MOST_NAMES
    words = shown(", ".join(f"{module} {name}" for module, name in refused[:MOST_NAMES]))
    if refused:
        message = FIRST_GLOBAL.sub("", message)
        what = ("1 class or function that is" if len(refused) == 1
                else f"{'at least ' * (len(named) >= MOST_LISTED)}{len(refused)} classes or functions that are")
        message += f"; it names {what} not allowed: " + words.encode("ascii", "backslashreplace").decode()
        message += ", ...; berth.verify(f).refused has all that are listed" * are_many
    if any(_runs(*row) for row in refused):
        return message + ". Nothing of it was run. Some of them run programs: do not allow them"
    if refused and not (is_protocol or are_many or _is_never_filled(fills)):
        message += step_of(refused)
    return message + load_trusted()


def make(status, message, errno, offset, record, named=(), fills=0):
    """The exception of a berth_error; called by the native module.

    named, fills: of a file that is refused: what its pickle names and does, as for advised
    """
    error = CLASSES.get(status, Error)(advised(shown(message), named, fills))
    error.status = status
    error.offset = None if offset == NO_OFFSET else offset
    error.record = record
    error.errno = errno
    return error


def is_of_file(error):
    """Whether it came from a file object of the caller's, by _source.Stream."""
    at = error.__traceback__
    while at and at.tb_frame.f_globals.get("__name__") != "berth._source":
        at = at.tb_next
    return at is not None


@contextlib.contextmanager
def of_file(name, by_caller=()):
    """What PyTorch says of a value of the file becomes an exception of ours, which names the file.

    by_caller: the exceptions of the caller's own code, such as map_location; they stay as they are
    """
    try:
        yield
    except (Error, NotImplementedError, MemoryError):  # this PyTorch cannot; the file is good
        raise
    except (RuntimeError, TypeError, LookupError, ArithmeticError, EOFError) as error:
        if type(error).__module__ != "builtins" or any(error is each for each in by_caller) or is_of_file(error):
            raise
        raise make("BERTH_E_TENSOR", f"{name}: PyTorch does not make a value of the file: {error}", 0,
                   NO_OFFSET, "") from error


def declined(steps, reason):
    """The exception of a value that is not saved; steps: the last one first."""
    path = "".join(reversed(steps))
    error = Declined(f"{path or 'the value'} cannot be saved: {reason}")
    error.path, error.reason = path, reason
    return error
