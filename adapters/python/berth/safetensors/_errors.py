# SPDX-License-Identifier: BSD-3-Clause
"""The package's error, and how Berth's errors become it."""

import contextlib

from berth._errors import Error, MissingFileError

try:
    from safetensors import SafetensorError
except ImportError:

    class SafetensorError(Exception):
        """What is wrong with a file, a name or an index. It is the package's class, where that is installed."""

        __module__ = "berth.safetensors"


@contextlib.contextmanager
def as_the_package(is_save=False):
    """Berth's errors as the package's.

    Of a load, a missing file is a FileNotFoundError in the package's words, and what the system refuses stays an
    OSError.
    """
    try:
        yield
    except Error as error:
        if isinstance(error, MissingFileError) and not is_save:
            raise FileNotFoundError(f"No such file or directory: {str(error).split(': ')[0]}") from error
        if isinstance(error, OSError) and not is_save:
            raise
        raise SafetensorError(str(error)) from error
