# SPDX-License-Identifier: BSD-3-Clause
"""What a file may give a tensor beside its elements (P5): attributes, by names that are not the
tensor's own, and a place that is not "meta". The names are those of the installed PyTorch, and of
the others in the table."""

import os
import pickle
import re
import struct

import berth_ctypes as b
import torch
from attribute_names import ROW, is_magic, listed_names, own_names
from describe import FromBerth
from files import Bad, expect
from readings import pickles, read_alike, without_debug

HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(HERE, "../../format/values/tensor_attributes.def")
STORAGES = [("0", struct.pack("<4f", 1, 2, 3, 4)), ("1", struct.pack("<4f", 5, 6, 7, 8))]

HOOKS = b"ccollections\nOrderedDict\n)R"
BUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
WITH_STATE = b"ctorch._tensor\n_rebuild_from_type_v2\n("
TENSOR_CLASS = b"ctorch\nTensor\n"
PARAMETER = b"ctorch._utils\n_rebuild_parameter\n"
PARAMETER_WITH_STATE = b"ctorch._utils\n_rebuild_parameter_with_state\n("


def storage(key="0", location="cpu", view=b""):
    return (b"(" + pickles.text("storage") + b"ctorch\nFloatStorage\n" + pickles.text(key) +
            pickles.text(location) + b"K\x04" + view + b"tQ")


def arguments(of):
    return b"(" + of + b"K\x00K\x04\x85K\x01\x85\x89" + HOOKS + b"t"


def tensor(of=storage()):
    return BUILD + arguments(of) + b"R"


def with_state(state, build=BUILD, of=arguments(storage())):
    return WITH_STATE + build + TENSOR_CLASS + of + state + b"tR"


def parameter_with_state(state):
    return PARAMETER_WITH_STATE + tensor() + b"\x88" + HOOKS + state + b"tR"


def parameter(of):
    return PARAMETER + b"(" + of + b"\x88" + HOOKS + b"tR"


def attribute(name, value=b"N"):
    return b"}" + pickles.text(name) + value + b"s"


def slots(state):
    return b"N" + state + b"\x86"


def written(path, content):
    with open(path, "wb") as file:
        file.write(content)
    return path


def archive(path, content):
    return written(path, pickles.archive(pickles.PROTO + content + b".", STORAGES))


# ---- all names ----


def table_names():
    with open(TABLE, encoding="utf-8") as file:
        return [name for name, _ in ROW.findall(file.read())]


def the_table():
    table = table_names()
    expect(table == sorted(table), "format/values/tensor_attributes.def is not sorted")
    expect(len(listed_names()) > 40, f"only {len(listed_names())} names")
    missing = sorted(set(listed_names()) - set(table))
    expect(not missing, f"format/values/tensor_attributes.def lacks {missing}: "
                        "tests/peers/attribute_names.py adds them")


def all_names(path):
    """Of an attribute by each name that PyTorch's tensors know."""
    own, n_read = own_names() | set(table_names()), 0
    for i, name in enumerate(sorted({*dir(torch.nn.Parameter), *own})):
        both = (with_state, parameter_with_state)
        for build in both if name in own else both[i % 2:][:1]:
            archive(path, build(attribute(name)))
            is_read = read_alike(path, "headers")
            expect(is_read != (name in own or is_magic(name)), f"{name}: read, {is_read}")
            n_read += is_read
    print(f"attributes: {n_read} are read, and alike by PyTorch", flush=True)


# ---- what would be read otherwise ----

OTHER = tensor(storage("1"))
LATER = b"(}q\x63"  # a tuple of a dict, what takes it, and what it gets then
GROWS = b"h\x63" + pickles.text("a") + b"K\x01st"
REFUSED = {
    "data": with_state(attribute("data", OTHER)),
    "data of a slot": with_state(slots(attribute("data", OTHER))),
    "data of a Parameter": parameter_with_state(attribute("data", OTHER)),
    "data of a slot of a Parameter": parameter_with_state(slots(attribute("data", OTHER))),
    "data beside others": with_state(b"}(" + pickles.text("a") + b"N" + pickles.text("data") + OTHER + b"u"),
    "data in short letters": with_state(b"}U\x04data" + OTHER + b"s"),
    "the storage's elements": with_state(attribute("real", OTHER)),
    "requires_grad": with_state(attribute("requires_grad", b"\x88")),
    "requires_grad of a Parameter": parameter_with_state(attribute("requires_grad", b"\x89")),
    "grad": with_state(attribute("grad", OTHER)),
    "__class__": with_state(attribute("__class__", b"ctorch.nn.parameter\nParameter\n")),
    "__dict__": with_state(attribute("__dict__", attribute("a"))),
    "a name that is an int": with_state(b"}K\x01Ns"),
    "a dict that grows": LATER + with_state(b"h\x63") + GROWS,
    "an OrderedDict's that grows": LATER + HOOKS + b"h\x63b" + GROWS,
    "attributes inside of a Parameter": parameter(with_state(attribute("a"))),
    "a Parameter that is called a Tensor": with_state(attribute("a"), PARAMETER,
                                                      b"(" + tensor() + b"\x88" + HOOKS + b"t"),
    "location meta": tensor(storage(location="meta")),
}
READ = {
    "an attribute": with_state(attribute("a", OTHER)),
    "an attribute of a Parameter": parameter_with_state(attribute("a", OTHER)),
    "_is_param": with_state(attribute("_is_param", b"\x89")),
    "a method's name": with_state(attribute("tolist", b"K\x01")),
    "a NUL": with_state(attribute("data\0", OTHER)),
    "an OrderedDict's": HOOKS + attribute("data", tensor()) + b"b",
}


def stream(path, location):
    """As before PyTorch 1.6."""
    system = {"protocol_version": 1001, "little_endian": True,
              "type_sizes": {"short": 2, "int": 4, "long": 4}}
    heads = [pickle.dumps(each, 2) for each in (0x1950A86A20F9469CFC6C, 1001, system)]
    body = pickles.PROTO + tensor(storage(location=location, view=b"N")) + b"."
    written(path, b"".join(heads) + body + pickle.dumps(["0"], 2) + struct.pack("<q", 4) + STORAGES[0][1])


def refused(path):
    for check in ("none", "data"):
        try:
            with b.patched(f"debug=off load.check={check}"), FromBerth(path):
                raise Bad(f"read, load.check={check}")
        except b.BerthError as error:
            expect(re.search(r": (data\.pkl|object) at byte ", str(error)), str(error))


def read(path):
    expect(read_alike(path, "headers"), "refused")


def all_cases(results, folder):
    path = os.path.join(folder, "attribute.pt")
    results.run("attributes: the table of names is PyTorch's", the_table)
    with without_debug():
        results.run("attributes: by each name that tensors know", all_names, path)
        for name, content in REFUSED.items():
            archive(path, content)
            results.run(f"read otherwise: {name}", refused, path)
        for name, content in READ.items():
            archive(path, content)
            results.run(f"read alike: {name}", read, path)
        stream(path, "cpu")
        results.run("read alike: a stream", read, path)
        stream(path, "meta")
        results.run("read otherwise: location meta, in a stream", refused, path)
