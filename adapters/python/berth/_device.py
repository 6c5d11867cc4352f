# SPDX-License-Identifier: BSD-3-Clause
"""Devices that have memory of their own: which of them Berth knows, and what their streams still do."""

from berth import _native


def _is_known(device):
    """Whether Berth can reach its memory, and PyTorch gives the driver's events: CUDA has both."""
    import torch

    module = getattr(torch, device.type, None)
    return hasattr(getattr(module, "Event", None), "cuda_event") and _native.has_device(str(device))


def ready(device, storage=None):
    """An event behind all that the device's current stream has to do now.

    device: a torch.device. storage: one that is to be saved from there; None: memory is to be filled.
    Returns: (Berth's name of the device, the driver's event as a number, the event's owner); None:
        Berth cannot use the device, or PyTorch has another name for it in files.
    Raises: RuntimeError: the stream is being captured into a graph, where nobody can wait for it.
    """
    import torch

    name = str(device)
    if not _is_known(device) or (storage is not None
                                 and torch.serialization.location_tag(storage) != name):
        return None
    module = getattr(torch, device.type)
    with module.device(device):
        if module.is_current_stream_capturing():
            raise RuntimeError(f"{name}: its current stream is being captured into a graph: save and "
                               "load outside of the capture")
        event = module.Event()
        event.record()
    return name, event.cuda_event, event


def places(restore, wanted):
    """Memory on devices for storages that are to be loaded there.

    restore: PyTorch's function (storage, location) -> storage, which moves a storage by its location.
    wanted: (nbytes, location) of each.
    Returns: a list: for each (an UntypedStorage, its address, the device's name, an event behind all
        that may still use the memory, its owner); None: it goes elsewhere, by `restore`.
    """
    import torch

    devices = {location: restore(torch.UntypedStorage(0), location).device
               for location in dict.fromkeys(location for _, location in wanted)}
    known = {device for device in devices.values() if device.type != "cpu" and _is_known(device)}
    storages = [torch.UntypedStorage(nbytes, device=devices[location]) if devices[location] in known
                else None for nbytes, location in wanted]
    events = {device: ready(device) for device in known}  # behind the last use of what was freed
    return [storage and (storage, storage.data_ptr(), *events[storage.device]) for storage in storages]
