# SPDX-License-Identifier: BSD-3-Clause
"""Which bytes an index of a tensor asks for."""

import operator

from berth.safetensors._errors import SafetensorError


def ranges_of(index, shape, is_strict):
    """The smallest box of a tensor that has all elements of an index.

    is_strict: by the rules of the package for numpy: what is not inside is an error. Else by Python's.
    Returns: (first of each dimension, length of each dimension, the index inside the box); None: it is an index of
        another kind, for the whole tensor.
    """
    items = _items(index, shape, is_strict)
    if items is None:
        return None
    starts, lengths, rest = [], [], []
    for i, (item, size) in enumerate(zip(items, shape)):
        if isinstance(item, slice):
            first, last, step = _bounds(item, size, i, is_strict, index, shape)
            n = max(-(-(last - first) // step), 0)
            starts.append(first if n else 0)
            lengths.append((n - 1) * step + 1 if n else 0)
            rest.append(slice(None, None, step))
        else:
            at = _position(item, size, i, is_strict, index, shape)
            if at is None:
                return None
            starts.append(at)
            lengths.append(1)
            rest.append(0)
    return starts, lengths, tuple(rest)


def _items(index, shape, is_strict):
    """An int or a slice for each dimension; None: it is another kind of index."""
    if isinstance(index, list):
        if index:
            if is_strict:
                raise SafetensorError("Non empty lists are not implemented")
            return None
        index = slice(0, 0)
    items = list(index) if isinstance(index, tuple) else [index]
    n_rests = sum(each is Ellipsis for each in items)
    if n_rests > 1:
        if is_strict:
            raise SafetensorError("Only one ellipsis (...) is allowed in slice index")
        return None
    for i, each in enumerate(items):
        is_known = each is Ellipsis or isinstance(each, slice) or (
            hasattr(each, "__index__") and not isinstance(each, bool) and not getattr(each, "shape", ()))
        if not is_known:
            if is_strict:
                raise SafetensorError(f"Unsupported slice index at position {i}: expected slice, int, or ellipsis")
            return None
    missing = len(shape) - (len(items) - n_rests)
    if missing < 0:
        if is_strict:
            raise SafetensorError(f"{len(items) - n_rests} indices for a tensor of {len(shape)} dimensions")
        return None
    at = next((i for i, each in enumerate(items) if each is Ellipsis), len(items))
    return items[:at] + [slice(None)] * missing + items[at + n_rests:]


def _bounds(item, size, i, is_strict, index, shape):
    if not is_strict:
        return item.indices(size) if item.step is None or item.step > 0 else _refuse_step(item.step, ValueError)
    step = 1 if item.step is None else operator.index(item.step)
    if step < 1:
        _refuse_step(step, SafetensorError)
    first = 0 if item.start is None else operator.index(item.start)
    last = size if item.stop is None else operator.index(item.stop)
    if first < 0 or last < 0:
        raise SafetensorError(f"Slices of negative bounds are not implemented: {_shown(index)}")
    if last > size or first > size:
        raise _outside(max(last, first + 1) - 1, size, i, index, shape)
    return first, last, step


def _refuse_step(step, kind):
    raise kind(f"Slice step must be a positive integer, got {step}" if kind is SafetensorError
               else "step must be greater than zero")


def _position(item, size, i, is_strict, index, shape):
    at = operator.index(item)
    if -size <= at < size:
        return at % size
    if not is_strict:
        return None  # torch says what is wrong
    if at < 0:
        raise SafetensorError(f"Invalid index {at} for dimension {i} of size {size}")
    raise _outside(at, size, i, index, shape)


def _outside(at, size, i, index, shape):
    return SafetensorError(f"Error during slicing {_shown(index)} with shape {list(shape)}: index {at} out of bounds "
                           f"for tensor dimension #{i} of size {size}")


def _shown(index):
    return "[" + ", ".join(map(_shown_item, index if isinstance(index, tuple) else (index, ))) + "]"


def _shown_item(item):
    if item is Ellipsis:
        return "..."
    if not isinstance(item, slice):
        return str(item)
    text = ":".join("" if each is None else str(each) for each in (item.start, item.stop))
    return text if item.step in (None, 1) else f"{text}:{item.step}"
