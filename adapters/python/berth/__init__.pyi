# SPDX-License-Identifier: BSD-3-Clause
"""The types of the public interface. tests/python/stubs.py compares it with what is there."""

import os
from collections.abc import Buffer, Callable, Generator, Iterable, Iterator
from contextlib import ContextDecorator
from typing import IO, Any, Literal, Self, TypeVar, overload

import numpy as np
import torch

from berth import dcp as dcp

__version__: str

_Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_Source = _Path | IO[bytes]
_MapLocation = (str | torch.device | dict[str, str] | Callable[[torch.UntypedStorage, str],
                                                              torch.UntypedStorage | None] | None)
_Ids = torch.Tensor | np.ndarray[Any, Any] | Buffer | Iterable[int]
_Out = TypeVar("_Out", torch.Tensor, np.ndarray[Any, Any], bytearray, memoryview)

# ---- errors ----

class Error(RuntimeError):
    status: str
    offset: int | None
    record: str
    errno: int

class ArgumentError(Error, ValueError): ...
class FileError(Error, OSError): ...  # type: ignore[misc]
class MissingFileError(Error, FileNotFoundError): ...  # type: ignore[misc]
class OutOfMemoryError(Error, MemoryError): ...
class UnsafeFileError(Error): ...
class CancelledError(Error): ...

# ---- saving and loading ----

def save(obj: object, f: _Path | IO[bytes], pickle_module: Any = ...,
         pickle_protocol: int = 2) -> None: ...
def load(f: _Source, map_location: _MapLocation = None, pickle_module: Any = None, *,
         weights_only: bool = True, mmap: bool | None = None, **pickle_load_args: Any) -> Any: ...
def save_async(obj: object, f: _Path | IO[bytes], *, snapshot: bool = True) -> Job: ...
def counters() -> dict[str, dict[str, int]]: ...

class Job:
    def staged(self, timeout: float | None = None) -> bool: ...
    def done(self) -> bool: ...
    def result(self, timeout: float | None = None) -> None: ...
    def cancel(self) -> bool: ...
    @property
    def progress(self) -> tuple[int, int]: ...
    def add_done_callback(self, function: Callable[[Job], object]) -> None: ...
    def __await__(self) -> Generator[Any, Any, None]: ...

# ---- in the place of torch.save and torch.load ----

def install() -> None: ...
def uninstall() -> None: ...
def installed() -> _Block: ...

class _Block(ContextDecorator):
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...

# ---- one tensor at a time ----

def open(f: _Source) -> File: ...

class File:
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def keys(self) -> list[str]: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def __contains__(self, name: object) -> bool: ...
    def __getitem__(self, name: str) -> Any: ...
    def slice(self, name: str) -> Slice: ...
    def numpy(self, name: str) -> np.ndarray[Any, Any]: ...
    def verify(self) -> Report: ...
    @property
    def info(self) -> dict[str, Any]: ...
    @property
    def metadata(self) -> dict[str, str] | None: ...

class Slice:
    dtype: str
    shape: tuple[int, ...]
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any) -> torch.Tensor: ...

# ---- checking a file ----

def verify(f: _Source) -> Report: ...

class RecordReport:
    name: str
    offset: int
    nbytes: int
    crc32: Literal["good", "bad", "absent", "unchecked"]
    error: str | None

class Report:
    error: str
    records: list[RecordReport]
    n_storages: int
    n_verified: int
    n_unverified: int
    n_bad: int
    nbytes: int
    def __bool__(self) -> bool: ...

# ---- rows of large tables ----

def rows(cache_nbytes: int = ..., *, scratch_nbytes: int = 0, ways: int = 0) -> Rows: ...

class Table:
    name: str
    dtype: str
    shape: tuple[int, int]
    def __len__(self) -> int: ...

class Rows:
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def add(self, file: File | _Path, name: str) -> Table: ...
    @overload
    def gather(  # type: ignore[overload-overlap]
            self, table: Table, ids: np.ndarray[Any, Any], out: None = None, *,
            pruned_to_zero: bool = False) -> np.ndarray[Any, Any]: ...
    @overload
    def gather(self, table: Table, ids: torch.Tensor | Buffer | Iterable[int], out: None = None, *,
               pruned_to_zero: bool = False) -> torch.Tensor: ...
    @overload
    def gather(self, table: Table, ids: _Ids, out: _Out, *, pruned_to_zero: bool = False) -> _Out: ...
    def gather_many(self, parts: Iterable[tuple[Table, _Ids] | tuple[Table, _Ids, Any]], *,
                    pruned_to_zero: bool = False) -> list[Any]: ...
    def estimate(self, parts: Iterable[tuple[Table, _Ids | int]]) -> dict[str, int]: ...
    def prefetch(self, table: Table, ids: _Ids) -> Ticket: ...
    def stats(self) -> dict[str, int]: ...

class Ticket:
    def wait(self) -> None: ...
    @overload
    def gather(self, out: None = None) -> Any: ...
    @overload
    def gather(self, out: _Out) -> _Out: ...
    def release(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

# ---- options: config/options.def ----

class _Bytes:
    def __get__(self, instance: object, owner: type | None = None) -> int: ...
    def __set__(self, instance: object, value: int | str) -> None: ...

class _SaveOptions:
    compute_crc32: bool
    storage_alignment: int
    use_pinned_memory_for_d2h: bool
    byteorder: Literal["native", "little", "big"]
    method: Literal["auto", "buffered", "direct"]
    durability: Literal["none", "file", "full"]

class _LoadOptions:
    calculate_storage_offsets: bool
    check: Literal["none", "directory", "headers", "data"]
    repacked: Literal["accept", "refuse"]
    inflate: bool
    endianness: Literal["native", "little", "big"]
    head_nbytes: _Bytes
    mmap: bool
    method: Literal["auto", "map", "read", "direct"]
    reuse: Literal["auto", "once", "often"]
    mmap_flags: str
    prefetch: Literal["off", "advise", "populate", "read"]
    prefetch_passes: int
    prefetch_min_pass_nbytes: _Bytes
    prefetch_window_nbytes: _Bytes
    rows_passes: int
    rows_min_pass_ids: int
    unknown_globals: Literal["refuse", "inert"]

class _IoOptions:
    threads: int
    chunk_nbytes: _Bytes
    numa: Literal["local", "interleave"]
    large_pages: Literal["auto", "on", "off"]
    memory_nbytes: _Bytes

class _DeviceOptions:
    staging_nbytes: _Bytes
    staging_buffers: int

class _Config:
    debug: bool
    trace: str
    save: _SaveOptions
    load: _LoadOptions
    io: _IoOptions
    device: _DeviceOptions
    def names(self) -> list[str]: ...
    def patch(self, *assignments: str | dict[str, bool | int | str],
              **options: bool | int | str) -> _Block: ...
    def reset(self, name: str | None = None) -> None: ...
    def describe(self, name: str) -> dict[str, Any]: ...

config: _Config
