# SPDX-License-Identifier: BSD-3-Clause
"""Looks for references that operations lose or drop twice.

usage: references.py FOLDER     prints "ok", and exits with 0, if there are none

Any CPython: the references of all that modules have (types, functions, constants, None), and, with
BERTH_LONG=1, the blocks that Python has allocated. A debug build (--with-pydebug; Debian:
python3.11-dbg) counts every reference, but only those of modules that are built for it, as the
package's debug variant is. PyTorch is not: what goes through its C is left out there. PYTHONPATH
names the package berth and a PyTorch: a debug build loads modules of others.
"""

import array
import asyncio
import gc
import os
import sys
import threading
import time
import warnings

import berth
import torch
from berth import _job

PATH = os.path.join(sys.argv[1], "v.pt")
LONG = os.environ.get("BERTH_LONG", "0") not in ("", "0")
ROUNDS = 300 if LONG else 40
MOST = ROUNDS * 2 // 3  # what caches and free lists hold varies

PLAIN = {"text": "a text" * 3, "items": [1, 2.5, {3}], "big": 2**80, "z": 1 + 2j, "none": None}
VALUE = {"t": [torch.ones(3000) for _ in range(5)], "parameter": torch.nn.Parameter(torch.ones(3)),
         "sparse": torch.eye(3).to_sparse(), "dtype": torch.float16, **PLAIN}


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


def no_jobs():
    while _job._live:
        time.sleep(0.001)


def refuse(storage, location):
    raise ZeroDivisionError


def save(value):
    berth.save(value, PATH)


def save_to_objects(value):
    berth.save(value, Writer())
    with open(PATH, "wb") as file:
        berth.save(value, file)


def pickling_fails(value):
    for save in (berth.save, berth.save_async):
        raises(TypeError, save, [value, threading.Lock()], PATH)


def save_fails(value):
    raises(berth.Error, berth.save, value, os.path.join(PATH, "none"))
    raises(ZeroDivisionError, berth.save, value, Broken())


def save_async(value):
    for snapshot in (True, False):
        berth.save_async(value, PATH, snapshot=snapshot).result()
        job = berth.save_async(value, Writer(), snapshot=snapshot)
        job.add_done_callback(lambda job: None)
        job.staged(), job.progress, job.result(), job.done()
        del job
    no_jobs()


def save_async_dropped_and_cancelled(value):
    berth.save_async(value, PATH)
    berth.save_async(value, PATH).cancel()
    no_jobs()


def save_async_fails(value):
    raises(berth.Error, berth.save_async, value, os.path.join(PATH, "none"))
    raises(ZeroDivisionError, berth.save_async(value, Broken()).result)
    no_jobs()


def save_async_awaited(value):
    async def main():
        job = berth.save_async(value, PATH)
        await asyncio.gather(job, job)

    asyncio.run(main())
    no_jobs()


def load(_):
    for options in ({}, {"mmap": True}, {"map_location": "meta"},
                    {"map_location": lambda storage, location: storage}):
        try:
            berth.load(PATH, **options)
        except NotImplementedError:  # a PyTorch that checks the indices of sparse tensors, on meta
            pass


def load_fails(_):
    raises(berth.MissingFileError, berth.load, PATH + ".none")
    raises(ZeroDivisionError, berth.load, PATH, refuse)


def use_file(_):
    with berth.open(PATH) as file:
        file["t.1"], file.numpy("t.2"), file.slice("t.3")[1:5], file.keys(), file.info
        raises(KeyError, lambda: file["nothing"])
    berth.verify(PATH)


def look_at_file(_):
    with berth.open(PATH) as file:
        file.keys(), file.info, "nothing" in file
    berth.verify(PATH)


SAVES = (save, save_to_objects, save_fails, save_async, save_async_dropped_and_cancelled,
         save_async_fails, save_async_awaited)
LOADS = (load, load_fails, use_file, look_at_file)
BY_TORCH = (pickling_fails,)  # through its C, whatever the value


def references_of_modules():
    """Of all that the modules have now: what comes later is not compared."""
    known = {id(each): each for module in list(sys.modules.values()) if hasattr(module, "__dict__")
             for each in vars(module).values()}
    for each in (None, True, False, Ellipsis, NotImplemented, (), "", b"", *range(-5, 20)):
        known[id(each)] = each
    return list(known.values())


def counted(objects):
    """An array, because a list would have references to numbers."""
    return array.array("q", map(sys.getrefcount, objects))


def worst(objects, before):
    """The object whose references have changed most, and by how much."""
    changes = [now - number for now, number in zip(counted(objects), before)]
    change = max(changes, key=abs)
    return change, objects[changes.index(change)]


def changes(operation, value, objects):
    """What has changed after ROUNDS rounds: (name, how much)."""
    gc.collect()
    counts, blocks = counted(objects), sys.getallocatedblocks()
    total = sys.gettotalrefcount() if hasattr(sys, "gettotalrefcount") else 0
    for _ in range(ROUNDS):
        operation(value)
    gc.collect()
    if total and operation not in BY_TORCH and (value is PLAIN or operation is look_at_file):
        yield "all references", sys.gettotalrefcount() - total
    if LONG:  # in few rounds their number varies too much
        yield "allocated blocks", sys.getallocatedblocks() - blocks
    change, which = worst(objects, counts)
    yield f"references of {which!r:.60}", change


def is_good(operation, value, objects):
    for _ in range(5):
        operation(value)
    for _ in range(12):  # what is lost is lost each time; asyncio's own noise fades
        found = [(name, number) for name, number in changes(operation, value, objects)
                 if abs(number) > MOST]
        if not found:
            return True
    print(f"{operation.__name__}, {'plain' if value is PLAIN else 'tensors'}: {found}")
    return False


def main():
    warnings.simplefilter("ignore")
    berth.config.save.durability = "none"
    torch.set_num_threads(1)
    save_async(VALUE)
    objects = references_of_modules()
    values = (PLAIN, VALUE) if hasattr(sys, "gettotalrefcount") else (VALUE,)
    cases = [(operation, value) for value in values for operation in SAVES + BY_TORCH]
    cases += [(operation, VALUE) for operation in (save, *LOADS)]
    good = [is_good(operation, value, objects) for operation, value in cases]
    print("ok" if all(good) else "references are lost")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
