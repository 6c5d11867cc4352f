# SPDX-License-Identifier: BSD-3-Clause
"""berth.verify: what is wrong with a file."""

import os
from dataclasses import dataclass, fields, replace

from berth import _native, _set
from berth._errors import DamagedFileError, MissingFileError, UnsafeFileError, advised, of_load_alone, of_torch
from berth._load import MAPPED
from berth._source import from_caller, put_back, source_of


@dataclass(frozen=True)
class RecordReport:
    """One record of a file.

    name: in the archive, "data/3"; of a safetensors file, that of the tensor; of a file from before PyTorch
        1.6, the storage's key
    offset: of its data; nbytes: its size
    crc32: "good", "bad", "absent" (none is recorded), or "unchecked"
    error: what is wrong with it; None: nothing
    """

    name: str
    offset: int
    nbytes: int
    crc32: str
    error: "str | None"


@dataclass(frozen=True)
class Report:
    """What berth.verify found. It is true if the file is good: whole, and of a kind that berth.load reads.

    error: the first thing that is wrong; "": nothing
    intact: whether the file is whole: nothing of it is missing or changed. A file can be intact and refused,
        for what it is or for what its pickle names; then the error says so
    globals, refused: all classes and functions that its pickle names, "argparse.Namespace", and those
        of them that are not allowed; as PyTorch and torch.serialization.add_safe_globals call them
    globals_unknown: why they cannot be listed, or not all of them; "": they are. That is no verdict: a good
        file is good
    records: a RecordReport each, in the file's order. Of a directory of torch.distributed.checkpoint: the
        pieces with which something is wrong; n_storages then counts pieces
    n_storages, n_verified, n_unverified, n_bad: how many storages; records whose checksum matches;
        that have none; that are bad
    nbytes: of all records
    behind_nbytes: of further objects that torch.save wrote to the same file before PyTorch 1.6. They are verified,
        too. berth.load(path) gives the first object; of an open file each berth.load(file) gives the next one
    """

    error: str
    intact: bool
    globals: "list[str]"
    refused: "list[str]"
    records: "list[RecordReport]"
    n_storages: int
    n_verified: int
    n_unverified: int
    n_bad: int
    nbytes: int
    globals_unknown: str = ""
    behind_nbytes: int = 0

    def __bool__(self):
        return not self.error


def verify(f):
    """Reads a whole file and checks everything: archive, offsets, pickle, tensors, checksums.

    f: a path or an open binary file, as for berth.load; so it can be an index, a folder or a directory of
        torch.distributed.checkpoint, whose pieces are verified each. A file stands where it stood.
    Returns: a Report. A broken file is an answer, not an exception; so is a missing one that an index names.
    Raises: berth.MissingFileError: there is no such file. berth.FileError: it, or one of several, cannot be read.
    Threads: any; other threads run meanwhile.
    """
    try:
        found = _set.found(from_caller(f))
        if isinstance(found, _set.Index):
            return _report_of_index(found)
        if isinstance(found, _set.Dcp):
            return _report_of_directory(found)
    except (DamagedFileError, UnsafeFileError) as error:  # the index, or .metadata
        return _report_of_error(str(error))
    with put_back(found):
        try:
            source = source_of(found)
        except DamagedFileError as error:  # it stands at its end
            return _report_of_error(str(error))
        return report_of(source)


def _report_of_error(error):
    sums = {field.name: 0 for field in fields(Report) if field.type is int}
    return Report(error=error, intact=False, globals=[], refused=[], records=[], **sums)


def _report_of_index(index):
    report = report_of_files([index.path_of(file) for file in index.files])
    if report:  # has each file the tensors that the index says?
        try:
            _set.Files(index, MAPPED).close()
        except DamagedFileError as error:
            return replace(report, error=str(error), intact=False)
    return report


def _report_of_directory(directory):
    found = directory.verdict()
    named = [(row["module"], row["name"], row["allowed"]) for row in found["globals"]]
    bad = [RecordReport(f"{row['in']}: {row['name']}", row["offset"], row["nbytes"],
                        "unchecked" if row["intact"] else "bad", row["reason"])
           for row in found["bad"]]
    # Nothing that a program can allow makes berth.load run anything of a directory: no advice.
    error = advised(bad[0].error, ()) if bad else directory.said_of(found["reason"]) if "reason" in found else ""
    return Report(error=error, intact=found["intact"], records=bad,
                  globals=_names(named), refused=_names(row for row in named if not row[2]),
                  n_storages=found["pieces"], n_verified=found["verified"], n_unverified=found["unverified"],
                  n_bad=sum(not row["intact"] for row in found["bad"]), nbytes=found["nbytes"],
                  globals_unknown=found.get("globals_unknown", ""))


def _names(named):
    return list(dict.fromkeys(".".join(of_torch(module, name)) for module, name, _ in named))


def report_of(source):
    found = _native.verify(source)
    named = found["globals"]
    found["globals"], found["refused"] = _names(named), _names(row for row in named if not row[2])
    is_told = found["globals_unknown"] in found["error"]  # or empty
    # Other errors are about damage, or about what the file is; a program's own classes say nothing.
    said = advised(found["error"], named if found.pop("is_refusal") else (), found.pop("fills"))
    found["error"] = of_load_alone(said, "berth.verify")
    del found["errno"]
    if found["error"] and not is_told:
        found["error"] += f"; it names what cannot be listed: {found['globals_unknown']}"
    found["records"] = [RecordReport(*row) for row in found["records"]]
    return Report(**found)


def _report_of_part(path):
    try:
        return report_of(path)
    except MissingFileError as error:
        return _report_of_error(str(error))


def report_of_files(paths):
    """Of the files of an index: the names of the records begin with that of their file."""
    reports = [(os.fsdecode(os.path.basename(path)), _report_of_part(path)) for path in paths]
    records = [replace(record, name=f"{name}/{record.name}")
               for name, report in reports for record in report.records]
    sums = {field.name: sum(getattr(report, field.name) for _, report in reports)
            for field in fields(Report) if field.type is int}
    names = {what: list(dict.fromkeys(name for _, report in reports for name in getattr(report, what)))
             for what in ("globals", "refused")}
    first = {what: next((getattr(report, what) for _, report in reports if getattr(report, what)), "")
             for what in ("error", "globals_unknown")}
    return Report(intact=all(report.intact for _, report in reports), records=records, **first, **names, **sums)
