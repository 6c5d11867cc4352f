# SPDX-License-Identifier: BSD-3-Clause
"""berth.install(safetensors=True): the package's functions are Berth's, under every name that they have."""

import functools
import sys

from berth._counters import count_weights
from berth.safetensors import _open, _save

_pairs = []  # (the package's, Berth's); it is made once, so that each object is known again
_is_in_place = False


class safe_open(_open.safe_open):
    __doc__ = _open.safe_open.__doc__

    def __new__(cls, filename, framework, device="cpu", **named):
        """The package's, for frameworks that Berth does not have."""
        if framework in _open.OF_THE_PACKAGE:
            count_weights("package")
            return _pairs[0][0](filename, framework, device, **named)
        return super().__new__(cls)


def _made_pairs():
    import safetensors
    import safetensors.numpy
    import safetensors.torch

    import berth.safetensors.numpy as of_numpy
    import berth.safetensors.torch as of_torch

    if not _pairs:
        made = [(safetensors.safe_open, safe_open)]
        made.extend((getattr(theirs, name), getattr(ours, name)) for theirs, ours, names in (
            (safetensors, _save, ("TensorSpec", "deserialize", "serialize", "serialize_file")),
            (safetensors.torch, of_torch, ("load", "load_file")),
            (safetensors.numpy, of_numpy, ("load", "load_file", "save", "save_file"))) for name in names)
        made.extend((getattr(safetensors.torch, name), _in_its_words(getattr(of_torch, name), safetensors.torch.save))
                    for name in ("save", "save_file"))
        _pairs.extend(made)
    return _pairs


def _in_its_words(function, theirs):
    """What may not be saved is refused by the package, which looks at all tensors before it writes."""

    @functools.wraps(function)
    def save(tensors, *arguments, **named):
        try:
            return function(tensors, *arguments, **named)
        except (ValueError, RuntimeError):
            theirs(tensors)
            raise

    return save


def put_in_place():
    """Under each name of each module. load_model and save_model stay the package's, and call these."""
    global _is_in_place
    pairs = _made_pairs()
    _is_in_place = True  # before: ^C half way leaves some to be given back
    _exchange({id(theirs): ours for theirs, ours in pairs})


def give_back():
    """Does nothing if they are not in place: it looks at every module."""
    global _is_in_place
    if _is_in_place:
        _exchange({id(ours): theirs for theirs, ours in _pairs})
        _is_in_place = False


def _exchange(by_id):
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is not dict or getattr(module, "__name__", "").startswith("berth."):
            continue
        for name, value in list(names.items()):
            if id(value) in by_id:
                names[name] = by_id[id(value)]
