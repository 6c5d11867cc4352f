# SPDX-License-Identifier: BSD-3-Clause
"""Counts all references of a debug build of CPython (--with-pydebug; Debian: python3.11-dbg).

usage: references.py FOLDER     prints "ok", and exits with 0, if no operation loses a reference

PYTHONPATH names the package berth and a PyTorch: a debug build loads modules of others.
"""

import asyncio
import gc
import os
import sys
import threading
import warnings

import berth
import torch

PATH = os.path.join(sys.argv[1], "v.pt")
ROUNDS = 300
MOST = 60  # references more after ROUNDS rounds: what caches and free lists hold varies

VALUE = {"t": [torch.ones(3000) for _ in range(5)], "text": "a text" * 3, "items": [1, 2.5, {3}],
         "big": 2**80, "z": 1 + 2j, "parameter": torch.nn.Parameter(torch.ones(3)),
         "sparse": torch.eye(3).to_sparse()}


class Writer:
    def write(self, data):
        return len(data)


class Broken:
    def write(self, data):
        raise ZeroDivisionError


def raises(error, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def no_threads():
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()


def refuse(storage, location):
    raise ZeroDivisionError


def save():
    berth.save(VALUE, PATH)


def save_to_objects():
    berth.save(VALUE, Writer())
    with open(PATH, "wb") as file:
        berth.save(VALUE, file)


def save_fails():
    raises(TypeError, berth.save, [VALUE, threading.Lock()], PATH)
    raises(berth.Error, berth.save, VALUE, os.path.join(PATH, "none"))
    raises(ZeroDivisionError, berth.save, VALUE, Broken())


def save_async():
    for snapshot in (True, False):
        berth.save_async(VALUE, PATH, snapshot=snapshot).result()
        job = berth.save_async(VALUE, Writer(), snapshot=snapshot)
        job.add_done_callback(lambda job: None)
        job.staged(), job.progress, job.result(), job.done()


def save_async_dropped_and_cancelled():
    berth.save_async(VALUE, PATH)
    berth.save_async(VALUE, PATH).cancel()
    no_threads()


def save_async_fails():
    raises(TypeError, berth.save_async, [VALUE, threading.Lock()], PATH)
    raises(berth.Error, berth.save_async, VALUE, os.path.join(PATH, "none"))
    raises(ZeroDivisionError, berth.save_async(VALUE, Broken()).result)
    no_threads()


def save_async_awaited():
    async def main():
        job = berth.save_async(VALUE, PATH)
        await asyncio.gather(job, job)

    asyncio.run(main())
    no_threads()


def load():
    for options in ({}, {"mmap": True}, {"map_location": "meta"},
                    {"map_location": lambda storage, location: storage}):
        berth.load(PATH, **options)


def load_fails():
    raises(berth.MissingFileError, berth.load, PATH + ".none")
    raises(ZeroDivisionError, berth.load, PATH, refuse)


def use_file():
    with berth.open(PATH) as file:
        file["t.1"], file.numpy("t.2"), file.slice("t.3")[1:5], file.keys(), file.info
        raises(KeyError, lambda: file["none"])
    berth.verify(PATH)


def grown(operation):
    """References more after ROUNDS rounds."""
    gc.collect()
    before = sys.gettotalrefcount()
    for _ in range(ROUNDS):
        operation()
    no_threads()
    gc.collect()
    return sys.gettotalrefcount() - before


def main():
    warnings.simplefilter("ignore")
    berth.config.save.durability = "none"
    torch.set_num_threads(1)
    good = True
    for operation in (save, save_to_objects, save_fails, save_async, save_async_dropped_and_cancelled,
                      save_async_fails, save_async_awaited, save, load, load_fails, use_file):
        operation()
        # The least of several: what is lost is lost in each of them.
        least = min(grown(operation) for _ in range(3))
        good &= least <= MOST
        print(f"{operation.__name__}: {least} references more after {ROUNDS} rounds")
    print("ok" if good else "references are lost")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
