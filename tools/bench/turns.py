# SPDX-License-Identifier: BSD-3-Clause
"""Taking turns: files are made cold or warm, and the disk's limit takes part."""

import gc
import os
import random

import report as reports
from tool import MIB, note

COLD, WARM = "cold", "warm"

# Settings that are tried: direct or not, MiB of a request, threads; MiB, requests at a time.
RAW = [(True, 4, 1), (True, 4, 2), (True, 4, 4), (True, 4, 8), (True, 1, 4), (False, 4, 2)]
QUICK_RAW = [(True, 4, 2)]
FIO_DIRECT = [(1, 4), (1, 16), (4, 2), (4, 8)]
FIO_BUFFERED = [(1, 1), (1, 2), (4, 2)]


class Turn:
    """One who takes part: run() returns seconds; the file is made cold, warm, or left as it is."""

    def __init__(self, name, run, path, cache):
        self.name, self.run, self.path, self.cache = name, run, path, cache


class Turns:
    """Runs the rounds of one case after the other, and keeps remarks for the report."""

    def __init__(self, options, folder):
        import raw

        self.raw, self.options, self.folder = raw, options, folder
        self.remarks, self.chosen = [], None
        self.n_not_counted = 1  # rounds; each is for warming up and checking

    def remark(self, text):
        if text not in self.remarks:
            note(text)
            self.remarks.append(text)

    def limit(self, path):
        """The best settings of our bare loop and of fio for reading a file, after one try of each."""
        if self.chosen is None:
            self.chosen = self.best(self.raw_turns(path), 2, "no raw reads")
            if self.raw.fio_version() is None:
                self.remark("fio is not installed: the limit is our own loop's")
            else:
                self.chosen += self.best(self.fio_turns(path, True), 2, "no direct reads by fio")
                self.chosen += self.best(self.fio_turns(path, False), 1, "no buffered reads by fio")
        elif self.options.quick:  # fio alone takes half a second to start and end
            return [turn for turn in self.chosen if not turn.name.startswith("fio")]
        return self.chosen

    def raw_turns(self, path):
        reads = self.raw.RawReads(path)
        for direct, block, n in QUICK_RAW if self.options.quick else RAW:
            name = f"raw {'direct' if direct else 'buffered'}, {block} MiB x {n}"
            yield Turn(name, lambda a=(block * MIB, n, direct): reads.read(*a), path, COLD)

    def fio_turns(self, path, direct):
        settings = FIO_DIRECT if direct else FIO_BUFFERED
        for block, depth in settings[:1] if self.options.quick else settings:
            name = f"fio {'direct' if direct else 'buffered'}, {block} MiB x {depth}"
            yield Turn(name, lambda a=(block * MIB, depth, direct): self.raw.fio_read(path, *a),
                       path, COLD)

    def best(self, turns, n, otherwise):
        tried = []
        for turn in turns:
            try:
                seconds = self.measure_turn(turn)
            except OSError as error:
                self.remark(f"{otherwise}: {error.strerror or error}")
                break
            if seconds:
                tried.append((seconds, len(tried), turn))
        return [turn for _, _, turn in sorted(tried)[:n]]

    # ---- taking turns ----

    def measure_turn(self, turn):
        """Seconds; None: the file was not cold, or not warm, as it should be."""
        gc.collect()
        if turn.cache:
            nbytes = os.path.getsize(turn.path)
            self.raw.warm_memory(self.folder, nbytes)
            self.raw.warm_large_pages(nbytes)
            self.raw.evict(turn.path) if turn.cache == COLD else self.raw.warm(turn.path)
            part = self.raw.residency(turn.path)
            if part > 0.01 if turn.cache == COLD else part < 0.99:
                self.remark(f"a turn of {turn.name} was not {turn.cache}: {part:.1%} of the file "
                            "were in the page cache; it is not counted")
                return None
        return turn.run()

    def rounds(self, case, turns, check=None):
        """[{figure: seconds}], one a round."""
        made = []
        for number in range(1 - self.n_not_counted, self.options.rounds + 1):
            note(f"({case}) " + (f"round {number} of {self.options.rounds}" if number
                                 else "warming up, checking"))
            figures = {}
            if not number and check:
                check()
            for turn in random.Random(number).sample(turns, len(turns)):
                seconds = self.measure_turn(turn)
                if seconds:
                    figures[turn.name] = seconds
            if number:
                made.append(figures)
        return made

    def section(self, case, what, turns, rows, check=None, size=None, derive=None):
        """Runs a case. rows: its ratios; derive: adds figures to those of a round."""
        self.remarks = []
        turns = turns()
        rounds = self.rounds(case, turns, check)
        for each in rounds if derive else []:
            derive(each)
        nbytes = size["nbytes"] if size else None
        figures = {}
        names = [*(turn.name for turn in turns), *(name for each in rounds for name in each)]
        for name in dict.fromkeys(names):
            seconds = [each[name] for each in rounds if name in each]
            if seconds:
                figures[name] = reports.figure(seconds, nbytes)
        return {"case": case, "letter": case, "what": what, **(size or {}), "figures": figures,
                "ratios": reports.ratios(rows, rounds), "costs": [], "remarks": self.remarks}
