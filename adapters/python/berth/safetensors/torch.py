# SPDX-License-Identifier: BSD-3-Clause
"""The functions of safetensors.torch."""

import collections
import io

import torch

from berth._counters import count_weights
from berth._errors import shown
from berth.safetensors._errors import SafetensorError, as_the_package
from berth.safetensors._open import safe_open
from berth.safetensors._save import opened_bytes, save_rows

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]

T = torch.Tensor  # whose methods are called: a file can give a tensor attributes of their names (Y5)


def load_file(filename, device="cpu", *, backend="mmap"):
    """All tensors of a file, by their names: a dict. The parameters and errors are those of safe_open."""
    with safe_open(filename, "pt", device, backend=backend) as file:
        tensors = file.get_tensors()
    count_weights("load")
    return tensors


def load(data):
    """All tensors of a file that is in memory: bytes."""
    with as_the_package(), opened_bytes(data) as file:
        tensors = file._file.value(None, False, False, False, None, True, None)
    count_weights("load")
    return tensors


def save_file(tensors, filename, metadata=None):
    """Saves a dict of tensors to a path or "s3://bucket/key": all or nothing, as berth.save, with the package's bytes.

    metadata: a dict of texts, for the file's head
    Raises: ValueError: a value is no tensor, is sparse or not contiguous; RuntimeError: tensors share memory;
        SafetensorError: the format has no such dtype, a storage was freed, or it cannot be written.
    """
    _save(tensors, filename, metadata)


def save(tensors, metadata=None):
    """The bytes of save_file."""
    made = io.BytesIO()
    _save(tensors, made, metadata)
    return made.getvalue()


def _save(tensors, target, metadata):
    _check(tensors)
    kept = {key: T.resolve_neg(T.resolve_conj(T.cpu(T.detach(tensor)))) for key, tensor in tensors.items()}
    rows = [(key, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), T.data_ptr(tensor))
            for key, tensor in kept.items()]
    save_rows(rows, target, metadata, kept)
    count_weights("save")


def _check(tensors):
    if not isinstance(tensors, dict):
        raise ValueError(f"the tensors are a dict of them by their names, not {type(tensors)}")
    for key, tensor in tensors.items():
        if not isinstance(key, str):
            raise TypeError(f"a key is a str, not {type(key)}")
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"`{shown(key)}` is of {type(tensor)}, not a torch.Tensor")
    sparse = [key for key, tensor in tensors.items() if tensor.layout != torch.strided]
    if sparse:
        raise ValueError(f"the format has no sparse tensors: {sparse}. Save tensor.to_dense()")
    if any(tensor.device.type == "meta" for tensor in tensors.values()):
        raise NotImplementedError("a tensor on the device meta has no data")
    shared = [names for names in shared_names(tensors) if len(names) > 1]
    if shared:
        raise RuntimeError(f"these tensors share memory: {shared}. A file would have it several times. save_model() "
                           "writes each once; or save tensor.clone()")
    for key, tensor in tensors.items():
        storage = T.untyped_storage(tensor)
        if _end(tensor) > storage.data_ptr() + storage.nbytes():
            raise SafetensorError(f"{shown(key)}: its storage, of {storage.nbytes()} bytes, has less than its elements")
        if not T.is_contiguous(tensor):
            raise ValueError(f"`{shown(key)}` is not contiguous: save tensor.contiguous(); if it is a part of another "
                             "tensor, save that one")


def _end(tensor):
    """The address behind the last element."""
    n = sum((size - 1) * stride for size, stride in zip(tensor.shape, T.stride(tensor))) + 1 if T.numel(tensor) else 0
    return T.data_ptr(tensor) + n * T.element_size(tensor)


def shared_names(tensors):
    """Sets of names: of each set the memory of the tensors overlaps, one after the other."""
    by_storage = collections.defaultdict(list)
    for key, tensor in tensors.items():
        if tensor.device.type != "meta":
            storage = T.untyped_storage(tensor)
            if storage.data_ptr() and storage.nbytes():
                by_storage[tensor.device, storage.data_ptr(), storage.nbytes()].append(key)
    found = []
    for keys in by_storage.values():
        last = None
        for first, end, key in sorted((T.data_ptr(tensors[key]), _end(tensors[key]), key) for key in keys):
            if last is None or first >= last:
                found.append(set())
            found[-1].add(key)
            last = end
    return found


def _is_whole(tensor):
    """Whether it has all bytes of its storage."""
    storage = T.untyped_storage(tensor)
    return (T.data_ptr(tensor) == storage.data_ptr()
            and T.numel(tensor) * T.element_size(tensor) == storage.nbytes())


def left_out(state, preferred=()):
    """{a name that is kept: the names of the same memory that are left out}.

    preferred: names that are kept if they can be
    Raises: RuntimeError: of tensors that share memory none has all of it.
    """
    found = {}
    for names in shared_names(state):
        if len(names) < 2:
            continue
        whole = {name for name in names if _is_whole(state[name])}
        if not whole:
            raise RuntimeError(f"these tensors share memory, and none of them has all of it: {sorted(names)}. A file "
                               "would have more than the model: save tensor.clone() of them")
        kept = min(whole & set(preferred) or whole)
        found[kept] = sorted(names - {kept})
    return found


def save_model(model, filename, metadata=None, force_contiguous=True):
    """Saves a module's state_dict. Of tensors that share memory one is written, and the metadata name the others.

    force_contiguous: tensors that are not contiguous are copied; else they are refused
    Raises: as save_file.
    """
    state = model.state_dict()
    texts = metadata
    for kept, names in left_out(state).items():
        for name in names:
            texts = {} if texts is None else texts
            texts.setdefault(name, kept)
            del state[name]
    if force_contiguous:
        state = {key: T.contiguous(tensor) for key, tensor in state.items()}
    _save(state, filename, texts)


def load_model(model, filename, strict=True, device="cpu", *, backend="mmap"):
    """Loads a file into a module, names of tensors that share memory included.

    Returns: (names of the module that the file has not, names of the file that the module has not)
    Raises: RuntimeError: with strict there are such; and as load_file.
    """
    state = load_file(filename, device, backend=backend)
    ties = left_out(model.state_dict(), state)
    result = model.load_state_dict(state, strict=False)
    missing, unexpected = set(result.missing_keys), list(result.unexpected_keys)
    for names in ties.values():
        unexpected += [name for name in names if name not in missing]
        missing -= set(names)
    if strict and (missing or unexpected):
        lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                lines.append(f"    {what} key(s) in state_dict: " + ", ".join(f'"{name}"' for name in sorted(names)))
        raise RuntimeError("\n".join(lines))
    return missing, unexpected
