# SPDX-License-Identifier: BSD-3-Clause
"""Counts of saves and loads."""

from berth._lock import Lock

_lock = Lock()
WAYS = ("values", "records", "torch")
_counts = {"save": dict.fromkeys(WAYS, 0), "load": dict.fromkeys(WAYS, 0), "reasons": {}}


def count(operation, way):
    with _lock.held:
        _counts[operation][way] += 1


def count_reason(reason):
    with _lock.held:
        _counts["reasons"][reason] = _counts["reasons"].get(reason, 0) + 1


def counters():
    """What was saved and loaded since the process began.

    Returns: {"save": {"values": n, "records": n, "torch": n}, "load": {the same},
        "reasons": {reason: n}}. They are operations that succeeded. "values": plain values, in C.
        "records": pickled or unpickled by PyTorch, written or read by Berth. "torch": left to
        PyTorch under berth.install(), for one of the reasons.
    Threads: any.
    """
    with _lock.held:
        return {key: dict(value) for key, value in _counts.items()}
