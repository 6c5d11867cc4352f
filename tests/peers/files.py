# SPDX-License-Identifier: BSD-3-Clause
"""What other tools and plain eyes say of a file."""

import ctypes as c
import ctypes.util
import os
import subprocess
import zipfile

LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")


class Bad(Exception):
    """A check that did not hold; its text is the one line of the report."""


def expect(condition, text):
    if not condition:
        raise Bad(text)


def unzip_accepts(path):
    done = subprocess.run(["unzip", "-tqq", path], capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"unzip -t: {(done.stdout + done.stderr).strip()[-200:]!r}")


def zipfile_accepts(path):
    with zipfile.ZipFile(path) as archive:
        bad = archive.testzip()
    expect(bad is None, f"zipfile: {bad} is bad")


def libzip():
    name = ctypes.util.find_library("zip") or "libzip.so.4"
    library = c.CDLL(name)
    library.zip_open.restype = c.c_void_p
    library.zip_open.argtypes = [c.c_char_p, c.c_int, c.POINTER(c.c_int)]
    library.zip_discard.argtypes = [c.c_void_p]
    return library


def libzip_accepts(path, library=[]):
    """zip_open with ZIP_CHECKCONS | ZIP_RDONLY: local headers against the directory."""
    if not library:
        library.append(libzip())
    code = c.c_int()
    archive = library[0].zip_open(os.fsencode(path), 4 | 16, c.byref(code))
    expect(archive, f"libzip's consistency check: error {code.value}")
    library[0].zip_discard(archive)


def record_at(path, offset):
    """The record that holds a byte of the file, for a message."""
    name = "before the first record"
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.header_offset > offset:
                return name
            name = f"in {info.filename} (header at {info.header_offset})"
        return name if offset < archive.start_dir else "in the directory"


def same_bytes(mine, theirs, path, base=0):
    """Two files' bytes from `base` on; `path` is one of them."""
    if mine == theirs:
        return
    at = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs)))
    raise Bad(f"{len(mine)} bytes against {len(theirs)}, the first other one at {base + at}, "
              f"{record_at(path, base + at)}: {mine[at:at + 16].hex()} is not {theirs[at:at + 16].hex()}")


def identical(mine, theirs):
    with open(mine, "rb") as one, open(theirs, "rb") as other:
        same_bytes(one.read(), other.read(), theirs)
