# SPDX-License-Identifier: BSD-3-Clause
"""Exceptions. The library's messages are passed on as they are."""

import concurrent.futures
import contextlib
import pickle

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


def make(status, message, errno, offset, record):
    """The exception of a berth_error; called by the native module."""
    error = CLASSES.get(status, Error)(message)
    error.status = status
    error.offset = None if offset == NO_OFFSET else offset
    error.record = record
    error.errno = errno
    return error


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
        if type(error).__module__ != "builtins" or any(error is each for each in by_caller):
            raise
        raise make("BERTH_E_TENSOR", f"{name}: PyTorch does not make a value of the file: {error}", 0,
                   NO_OFFSET, "") from error


def declined(steps, reason):
    """The exception of a value that is not saved; steps: the last one first."""
    path = "".join(reversed(steps))
    error = Declined(f"{path or 'the value'} cannot be saved: {reason}")
    error.path, error.reason = path, reason
    return error
