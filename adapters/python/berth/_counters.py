# SPDX-License-Identifier: BSD-3-Clause
"""Counts of saves and loads."""

from berth._lock import Lock

_lock = Lock()
WAYS = ("values", "records", "torch")
_counts = {"save": dict.fromkeys(WAYS, 0), "load": dict.fromkeys(WAYS, 0), "reasons": {},
           "safetensors": dict.fromkeys(("open", "load", "save", "package"), 0)}


def count(operation, way):
    with _lock.held:
        _counts[operation][way] += 1


def count_reason(reason):
    with _lock.held:
        _counts["reasons"][reason] = _counts["reasons"].get(reason, 0) + 1


def count_weights(operation):
    with _lock.held:
        _counts["safetensors"][operation] += 1


def counters():
    """What was saved and loaded since the process began.

    Returns: {"save": {"values": n, "records": n, "torch": n}, "load": {the same},
        "reasons": {reason: n}, "safetensors": {...}}. They are operations that succeeded. "values": plain values, in C.
        "records": pickled or unpickled by PyTorch, written or read by Berth. "torch": left to
        PyTorch under berth.install(), for one of the reasons. "safetensors": calls of berth.safetensors, also under
        berth.install(safetensors=True): {"open": n, "load": n, "save": n, "package": n}; the last were left to the
        package, for frameworks that Berth does not have.
    Threads: any.
    """
    with _lock.held:
        return {key: dict(value) for key, value in _counts.items()}
