# SPDX-License-Identifier: BSD-3-Clause
"""Which bytes an index of a tensor asks for, by the rules of the package's slices that are read."""

import operator

from berth.safetensors._errors import SafetensorError


def ranges_of(index, shape):
    """The smallest box of a tensor that has all elements of an index.

    index: ints, slices of a positive step, one `...`, in a tuple or alone; []: no row
    Returns: (first of each dimension, length of each dimension, the index inside the box).
    Raises: SafetensorError: it has something else, or is not inside; OverflowError: a slice has a negative bound.
    """
    starts, lengths, rest = [], [], []
    for i, (item, size) in enumerate(zip(_items(index, shape), shape)):
        if isinstance(item, slice):
            first, last, step = _bounds(item, size, i, index, shape)
            n = max(-(-(last - first) // step), 0)
            starts.append(first if n else 0)
            lengths.append((n - 1) * step + 1 if n else 0)
            rest.append(slice(None, None, step))
        else:
            starts.append(_position(item, size, i, index, shape))
            lengths.append(1)
            rest.append(0)
    return starts, lengths, tuple(rest)


def _items(index, shape):
    """An int or a slice for each dimension."""
    if isinstance(index, list):
        if index:
            raise SafetensorError("Non empty lists are not implemented")
        index = slice(0, 0)
    items = list(index) if isinstance(index, tuple) else [index]
    n_rests = sum(each is Ellipsis for each in items)
    if n_rests > 1:
        raise SafetensorError("Only one ellipsis (...) is allowed in slice index")
    for i, each in enumerate(items):
        is_int = hasattr(each, "__index__") and not getattr(each, "shape", ())
        if not (each is Ellipsis or isinstance(each, slice) or is_int):
            raise SafetensorError(f"Unsupported slice index at position {i}: expected slice, int, or ellipsis")
    missing = len(shape) - (len(items) - n_rests)
    if missing < 0:
        raise _during(index, shape, "more slicing indexes than dimensions in tensor")
    at = next((i for i, each in enumerate(items) if each is Ellipsis), len(items))
    return items[:at] + [slice(None)] * missing + items[at + n_rests:]


def _bounds(item, size, i, index, shape):
    """(first, end, step) of a slice."""
    step = 1 if item.step is None else operator.index(item.step)
    if step < 1:
        raise SafetensorError(f"Slice step must be a positive integer, got {step}")
    first = 0 if item.start is None else operator.index(item.start)
    last = size if item.stop is None else operator.index(item.stop)
    if first < 0 or last < 0:
        raise OverflowError("can't convert negative int to unsigned")
    if last > size or item.start is not None and first >= size:
        raise _outside(max(last - 1, first), size, i, index, shape)
    return first, last, step


def _position(item, size, i, index, shape):
    at = operator.index(item)
    if at < -size:
        raise SafetensorError(f"Invalid index {at} for dimension {i} of size {size}")
    if at >= size:
        raise _outside(at, size, i, index, shape)
    return at % size


def _outside(at, size, i, index, shape):
    return _during(index, shape, f"index {at} out of bounds for tensor dimension #{i} of size {size}")


def _during(index, shape, why):
    return SafetensorError(f"Error during slicing {_shown(index)} with shape {list(shape)}: {why}")


def _shown(index):
    return "[" + ", ".join(map(_shown_item, index if isinstance(index, tuple) else (index, ))) + "]"


def _shown_item(item):
    if item is Ellipsis:
        return "..."
    if not isinstance(item, slice):
        return str(item)
    text = ":".join("" if each is None else str(each) for each in (item.start, item.stop))
    return text if item.step in (None, 1) else f"{text}:{item.step}"
