# SPDX-License-Identifier: BSD-3-Clause
"""Sparse tensors are checked at the end of a load, by torch, which has collected them."""

import contextlib
import functools
import inspect
import sys


@functools.cache
def _arguments():
    """Since PyTorch 2.15 what weights_only=True loads is always checked, and for that asked for."""
    import torch

    parameters = inspect.signature(torch._utils._validate_loaded_sparse_tensors).parameters
    return {"weights_only": True} if "weights_only" in parameters else {}


@contextlib.contextmanager
def checked(*, checks=True):
    """Checks what was made in it as torch.load(weights_only=True) does, and raises what it raises.

    checks: False: torch forgets it; of tensors without bytes there is nothing to check.
    """
    try:
        yield
        if checks and "torch" in sys.modules:
            sys.modules["torch"]._utils._validate_loaded_sparse_tensors(**_arguments())
    finally:
        _forget()


def _forget():
    """Those of a load that failed; since PyTorch 2.15 each thread has its own."""
    if "torch" not in sys.modules:
        return
    utils = sys.modules["torch"]._utils
    if hasattr(utils, "_get_sparse_tensors_to_validate"):
        utils._get_sparse_tensors_to_validate().clear()
    else:
        utils._sparse_tensors_to_validate.clear()
