#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""One reading (Z1 to Z10): of each archive that Berth accepts, Python's zipfile lists the same
names, sizes and bytes.

usage: zipfile_same.py LIST    LIST: a file that names one archive a line

BERTH_BUILD names the folder of the built variant.
"""

import ctypes as c
import io
import os
import sys
import zipfile
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../peers"))
import berth_ctypes as berth  # noqa: E402

LIBRARY = berth.LIBRARY
MAX_NBYTES = 1 << 24


def declare(name, result, *arguments):
    function = getattr(LIBRARY, name)
    function.restype, function.argtypes = result, arguments


INFO = berth.structure("berth_archive_info")
RECORD, ERROR = c.POINTER(berth.Record), berth.ERROR
declare("berth_archive_open", c.c_int, c.POINTER(berth.Source), c.c_void_p, c.POINTER(c.c_void_p),
        c.POINTER(INFO), ERROR)
declare("berth_archive_close", None, c.c_void_p)
declare("berth_archive_at", c.c_int, c.c_void_p, c.c_size_t, RECORD)
declare("berth_archive_read", c.c_int, c.c_void_p, RECORD, c.c_void_p, c.c_size_t, c.c_uint64,
        ERROR)


def read(archive, record):
    """A record's bytes; None where they are refused."""
    error, buffer = berth.Error(), c.create_string_buffer(max(1, record.nbytes))
    if LIBRARY.berth_archive_read(archive, c.byref(record), buffer, record.nbytes, 0,
                                  c.byref(error)) < 0:
        return None
    return buffer.raw[:record.nbytes]


def ours(content):
    """{name: (size, bytes)} of an archive that is accepted, else None."""
    error, archive, record = berth.Error(), c.c_void_p(), berth.Record()
    source = berth.Source(kind=berth.SOURCES["MEMORY"], fd=-1, nbytes=len(content),
                          bytes=c.cast(content, c.c_void_p))
    info = INFO()
    if LIBRARY.berth_archive_open(c.byref(source), None, c.byref(archive), c.byref(info),
                                  c.byref(error)) < 0:
        return None
    listed = {}
    for i in range(info.n_records):
        LIBRARY.berth_archive_at(archive, i, c.byref(record))
        small = record.nbytes <= MAX_NBYTES
        listed[record.name.decode()] = (record.nbytes, read(archive, record) if small else None)
    LIBRARY.berth_archive_close(archive)
    return listed


def theirs(file, names):
    """The same as zipfile reads it. Folders are no records. Of sums nothing is asked: with
    load.check=headers Berth asks nothing either, and 0 is none (Z10). The top folder is one, but
    zipfile takes it for code page 437 where it is not marked as UTF-8 (Z8)."""
    listed, tops = {}, set()
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        for info in archive.infolist():
            top, _, name = info.filename.partition("/")
            tops.add(top)
            if len(tops) > 1:
                raise zipfile.BadZipFile(f"top folders {tops}")
            if info.filename.endswith("/"):
                continue
            if name in listed:
                raise zipfile.BadZipFile(f"{info.filename} twice")
            info.CRC = None
            wanted = names.get(name, (0, None))[1] is not None
            # Of an empty record Berth reads nothing, not even what a deflated one begins with.
            content = archive.read(info) if wanted and info.file_size else b""
            listed[name] = (info.file_size, content if wanted else None)
    return listed


def compare(paths):
    accepted = 0
    differences = []
    for path in paths:
        with open(path, "rb") as file:
            content = file.read()
        mine = ours(content)
        if mine is None:
            continue
        accepted += 1
        try:
            other = theirs(content, mine)
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, ValueError, EOFError) as why:
            other = f"refused: {why}"
        if mine != other:
            differences.append(f"{path}:\n  berth:   {str(mine)[:1500]}\n"
                               f"  zipfile: {str(other)[:1500]}")
    return accepted, differences


def main(listed):
    with open(listed, encoding="utf-8") as file:
        paths = file.read().split("\n")
    paths = [path for path in paths if path]
    with berth.patched("load.check=headers debug=off"):
        accepted, differences = compare(paths)
    print("\n".join(differences[:20]))
    print(f"{len(paths)} archives, {accepted} accepted, {len(differences)} read differently")
    return 1 if differences or not accepted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
