# SPDX-License-Identifier: BSD-3-Clause
"""When the fast way is not the right one: someone has changed what torch.save or torch.load do."""

import copyreg

_baseline = None


def _plain_types():
    import collections

    import torch

    return (complex, collections.OrderedDict, collections.Counter, torch.Tensor, torch.nn.Parameter,
            torch.Size, torch.device, torch.dtype, torch.layout, torch.qscheme,
            torch.UntypedStorage, torch.TypedStorage)


def _reducers():
    return [copyreg.dispatch_table.get(kind) for kind in _plain_types()]


def _expected_reducers():
    """What copyreg holds without the program's help: that of complex, and torch's own of layouts."""
    global _baseline
    if _baseline is None:
        _baseline = [reducer if getattr(reducer, "__module__", "") in ("copyreg", "torch.serialization")
                     else None for reducer in _reducers()]
    return _baseline


def reason():
    """Why tensors or their pickling are not what they seem; "": they are."""
    import torch

    serialization = torch.serialization
    if torch._C._len_torch_function_stack() > 0:
        return "a torch function mode is active"
    if torch._C._len_torch_dispatch_stack() > 0:
        return "a torch dispatch mode is active"
    if torch._guards.TracingContext.try_get() is not None:
        return "torch.compile is tracing"
    if getattr(serialization._serialization_tls, "skip_data", False):
        return "torch.serialization.skip_data is active"
    if _reducers() != _expected_reducers():
        return "copyreg has a reducer for a type of torch's or a plain type"
    first = serialization._package_registry[0]
    if first[1] is not serialization._cpu_tag or first[2] is not serialization._cpu_deserialize:
        return "torch.serialization.register_package has put something before the CPU"
    return ""
