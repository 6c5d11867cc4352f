# SPDX-License-Identifier: BSD-3-Clause
"""berth.install: torch.save and torch.load are Berth's from here on."""

import contextlib
import functools
import io
import os
import pickle
import re
import sys
import warnings
import zipfile
from threading import get_ident

from berth import _gate, _records
from berth._config import config
from berth._counters import count, count_reason
from berth._errors import UnsafeFileError, is_set
from berth._in_place import start_as_torch
from berth._load import load_any
from berth._lock import Lock
from berth._save import PROTOCOL, save_any
from berth._source import is_path

_lock = Lock()
_users = set()  # who wants Berth's functions: INSTALL, and (thread, object) of each block of installed()
_weights_users = set()  # those of them that want safetensors' functions, too
INSTALL = "install()"
SAFETENSORS = {str: ".safetensors", bytes: b".safetensors"}
FORBIDDEN = re.compile(r"global (\S+) (\S+) is not allowed in a checkpoint")
MOST_SHOWN = 100  # of a name: a longer one is cut


def install(*, safetensors=False):
    """Makes torch.save and torch.load Berth's, for the whole process.

    Parameters, values, bytes and semantics stay PyTorch's, and so do the messages about pickles. A
    path is saved as a whole or not at all; what is broken is reported by Berth. PyTorch does what
    Berth cannot: writing the format before 1.6, and reading TorchScript and streams that are no zip
    archive; berth.counters() counts that. torch.utils.serialization.config is obeyed where it
    differs from its defaults. May be called twice.

    `from torch import save` keeps the function of that moment: import it after install().

    safetensors: also makes the functions of the package safetensors those of berth.safetensors, under every name
        that a module has for them: `from safetensors import safe_open`, too. What has been copied elsewhere, such as
        an argument's default, stays.
    Raises: RuntimeError: this PyTorch is not known to Berth; ImportError: there is no package safetensors. Then
        nothing has changed.
    Threads: any.
    """
    _change(INSTALL, True, safetensors)


def uninstall():
    """Gives torch.save and torch.load back what they were, and the package safetensors. May be called twice.

    A block of installed() that goes on, in this thread or another, keeps them until it ends. What others have
    put in their place since install() stays, and calls PyTorch's functions.
    Threads: any.
    """
    _change(INSTALL, False)


def installed(*, safetensors=False):
    """install(safetensors=safetensors) for a `with` block or the calls of a decorated function.

    Blocks may be inside of another one, and overlap in several threads: the last one to end gives torch.save
    and torch.load back what they were, unless install() was called.
    """
    return Block(safetensors)


class Block(contextlib.ContextDecorator):
    def __init__(self, safetensors):
        self._users, self._safetensors = [], safetensors

    def _recreate_cm(self):
        return Block(self._safetensors)

    def __enter__(self):
        self._users.append((get_ident(), object()))
        try:
            _change(self._users[-1], True, self._safetensors)
        except BaseException:  # ^C at the end of it, too
            self.__exit__()
            raise

    def __exit__(self, *_):
        _change(self._users.pop(), False)


def _change(user, wants, wants_weights=False):
    """While there is a user both names have both functions (Y9)."""
    import torch

    with _lock.held:
        try:
            if wants and not _users:
                _put_in_place(torch)
            if wants_weights and not _weights_users:
                _weights().put_in_place()
            (_users.add if wants else _users.discard)(user)
            if wants_weights:
                _weights_users.add(user)
            elif not wants:
                _weights_users.discard(user)
        finally:
            _give_back_unused(torch)


def _weights():
    """It is imported when it is first used."""
    import berth.safetensors._install

    return berth.safetensors._install


def _give_back_unused(torch):
    if not _users:
        _give_back(torch)
    if not _weights_users and "berth.safetensors._install" in sys.modules:
        _weights().give_back()


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
    for users in (_users, _weights_users):
        users.intersection_update([each for each in users if each == INSTALL or each[0] == get_ident()])
    if "torch" in sys.modules:
        _give_back_unused(sys.modules["torch"])


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
    maps = bool(_torch_config("load", "mmap", False) if mmap is None else mmap)
    if weights_only is None and is_set("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"):
        warnings.warn("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is not obeyed while Berth is installed: no variable "
                      "makes a load run what is in a file. Pass weights_only=False for a file that you trust",
                      UserWarning, stacklevel=3)
    is_only = _gate.is_weights_only(weights_only)
    _check_file(torch, f, map_location, maps)
    with _options():
        try:
            return load_any(f, map_location, pickle_module, is_only, maps, pickle_load_args,
                            "MAP_SHARED" if maps and _maps_shared(torch) else "")
        except UnsafeFileError as error:
            if is_only:
                _raise_as_torch(error)
            raise


def _check_file(torch, f, map_location, maps):
    """Raises what torch.load raises before it reads a value."""
    if not is_path(f):
        torch.serialization._check_seekable(f)
        if maps:
            raise ValueError("f must be a file path in order to use the mmap argument")
        return
    if os.fspath(f).endswith(SAFETENSORS[type(os.fspath(f))]):
        if not (map_location is None or isinstance(map_location, (str, torch.device))):
            raise RuntimeError("the map_location of a .safetensors file must be a device, or the name of one")
    elif maps:
        with open(f, "rb") as file:
            if not torch.serialization._is_zipfile(file):
                raise RuntimeError("mmap can only be used with files saved with `torch.save(..., "
                                   "_use_new_zipfile_serialization=True)`: this file is older, or no zip archive")


def _raise_as_torch(error):
    """PyTorch's words for a global that it does not allow: of a pickle that has nothing but this name."""
    found = FORBIDDEN.search(str(error))
    if not found or max(map(len, found.groups())) >= MOST_SHOWN:
        return
    named = io.BytesIO()
    with zipfile.ZipFile(named, "w") as file:
        file.writestr("a/data.pkl", b"\x80\2c%s\n%s\n." % tuple(map(str.encode, found.groups())))
        file.writestr("a/version", "3\n")
    named.seek(0)
    try:
        _records.originals()["load"](named, weights_only=True)
    except pickle.UnpicklingError as theirs:
        error.args = theirs.args
        error.add_note("Berth: " + found.string)
    except RuntimeError:  # both variables are set, which PyTorch refuses
        pass


def _maps_shared(torch):
    """Whether what is written to mapped tensors goes to the file: PyTorch maps it itself then."""
    return torch.serialization.get_default_mmap_options() not in (None, 2)
