# SPDX-License-Identifier: BSD-3-Clause
"""Files that torch.save does not write by default: without byteorder, with very long names."""

import ctypes as c
import io
import os
import subprocess
import zipfile

import berth_ctypes as b
import cases
import torch
from build_tree import Tree
from describe import FromBerth, FromTorch, difference
from files import expect, identical
from huge import SparseFile

COMMAND = os.path.join(b.BUILD, "berth")
WITHOUT_BYTEORDER = ("training_script", "shapes", "dtype_float16", "state_dict",
                     "sparse", "conjugates")
OPTIONS = ("load.check=none", "load.check=directory", "load.check=headers", "load.check=data",
           "debug=on", "load.calculate_storage_offsets=off", "load.mmap=off")


def command(*words, code=0):
    done = subprocess.run([COMMAND, *words], capture_output=True, text=True, check=False)
    expect(done.returncode == code, f"berth {' '.join(words)[:200]} ends with {done.returncode}: "
                                    f"{done.stderr.strip()[-300:]}")
    return done


def same_values(path, value, options):
    with b.patched(options), FromBerth(path) as checkpoint:
        found = difference(checkpoint.root(), FromTorch().describe(value))
    expect(found is None, found)


def copies(folder, path, value):
    for words, out in ((["copy"], "copy.pt"), (["copy", "--set", "save.byteorder=big"], "big.pt"),
                       (["convert"], "new.pt")):
        command(*words, path, f"{folder}/{out}")
        command("verify", f"{folder}/{out}", "--set", "debug=on")
        loaded = FromTorch().describe(torch.load(f"{folder}/{out}", weights_only=True))
        found = difference(FromTorch().describe(value), loaded)
        expect(found is None, f"{out}: {found}")
    identical(f"{folder}/copy.pt", path)


def without_byteorder(results, folder):
    """PyTorch's writer then puts the record behind the storages."""
    path = f"{folder}/plain.pt"
    for name in WITHOUT_BYTEORDER:
        value = cases.CASES[name]()
        torch.save(value, path, _disable_byteorder_record=True)
        results.run(f"without byteorder: {name}: verify", command, "verify", path)
        for options in OPTIONS:
            results.run(f"without byteorder: {name}: {options}", same_values, path, value, options)
        results.run(f"without byteorder: {name}: copies", copies, folder, path, value)


# ---- names ----


def pytorch_opens(path):
    try:
        torch.load(path, weights_only=True)
    except (RuntimeError, UnicodeDecodeError):
        return False
    return True


def with_names(path, archive, record):
    """A checkpoint as Python's zipfile writes it, with one more record."""
    buffer = io.BytesIO()
    torch.save({"a": torch.arange(4)}, buffer)
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            name = info.filename.split("/", 1)[1]
            if name != ".format_version":  # its layout is not this file's
                new.writestr(f"{archive}/{name}", old.read(info))
        new.writestr(f"{archive}/{record}", b"x")


def archive_name(folder, nbytes):
    """Berth saves an archive name if PyTorch opens the file; it opens and copies all of others."""
    theirs, mine = f"{folder}/theirs.pt", f"{folder}/mine.pt"
    with_names(theirs, "a" * nbytes, "extra")
    opens = pytorch_opens(theirs)
    value = {"a": torch.arange(4)}
    same_values(theirs, value, "load.check=data")
    command("verify", theirs)
    for words in (["copy"], ["copy", "--set", "save.byteorder=big"]):
        command(*words, theirs, mine)
        expect(pytorch_opens(mine), "PyTorch does not open the copy")
    sink = SparseFile(mine)
    target = b.Sink(write=sink.write, context=None, in_order=True)
    with Tree(value) as tree:
        error = b.Error()
        params = b.Call(archive_name=b"a" * nbytes)
        code = b.berth_save_to(b.to_sink(target), b.of_value(tree.root), c.byref(params),
                               c.byref(error))
    sink.close()
    expect((code == 0) == opens, f"PyTorch opens it: {opens}; Berth: {error.message.decode() or 'saved'}")
    expect(code < 0 or pytorch_opens(mine), "PyTorch does not open what was saved")


def record_name(folder, archive, record):
    """A copy keeps records' names: it is refused if PyTorch does not open the file, else not."""
    theirs = f"{folder}/theirs.pt"
    with_names(theirs, archive, record)
    same_values(theirs, {"a": torch.arange(4)}, "load.check=data")
    command("copy", theirs, f"{folder}/mine.pt", code=0 if pytorch_opens(theirs) else 2)


def names(results, folder):
    for nbytes in (255, 509, 510, 511, 512, 600, 2000):
        results.run(f"names: an archive's of {nbytes} bytes", archive_name, folder, nbytes)
    for archive in ("a", "aa"):
        for record in [letter * n for letter in "n\u00e9" for n in (1, 254, 255, 256, 509, 510, 511, 9000)]:
            results.run(f"names: {archive}/ and {len(record)} times {record[0]}", record_name, folder,
                        archive, record)
