# SPDX-License-Identifier: BSD-3-Clause
"""Devices that have memory of their own: which of them Berth knows, and what their streams still do."""

from berth import _native


def ready(device, storage=None):
    """An event behind all that the device's current stream has to do now.

    device: a torch.device. storage: one that is to be saved from there; None: the memory is to be filled.
    Returns: (Berth's name of the device, the driver's event as a number, the event's owner); None:
        Berth cannot use the device, or PyTorch has another name for it in files.
    Raises: RuntimeError: the stream is being captured into a graph, where nobody can wait for it.
    """
    import torch

    name = str(device)
    module = getattr(torch, device.type, None)
    if not hasattr(module, "Event") or not _native.has_device(name):
        return None
    if storage is not None and torch.serialization.location_tag(storage) != name:
        return None
    with module.device(device):
        if module.is_current_stream_capturing():
            raise RuntimeError(f"{name}: its current stream is being captured into a graph: save and "
                               "load outside of it")
        event = module.Event()
        event.record()
    return name, event.cuda_event, event
