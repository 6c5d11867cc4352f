# SPDX-License-Identifier: BSD-3-Clause
"""Sparse tensors are checked at the end of a load, by torch, which has collected them."""

import functools
import inspect


@functools.cache
def _arguments():
    """Since PyTorch 2.15 what weights_only=True loads is always checked, and for that asked for."""
    import torch

    parameters = inspect.signature(torch._utils._validate_loaded_sparse_tensors).parameters
    return {"weights_only": True} if "weights_only" in parameters else {}


def check():
    """Checks what torch.load(weights_only=True) checks, and raises what it raises."""
    import torch

    torch._utils._validate_loaded_sparse_tensors(**_arguments())


def forget():
    """Those of a load that failed; since PyTorch 2.15 each thread has its own."""
    import torch

    if hasattr(torch._utils, "_get_sparse_tensors_to_validate"):
        torch._utils._get_sparse_tensors_to_validate().clear()
    else:
        torch._utils._sparse_tensors_to_validate.clear()
