# SPDX-License-Identifier: BSD-3-Clause
"""Sparse tensors are made and, at the end of a load, checked by PyTorch's functions; those of one load by its own list.

PyTorch before 2.15 collects the sparse tensors of all loads of a process in one list, which the first load to end
checks and clears. And it turns the process's switch of these checks off while it makes a sparse tensor.
"""

import contextlib
import functools
import inspect
import threading
import types

from berth._lock import Lock
from berth._records import with_names

_switch = Lock()  # it is off, or may be restored, or read
_loads = threading.local()  # .made: the sparse tensors of the load that this thread is in


@functools.cache
def _arguments():
    """Since PyTorch 2.15 what weights_only=True loads is always checked, and for that asked for."""
    import torch

    parameters = inspect.signature(torch._utils._validate_loaded_sparse_tensors).parameters
    return {"weights_only": True} if "weights_only" in parameters else {}


def _list_of_this_load():
    """The names by which PyTorch's functions find it."""
    made = _loads.made
    return {"_sparse_tensors_to_validate": made, "_get_sparse_tensors_to_validate": lambda: made}


def _of_this_load(name):
    """A function of torch._utils, with the list of this load."""
    import torch

    return with_names(getattr(torch._utils, name), _list_of_this_load())


def rebuild(layout, data):
    """torch._utils._rebuild_sparse_tensor; the native module calls it, inside of checked()."""
    function = _of_this_load("_rebuild_sparse_tensor")
    with _switch.held:
        tensor = function(layout, data)
    _loads.made[-1] = tensor.detach()  # the checks call its methods: it gets no attributes of the file (Y5)
    return tensor


def unpickler():
    """torch._weights_only_unpickler, which makes sparse tensors by rebuild(); for one load, inside of checked()."""
    import torch

    theirs = torch._weights_only_unpickler
    allowed = {**theirs._get_allowed_globals(), "torch._utils._rebuild_sparse_tensor": rebuild}
    load = with_names(theirs.Unpickler.load, {"_get_allowed_globals": lambda: allowed, **_list_of_this_load()})
    made = type("Unpickler", (theirs.Unpickler,), {"load": load})
    return types.SimpleNamespace(Unpickler=made, load=with_names(theirs.load, {"Unpickler": made}))


@contextlib.contextmanager
def checked(*, checks=True):
    """Checks what was made in it as torch.load(weights_only=True) does, and raises what it raises.

    checks: False: torch forgets it; of tensors without bytes there is nothing to check.
    """
    before, made = getattr(_loads, "made", None), []  # before: of a load whose map_location begins this one
    try:
        _loads.made = made
        yield
        if checks and made:
            validate = _of_this_load("_validate_loaded_sparse_tensors")
            with _switch.held:
                validate(**_arguments())
    finally:
        made.clear()
        _loads.made = before
