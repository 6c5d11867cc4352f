# SPDX-License-Identifier: BSD-3-Clause
"""Traces by the rules of the Trace Event Format, and their sums.

The rules are those of "Trace Event Format" (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU):
JSON with a list "traceEvents"; phases B, E, X, C, M; times in microseconds; slices of a thread nest.
"""

import collections
import decimal
import json

Slice = collections.namedtuple("Slice", "name categories begin end args track")


def nanoseconds(microseconds):
    number = decimal.Decimal(microseconds) * 1000
    assert number == int(number) and number >= 0, microseconds
    return int(number)


class Trace:
    """A trace that keeps the rules; an AssertionError says which one it breaks."""

    def __init__(self, path, may_be_cut=False):
        with open(path, encoding="utf-8") as file:  # UTF-8, strictly
            self.whole = json.load(file, parse_float=decimal.Decimal)
        self.events = self.whole["traceEvents"]
        self.names, self.slices, self.counters = {}, [], collections.defaultdict(list)
        open_slices = collections.defaultdict(list)
        for event in self.events:
            self.check_event(event)
            track = event["pid"], event["tid"]
            {"M": self.add_name, "C": self.add_counter, "X": self.add_complete,
             "B": lambda event, track: open_slices[track].append(event),
             "E": lambda event, track: self.add_ended(open_slices[track].pop(), event, track),
             }[event["ph"]](event, track)
        self.check_beginnings()
        assert may_be_cut or not any(open_slices.values()), f"not ended: {open_slices}"
        self.check_nesting()

    @staticmethod
    def check_event(event):
        assert event["ph"] in "BEXCM" and isinstance(event["name"], str), event
        assert type(event["pid"]) is int and type(event["tid"]) is int, event
        nanoseconds(event["ts"])
        assert isinstance(event["args"], dict), event

    def add_name(self, event, track):
        assert event["name"] in ("thread_name", "process_name"), event
        if event["name"] == "thread_name":
            assert event["args"]["name"], event
            self.names[track] = event["args"]["name"]

    def add_counter(self, event, track):
        del track  # counters belong to the process
        assert event["args"] and all(type(value) is int and value >= 0 for value in event["args"].values()), event
        self.counters[event["name"]].append((nanoseconds(event["ts"]), *event["args"].values()))

    def add_slice(self, event, end, args, track):
        begin = nanoseconds(event["ts"])
        self.slices.append(Slice(event["name"], event["cat"].split(","), begin, end, args, track))
        assert begin <= end and track in self.names, event

    def add_complete(self, event, track):
        self.add_slice(event, nanoseconds(event["ts"]) + nanoseconds(event["dur"]), event["args"], track)

    def add_ended(self, begun, ended, track):
        self.add_slice(begun, nanoseconds(ended["ts"]), {**begun["args"], **ended["args"]}, track)

    def check_beginnings(self):
        """Perfetto takes a complete event for the outer one, if another slice begins with it, and ends that."""
        begun = {(event["tid"], event["ts"]) for event in self.events if event["ph"] == "B"}
        assert not any((event["tid"], event["ts"]) in begun for event in self.events if event["ph"] == "X")

    def check_nesting(self):
        tracks = collections.defaultdict(list)
        for each in self.slices:
            tracks[each.track].append(each)
        for slices in tracks.values():
            around = []
            for each in sorted(slices, key=lambda each: (each.begin, -each.end)):
                while around and around[-1].end <= each.begin:
                    around.pop()
                assert not around or each.end <= around[-1].end, (around[-1], each)
                around.append(each)

    # ---- what is in it ----

    def operations(self, name=None):
        return [each for each in self.slices if "operation" in each.categories and name in (None, each.name)]

    def of(self, operation, category):
        """The slices of a category, on all threads, of an operation."""
        return [each for each in self.slices if category in each.categories and
                each.args["operation"] == operation.args["operation"] and
                operation.begin <= each.begin and each.end <= operation.end]

    def check_requests(self, operation, category):
        """Bytes and requests are those of the statistics."""
        requests = self.of(operation, category)
        assert sum(each.args["nbytes"] for each in requests) == operation.args["moved_nbytes"], operation
        assert sum(each.args.get("n_requests", 1) for each in requests) == operation.args["n_requests"], operation

    def check_seconds(self, operation):
        """Times of stages, and those that all workers took together, are those of the statistics."""
        args, stages = operation.args, {each.name: each for each in self.of(operation, "stage")}
        assert operation.end - operation.begin == nanoseconds(args["total_us"]), operation
        for name in {"plan", "copy", "transfer", "sync"} & set(stages):
            near(stages[name].end - stages[name].begin, args[name + "_us"], 1)
        disk, work = self.of(operation, "disk"), self.of(operation, "work")
        waits = [each for each in self.of(operation, "wait") if each.name == "wait for a device"]
        near(total(disk), args["disk_us"], len(disk))
        near(total(work) - total(waits), args["render_us"], len(work + waits))
        near(sum(nanoseconds(each.args.get("crc32_us", 0)) for each in work), args["crc32_us"], len(work))

    def check_counters(self):
        in_flight = sorted(self.counters["requests in flight"])
        assert in_flight and in_flight[-1][1] == 0, in_flight
        assert all(abs(b[1] - a[1]) == 1 for a, b in zip(in_flight, in_flight[1:]) if a[0] != b[0]), in_flight
        for name in ("bytes read", "bytes written"):
            counts = [count for _, count in sorted(self.counters[name])]
            moved = sum(each.args["nbytes"] for each in self.slices if "request" in each.categories and
                        (each.name == "write") == (name == "bytes written"))
            assert counts == sorted(counts) and max(counts, default=0) == moved, (name, counts, moved)


def total(slices):
    return sum(each.end - each.begin for each in slices)


def near(count, microseconds, n_parts):
    """Each part is rounded to nanoseconds, here and in the statistics."""
    assert abs(count - nanoseconds(microseconds)) <= 2 * n_parts + 1, (count, microseconds, n_parts)
