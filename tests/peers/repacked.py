# SPDX-License-Identifier: BSD-3-Clause
"""Z13: files that people unzipped and zipped again, by the tools that they use. Where PyTorch opens
one, Berth reads the same names, dtypes, shapes and bytes, and says that it was repacked."""

import copy
import os
import random
import shutil
import subprocess
import zipfile

import berth_ctypes as b
import cases
import torch
from describe import FromBerth, FromTorch, difference
from files import expect
from torch.utils.serialization import config
from unusual import command

VALUES = ("training_script", "shapes", "state_dict", "sparse", "dtype_float16", "conjugates")
LEVELS = ("load.check=none", "load.check=directory", "load.check=headers", "load.check=data",
          "load.mmap=off", "load.calculate_storage_offsets=off")
ADVICE = "repacked: readers that calculate offsets misread this file; `berth convert` mends it"
SEVEN = next(filter(None, map(shutil.which, ("7z", "7za", "7zz"))), None)


# ---- the tools ----


def unpack(path, folder):
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return os.listdir(folder)[0]


def zip_tool(*options, foreign=False, into_pipe=False, tool=("zip", "-q")):
    """Unzips and zips everything again."""
    def make(old, new):
        folder = f"{new}.d"
        top = unpack(old, folder)
        if foreign:
            for name in (".DS_Store", "data/.DS_Store", "notes.txt"):
                with open(f"{folder}/{top}/{name}", "wb") as file:
                    file.write(b"\0\0\0\1Bud1" + bytes(100))
        with open(new, "wb") if into_pipe else open(os.devnull, "wb") as out:
            subprocess.run([*tool, *options, "-" if into_pipe else new, top], cwd=folder, check=True, stdout=out)
        shutil.rmtree(folder)
    return make


def zip_changes(*options, name):
    """Changes the archive as it is: zip rewrites it."""
    def make(old, new):
        shutil.copy(old, new)
        folder = f"{new}.d"
        top = unpack(old, folder)
        with open(f"{folder}/{top}/.DS_Store", "wb") as file:
            file.write(b"Bud1")
        subprocess.run(["zip", "-q", *options, new, f"{top}/{name}"], cwd=folder, check=True)
        shutil.rmtree(folder)
    return make


class Pipe:
    """A file that cannot be sought: zipfile then writes descriptors."""

    def __init__(self, file):
        self.write, self.flush = file.write, file.flush


def zipfile_writes(order=lambda infos: infos, same_infos=False, folders=False, method=0, zip64=False,
                   into_pipe=False, comment=b"", storages=0):
    def make(old, new):
        with zipfile.ZipFile(old) as source, open(new, "wb") as file, \
                zipfile.ZipFile(Pipe(file) if into_pipe else file, "w") as archive:
            archive.comment = comment
            infos = source.infolist()
            top = infos[0].filename.split("/")[0]
            for folder in (f"{top}/", f"{top}/data/") if folders else ():
                archive.writestr(zipfile.ZipInfo(folder), b"")
            for info in order(list(infos)):
                small = "/data/" not in info.filename
                write = copy.copy(info) if same_infos else zipfile.ZipInfo(info.filename, (2024, 2, 29, 1, 2, 4))
                write.compress_type = method if small else storages
                with archive.open(write, "w", force_zip64=zip64) as out:
                    out.write(source.read(info.filename))
    return make


def shuffled(infos):
    random.Random(7).shuffle(infos)
    return infos


TOOLS = {
    "zip -0 -r": zip_tool("-0", "-r"),
    "zip -0 -r -X": zip_tool("-0", "-r", "-X"),
    "zip -0 -r -D": zip_tool("-0", "-r", "-D"),
    "zip -0 -r into a pipe": zip_tool("-0", "-r", into_pipe=True),
    "zip -0 -r with foreign files": zip_tool("-0", "-r", foreign=True),
    "zip adds .DS_Store": zip_changes("-0", name=".DS_Store"),
    "zip deletes the id": zip_changes("-d", name=".data/serialization_id"),
    "zipfile": zipfile_writes(),
    "zipfile, its infos": zipfile_writes(same_infos=True),
    "zipfile, sorted": zipfile_writes(lambda infos: sorted(infos, key=lambda info: info.filename)),
    "zipfile, reversed": zipfile_writes(lambda infos: infos[::-1]),
    "zipfile, shuffled": zipfile_writes(shuffled),
    "zipfile, folders": zipfile_writes(folders=True),
    "zipfile, deflated pickle": zipfile_writes(method=zipfile.ZIP_DEFLATED),
    "zipfile, zip64": zipfile_writes(zip64=True),
    "zipfile, into a pipe": zipfile_writes(into_pipe=True),
    "zipfile, into a pipe, zip64": zipfile_writes(into_pipe=True, zip64=True),
    "zipfile, comment": zipfile_writes(comment=b"zipped again"),
}
# Z12: their storages are deflated.
COMPRESSED = {
    "zip -r": zip_tool("-r"),
    "zip -9 -r into a pipe": zip_tool("-9", "-r", into_pipe=True),
    "zipfile, deflated": zipfile_writes(method=zipfile.ZIP_DEFLATED, storages=zipfile.ZIP_DEFLATED),
    "zipfile, deflated storages": zipfile_writes(storages=zipfile.ZIP_DEFLATED),
    "zipfile, deflated, into a pipe": zipfile_writes(storages=zipfile.ZIP_DEFLATED, into_pipe=True, zip64=True),
}
TOOLS.update(COMPRESSED)
if SEVEN:
    TOOLS["7z -mx0"] = zip_tool("-tzip", "-mx0", tool=(SEVEN, "a", "-bd"))
    COMPRESSED["7z"] = TOOLS["7z"] = zip_tool("-tzip", tool=(SEVEN, "a", "-bd"))


# ---- what must hold ----


def torch_reads(path):
    with config.patch({"load.calculate_storage_offsets": False}):
        return FromTorch().describe(torch.load(path, weights_only=True))


def berth_reads_alike(path, wanted, level):
    with b.patched("debug=off " + level), FromBerth(path) as checkpoint:
        found = difference(checkpoint.root(), wanted)
        expect(found is None, f"{level}: {found}")
        info = checkpoint.info()
        expect(info.repacked and not info.calculated_offsets, f"{level}: it does not say that it was repacked")


def opens(path, value):
    """Everywhere the same; and all that shows the file says what it is."""
    wanted = torch_reads(path)
    found = difference(wanted, FromTorch().describe(value))
    expect(found is None, f"PyTorch reads something else: {found}")
    for level in LEVELS:
        berth_reads_alike(path, wanted, level)
    off = ("--set", "debug=off")
    verified = command("verify", path, *off).stdout
    expect(verified.startswith(ADVICE + "\nok: "), verified)
    expect(ADVICE.split(": ", 1)[1] in command("info", path, *off).stdout, "berth info does not say it")


def refused(path):
    """Debug mode, load.repacked=refuse, and a copy, which would keep the places."""
    for option in ("debug=on", "debug=off load.repacked=refuse"):
        try:
            with b.patched(option), FromBerth(path):
                pass
        except b.BerthError as error:
            expect("load.calculate_storage_offsets=off" in str(error), str(error))
        else:
            expect(False, f"{option}: it opens")
    with b.patched("debug=off"), FromBerth(path) as checkpoint:
        is_compressed = checkpoint.info().n_deflated > 0
    if not is_compressed:
        command("copy", path, f"{path}.copy", code=1)


def mended(path, value, mends="convert"):
    out = f"{path}.mended.pt"
    command(mends, path, out, "--set", "debug=off")
    command("verify", out, "--set", "debug=on")
    for mmap in (False, True):
        for calculate in (False, True):
            with config.patch({"load.calculate_storage_offsets": calculate}):
                loaded = FromTorch().describe(torch.load(out, weights_only=True, mmap=mmap))
            found = difference(loaded, FromTorch().describe(value))
            expect(found is None, f"mmap={mmap}, calculated offsets={calculate}: {found}")


def repack(results, label, tool, old, new, value):
    tool(old, new)
    results.run(f"{label}: opens", opens, new, value)
    results.run(f"{label}: refused on request", refused, new)
    results.run(f"{label}: mended", mended, new, value)
    with zipfile.ZipFile(new) as archive:
        is_compressed = any("/data/" in info.filename and info.compress_type for info in archive.infolist())
    if is_compressed:
        results.run(f"{label}: mended by a copy", mended, new, value, "copy")


def all_tools(results, folder):
    # PyTorch in debug mode refuses these files, too; its readings are wanted here.
    was = os.environ.pop("TORCH_SERIALIZATION_DEBUG", None)
    for name in VALUES:
        value = cases.CASES[name]()
        old = f"{folder}/whole.pt"
        torch.save(value, old)
        for tool, make in TOOLS.items():
            new = f"{folder}/again.pt"
            if os.path.exists(new):
                os.remove(new)
            repack(results, f"repacked: {tool}: {name}", make, old, new, value)
    if was is not None:
        os.environ["TORCH_SERIALIZATION_DEBUG"] = was
