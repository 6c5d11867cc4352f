# SPDX-License-Identifier: BSD-3-Clause
"""berth.install: torch.save and torch.load are Berth's from here on."""

import contextlib
import functools
import os
import pickle
import sys
from threading import get_ident

from berth import _conditions, _records
from berth._config import config
from berth._counters import count, count_reason
from berth._errors import Error
from berth._in_place import start_as_torch
from berth._load import load_plain
from berth._lock import Lock
from berth._save import PROTOCOL, save_any
from berth._source import can_seek, is_path

_lock = Lock()
_users = set()  # who wants Berth's functions: INSTALL, and (thread, object) of each block of installed()
INSTALL = "install()"
TRUE = ("1", "y", "yes", "true")
# What PyTorch's own code would report, too, or would only try once more.
FINAL = ("BERTH_E_SYSTEM", "BERTH_E_NO_SPACE", "BERTH_E_MEMORY", "BERTH_E_NOT_FOUND",
         "BERTH_E_CHECKSUM", "BERTH_E_TRUNCATED", "BERTH_E_ARCHIVE", "BERTH_E_OFFSETS")


def install():
    """Makes torch.save and torch.load Berth's, for the whole process.

    Parameters, values, bytes and semantics stay PyTorch's, and so do the messages about pickles. A
    path is saved as a whole or not at all; what is broken is reported by Berth. PyTorch does what
    Berth cannot: writing the format before 1.6, and reading TorchScript and streams that are no zip
    archive; berth.counters() counts that. torch.utils.serialization.config is obeyed where it
    differs from its defaults. May be called twice.

    `from torch import save` keeps the function of that moment: import it after install().

    Raises: RuntimeError: this PyTorch is not known to Berth; then nothing has changed.
    Threads: any.
    """
    _change(INSTALL, True)


def uninstall():
    """Gives torch.save and torch.load back what they were. May be called twice.

    A block of installed() that goes on, in this thread or another, keeps them until it ends. What others have
    put in their place since install() stays, and calls PyTorch's functions.
    Threads: any.
    """
    _change(INSTALL, False)


def installed():
    """install() for a `with` block or the calls of a decorated function.

    Blocks may be inside of another one, and overlap in several threads: the last one to end gives torch.save
    and torch.load back what they were, unless install() was called.
    """
    return Block()


class Block(contextlib.ContextDecorator):
    def __init__(self):
        self._users = []

    def _recreate_cm(self):
        return Block()

    def __enter__(self):
        self._users.append((get_ident(), object()))
        try:
            _change(self._users[-1], True)
        except BaseException:  # ^C at the end of it, too
            self.__exit__()
            raise

    def __exit__(self, *_):
        _change(self._users.pop(), False)


def _change(user, wants):
    """While there is a user both names have both functions (Y9)."""
    import torch

    with _lock.held:
        if wants and not _users:
            _put_in_place(torch)
        (_users.add if wants else _users.discard)(user)
        if not _users:
            _give_back(torch)


def _put_in_place(torch):
    _records.check_known()
    save, load = _wrapped("save", _save), _wrapped("load", _load)
    for module in (torch, torch.serialization):
        module.save, module.load = save, load


def _give_back(torch):
    for module in (torch, torch.serialization):
        for name in ("save", "load"):
            if getattr(getattr(module, name), "_is_berth", False):
                setattr(module, name, _records.originals()[name])


def _forget_threads():
    """In a forked child: the blocks of the parent's other threads do not end here."""
    _users.intersection_update([each for each in _users if each == INSTALL or each[0] == get_ident()])
    if not _users and "torch" in sys.modules:
        _give_back(sys.modules["torch"])


os.register_at_fork(after_in_child=_forget_threads)


def _wrapped(name, function):
    """Ours while it is installed, in the dress of PyTorch's."""
    original = _records.originals()[name]

    @functools.wraps(original)
    def choose(*arguments, **named):
        return (function if _users else original)(*arguments, **named)

    choose._is_berth = True
    return choose


# ---- options of PyTorch ----


def _torch_config(section, name, default):
    """A value of torch.utils.serialization.config, or what PyTorch 2.6 does without it."""
    try:
        from torch.utils.serialization import config as torch_config
    except ImportError:
        return default
    return getattr(getattr(torch_config, section), name, default)


def _options():
    """A patch of what torch.utils.serialization.config says, where it says something."""
    import torch

    options = {}
    if not torch.serialization.get_crc32_options():
        options["save.compute_crc32"] = False
    alignment = _torch_config("save", "storage_alignment", 64)
    if alignment != 64:
        options["save.storage_alignment"] = alignment
    endianness = torch.serialization.get_default_load_endianness()
    if endianness is not None:
        options["load.endianness"] = endianness
    return config.patch(options) if options else contextlib.nullcontext()


def _refuse_bytes(name, *arguments):
    """A path to Berth, and no file to PyTorch, which says so."""
    return _records.originals()[name](*arguments)


# ---- torch.save ----


def _save(obj, f, pickle_module=pickle, pickle_protocol=PROTOCOL,
          _use_new_zipfile_serialization=True, _disable_byteorder_record=False):
    if not _use_new_zipfile_serialization:
        _records.originals()["save"](obj, f, pickle_module, pickle_protocol, False,
                                     _disable_byteorder_record)
        count("save", "torch")
        count_reason(_records.LEGACY)
        return
    if isinstance(f, bytes):
        return _refuse_bytes("save", obj, f)
    with _options():
        save_any(obj, f, pickle_module, pickle_protocol, _disable_byteorder_record, start_as_torch)


# ---- torch.load ----


def _load(f, map_location=None, pickle_module=None, *, weights_only=None, mmap=None,
          **pickle_load_args):
    import torch

    if isinstance(f, bytes):
        return _refuse_bytes("load", f)
    maps = _torch_config("load", "mmap", False) if mmap is None else mmap
    with _options():
        if (pickle_module is None and not pickle_load_args and _is_weights_only(weights_only)
                and not (maps and _maps_shared(torch)) and not _conditions.reason()
                and _is_native(torch, f, map_location, maps)):
            at = None if is_path(f) else f.tell()
            try:
                return load_plain(f, map_location, maps)
            except Error as error:
                if error.status in FINAL:
                    raise
            if at is not None:
                f.seek(at)
        return _records.load(f, map_location, pickle_module, weights_only, maps, pickle_load_args)


def _is_weights_only(weights_only):
    """As torch.load decides; it also warns about the variable."""
    if weights_only is None:
        return os.getenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "0").lower() not in TRUE
    return bool(weights_only)


def _maps_shared(torch):
    """Whether what is written to mapped tensors goes to the file: PyTorch maps it itself then."""
    return torch.serialization.get_default_mmap_options() not in (None, 2)


def _is_native(torch, f, map_location, maps):
    """Whether the file is one of those that Berth reads as torch.load does, or says why it does not."""
    if is_path(f):
        if os.fspath(f).endswith(".safetensors"):
            return map_location is None or isinstance(map_location, (str, torch.device))
        with open(f, "rb") as file:
            return torch.serialization._is_zipfile(file) or not maps
    return not maps and can_seek(f) and torch.serialization._is_zipfile(f)
