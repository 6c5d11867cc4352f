# SPDX-License-Identifier: BSD-3-Clause
"""References that operations lose, and allocations of Python's that fail, with tensors on a device.

usage: STAND_IN_FOLDER=... BERTH_BUILD=... memory.py      prints "ok", and exits with 0, if all went well

As ../references.py and ../no_memory.py do it with tensors of the host; see backend.py.
"""

import gc
import os
import sys
import warnings

FOLDER = os.environ["STAND_IN_FOLDER"]
sys.argv[1:] = [FOLDER]  # of both scripts
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import backend
import berth
import no_memory
import references
import torch
from checks import DEVICES, FIRST, Dict, on
from berth import _native

PATH = os.path.join(FOLDER, "v.pt")
SECOND = str(DEVICES[1])


def made():
    large = on(FIRST, torch.rand(30, 10))
    return {"large": large, "again": large, "second": on(DEVICES[1], torch.arange(9)),
            "half": on(FIRST, torch.rand(33).bfloat16()), "host": torch.rand(5), "text": "a text" * 3}


def save(value):
    berth.save(value, PATH)


def save_records(value):
    berth.save(Dict(value), PATH + ".records")


def save_async(value):
    for snapshot in (True, False):
        berth.save_async(value, PATH, snapshot=snapshot).result()
        berth.save_async(value, PATH, snapshot=snapshot).cancel()
    references.no_jobs()


def save_fails(value):
    references.raises(berth.Error, berth.save, value, os.path.join(PATH, "none"))
    backend.native.stand_in_fail_copy(1)
    references.raises(berth.Error, berth.save, value, PATH)


def begin(snapshot):
    def begin(value):
        _native.save_begin(value, os.fsencode(PATH), None, snapshot)  # and drops it: cancelled

    return begin


def load(_):
    berth.load(PATH)


def load_elsewhere(_):
    berth.load(PATH, {str(FIRST): SECOND})


def load_by_a_function(_):
    berth.load(PATH, lambda storage, _: storage.to(device=DEVICES[1]))


def load_records(_):
    berth.load(PATH + ".records", weights_only=False)


def load_fails(_):
    backend.native.stand_in_fail_copy(1)
    references.raises(berth.Error, berth.load, PATH)


def check_references(value):
    objects = references.references_of_modules() + [*value.values()]
    operations = (save, save_records, save_async, save_fails, load, load_elsewhere, load_by_a_function,
                  load_records, load_fails)
    return all([references.is_good(operation, value, objects) for operation in operations])


def check_allocations(value):
    everything = [value, *value.values(), *[each.untyped_storage() for each in value.values()
                                            if isinstance(each, torch.Tensor)]]
    for operation in (save, begin(True), begin(False), load, load_elsewhere, load_by_a_function):
        n_failed = no_memory.sweep(operation, value, everything)
        gc.collect()
        assert n_failed > 20, (operation.__name__, n_failed)
        assert backend.Event.n_live == 0, (operation.__name__, backend.Event.n_live)
        print(f"{operation.__name__}: {n_failed} allocations failed")


def main():
    warnings.simplefilter("ignore")
    berth.config.save.durability = "none"
    torch.set_num_threads(1)
    value = made()
    save(value)
    save_records(value)
    check_allocations(value)
    good = check_references(value) and backend.Event.n_live == 0
    print("ok" if good else "references are lost")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
