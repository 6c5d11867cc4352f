# SPDX-License-Identifier: BSD-3-Clause
"""libberth through ctypes: only what the public headers declare, with the same names."""

import ctypes as c
import glob
import math
import os
import pathlib
import re

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.abspath(os.environ.get("BERTH_BUILD", os.path.join(HERE, "../../build/debug")))


def header():
    for folder in (f"{BUILD}/staged", f"{HERE}/../.."):
        if os.path.exists(f"{folder}/berth.h"):
            paths = [f"{folder}/berth.h", *sorted(glob.glob(f"{folder}/berth/*.h"))]
            return "".join(pathlib.Path(path).read_text(encoding="utf-8") for path in paths)
    raise SystemExit(f"no berth.h in {BUILD}/staged")


def load_library():
    """The library of the tests, which has simulated devices too; without it, the one to be installed."""
    for name in ("tests/libberth.so", "libberth.so"):
        if os.path.exists(f"{BUILD}/{name}"):
            return c.CDLL(f"{BUILD}/{name}")
    raise SystemExit(f"no libberth.so in {BUILD}")


HEADER = header()
LIBRARY = load_library()


def enum(name, prefix):
    body = re.search(rf"typedef enum {name} {{(.*?)}} {name};", HEADER, re.DOTALL)[1]
    members = re.findall(r"\bBERTH_(\w+) = (\d+)", re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL))
    return {member.removeprefix(prefix): int(value) for member, value in members}


# dtypes by PyTorch's name; kinds, quantization schemes and layouts by their C names.
DTYPES = {name.lower(): i for name, i in enum("berth_dtype", "").items() if not name.startswith("DTYPE_")}
DTYPE_NAMES = {i: name for name, i in DTYPES.items()}
KINDS = enum("berth_kind", "KIND_")
KIND_NAMES = {i: name for name, i in KINDS.items()}
QSCHEMES = {name.lower(): i for name, i in enum("berth_qscheme", "").items()}
LAYOUTS = enum("berth_layout_kind", "")
REQUIRES_GRAD, CONJ, NEG, META, COALESCED = 1, 2, 4, 8, 16
PARTS = enum("berth_part", "PART_")


class Error(c.Structure):
    _fields_ = [("code", c.c_int), ("system_errno", c.c_int), ("offset", c.c_uint64),
                ("record", c.c_char * 128), ("message", c.c_char * 640)]


class Source(c.Structure):
    _fields_ = [("kind", c.c_int), ("fd", c.c_int), ("path", c.c_char_p), ("bytes", c.c_void_p),
                ("nbytes", c.c_uint64), ("name", c.c_char_p), ("read", c.c_void_p),
                ("context", c.c_void_p), ("reserved", c.c_uint64 * 4)]


SOURCES = enum("berth_source_kind", "SOURCE_")


def from_path(path):
    return c.byref(Source(kind=SOURCES["PATH"], fd=-1, path=os.fsencode(path)))


class Tensor(c.Structure):
    _fields_ = [("dtype", c.c_int), ("rank", c.c_int32), ("shape", c.POINTER(c.c_int64)),
                ("stride", c.POINTER(c.c_int64)), ("storage_offset", c.c_int64),
                ("storage", c.c_void_p), ("data", c.c_void_p), ("flags", c.c_uint32),
                ("qscheme", c.c_int), ("scale", c.c_double), ("zero_point", c.c_int64),
                ("scales", c.c_void_p), ("zero_points", c.c_void_p), ("axis", c.c_int64)]


class NamedTensor(c.Structure):
    _fields_ = [("name", c.c_char_p), ("path", c.c_char_p), ("tensor", c.POINTER(Tensor)),
                ("value", c.c_void_p), ("offset", c.c_uint64), ("parameter", c.c_bool),
                ("requires_grad", c.c_bool), ("reserved", c.c_uint64 * 4)]


def structure(name):
    """A struct of the header that has only numbers, texts and pointers, by its declaration."""
    body = re.search(rf"\bstruct {name} {{\n(.*?)\n}}(?: {name})?;", HEADER, re.DOTALL)[1]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    numbers = {"double": c.c_double, "bool": c.c_bool, "size_t": c.c_size_t,
               "uint64_t": c.c_uint64, "int64_t": c.c_int64, "uint32_t": c.c_uint32,
               "uint16_t": c.c_uint16}
    fields = []
    for declaration in body.split(";"):
        words = declaration.replace("*", " * ").replace(",", " ").split()
        if function := re.search(r"\(\*(\w+)\)", declaration):
            fields.append((function[1], c.c_void_p))
        elif "*" in words:
            fields.append((words[-1], c.c_char_p if "char" in words else c.c_void_p))
        elif words and words[0] == "berth_progress_function":
            fields.append((words[1], c.c_void_p))
        elif words and "[" in words[1]:
            word, n = words[1].rstrip("]").split("[")
            fields.append((word, numbers[words[0]] * int(n)))
        elif words:  # what is no number is an enum
            fields += [(word, numbers.get(words[0], c.c_int)) for word in words[1:]]
    return type(name, (c.Structure,), {"_fields_": fields})


Stats, Call = structure("berth_stats"), structure("berth_params")
PrefetchStats = structure("berth_prefetch_stats")
StorageInfo = structure("berth_storage_info")
Info, Record = structure("berth_info"), structure("berth_record")

WRITE = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_size_t, c.c_uint64)


class Sink(c.Structure):
    _fields_ = [("write", WRITE), ("context", c.c_void_p), ("in_order", c.c_bool),
                ("reserved", c.c_uint64 * 4)]


Target, Content, PlanInfo, Slice, JointInfo = (
    structure(f"berth_{name}") for name in ("target", "content", "plan_info", "slice", "joint_info"))
SLICES = enum("berth_slice_kind", "SLICE_")


def to_path(path):
    return c.byref(Target(kind=1, path=path))


def to_sink(sink):
    return c.byref(Target(kind=4, sink=c.addressof(sink)))


def of_value(value):
    return c.byref(Content(kind=1, value=value))


P, I64, U64, SIZE, INT, BOOL, DOUBLE, TEXT = (
    c.c_void_p, c.c_int64, c.c_uint64, c.c_size_t, c.c_int, c.c_bool, c.c_double, c.c_char_p)
ERROR = c.POINTER(Error)
I64S = c.POINTER(I64)
VALUES = c.POINTER(P)

DECLARATIONS = {
    "berth_version": (TEXT, []),
    # making
    "berth_tree_new": (P, [ERROR]), "berth_tree_free": (None, [P]),
    "berth_tree_error": (INT, [P, ERROR]),
    "berth_storage_new": (P, [P, INT, P, U64, TEXT]),
    "berth_device_storage_new": (P, [P, INT, c.c_size_t, U64, TEXT, P]),
    "berth_make_int": (P, [P, I64]),
    "berth_make_float": (P, [P, DOUBLE]),
    "berth_make_complex": (P, [P, DOUBLE, DOUBLE]), "berth_make_str": (P, [P, TEXT, SIZE]),
    "berth_make_bytes": (P, [P, INT, TEXT, SIZE]),
    "berth_make_list": (P, [P]), "berth_make_tuple": (P, [P, VALUES, SIZE]), "berth_make_dict": (P, [P, INT]),
    "berth_make_size": (P, [P, I64S, c.c_int32]), "berth_make_device": (P, [P, TEXT, I64]),
    "berth_make_constant": (P, [P, INT, INT]), "berth_make_storage": (P, [P, P]),
    "berth_make_tensor": (P, [P, c.POINTER(Tensor)]), "berth_make_parameter": (P, [P, P, BOOL]),
    "berth_make_sparse": (P, [P, INT, I64S, c.c_int32, VALUES, BOOL]),
    "berth_make_subclass": (P, [P, P, P]), "berth_list_append": (INT, [P, P]),
    "berth_dict_set_value": (INT, [P, P, P]),
    "berth_value_set_state": (INT, [P, P]),
    # asking
    "berth_value_kind": (INT, [P]),
    "berth_as_int": (BOOL, [P, I64S]),
    "berth_as_float": (BOOL, [P, c.POINTER(DOUBLE)]),
    "berth_as_complex": (BOOL, [P, c.POINTER(DOUBLE), c.POINTER(DOUBLE)]),
    "berth_as_constant": (BOOL, [P, INT, c.POINTER(INT)]),
    "berth_as_text": (P, [P, c.POINTER(SIZE)]), "berth_as_bytes": (P, [P, c.POINTER(SIZE)]),
    "berth_value_count": (SIZE, [P]), "berth_value_at": (P, [P, SIZE]),
    "berth_dict_at": (BOOL, [P, SIZE, c.POINTER(P), c.POINTER(P)]),
    "berth_as_storage": (P, [P]), "berth_as_tensor": (c.POINTER(Tensor), [P]),
    "berth_as_size": (I64S, [P, c.POINTER(c.c_int32)]), "berth_value_flags": (c.c_uint32, [P]),
    "berth_value_part": (P, [P, INT]),
    "berth_storage_get_info": (c.POINTER(StorageInfo), [P]),
    # config
    "berth_config_patch": (INT, [TEXT, ERROR]), "berth_config_unpatch": (INT, [ERROR]),
    # saving
    "berth_save": (INT, [TEXT, P, P, ERROR]),
    "berth_save_to": (INT, [P, P, P, ERROR]),
    "berth_plan_new": (P, [P, P, P, c.POINTER(PlanInfo), ERROR]), "berth_plan_free": (None, [P]),
    "berth_plan_at": (INT, [P, SIZE, c.POINTER(Record)]),
    "berth_free": (None, [P]),
    # many writers
    "berth_joint_begin": (INT, [TEXT, P, SIZE, P, c.POINTER(P), c.POINTER(JointInfo), ERROR]),
    "berth_joint_add_receipt": (INT, [P, TEXT, SIZE, ERROR]), "berth_joint_finish": (INT, [P, ERROR]),
    "berth_joint_write": (INT, [TEXT, SIZE, SIZE, c.POINTER(Slice), SIZE, P, c.POINTER(P),
                                c.POINTER(SIZE), ERROR]),
    # devices
    "berth_device_memory_new": (INT, [TEXT, SIZE, c.POINTER(c.c_size_t), ERROR]),
    "berth_device_memory_free": (None, [TEXT, c.c_size_t]),
    "berth_device_memory_copy": (INT, [TEXT, c.c_size_t, P, SIZE, INT, ERROR]),
    "berth_set_storage_rules": (INT, [P, P, SIZE, ERROR]),
    "berth_tensor_device_address": (INT, [P, c.POINTER(Tensor), c.POINTER(c.c_size_t), ERROR]),
    # loading
    "berth_open": (INT, [TEXT, P, c.POINTER(P), ERROR]), "berth_close": (None, [P]),
    "berth_find": (P, [P, TEXT, ERROR]), "berth_tensor_count": (SIZE, [P]),
    "berth_tensor_at": (INT, [P, SIZE, c.POINTER(NamedTensor), ERROR]),
    "berth_tensor_data": (P, [P, c.POINTER(Tensor), ERROR]),
    "berth_tensor_read": (INT, [P, c.POINTER(Tensor), I64, I64, P, ERROR]),
    "berth_load": (INT, [P, P, P, ERROR]),
    "berth_prefetch_begin": (INT, [P, P, c.c_uint32, P, c.POINTER(P), ERROR]),
    "berth_prefetch_advance": (INT, [P, c.POINTER(Tensor), I64, I64, ERROR]),
    "berth_prefetch_get_stats": (INT, [P, c.POINTER(PrefetchStats), ERROR]),
    "berth_prefetch_free": (None, [P]),
    "berth_get_info": (INT, [P, c.POINTER(Info), ERROR]),
    "berth_verify": (INT, [c.POINTER(Source), P, P, P, P, ERROR]),
}

TO_DEVICE, FROM_DEVICE = 1, 2


def numel(tensor):
    """The number of elements of a tensor, by a pointer to it."""
    return math.prod(tensor.contents.shape[:tensor.contents.rank])


def declare():
    functions = {}
    for name, (result, arguments) in DECLARATIONS.items():
        function = getattr(LIBRARY, name)
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions


globals().update(declare())


class BerthError(Exception):
    pass


def check(function, *arguments):
    """Calls one that fails with a negative status or NULL."""
    error = Error()
    result = function(*arguments, c.byref(error))
    failed = result < 0 if function.restype is INT else not result
    if failed and error.code:
        raise BerthError(error.message.decode("utf-8", "replace"))
    return result


# What is inline in the headers.

def berth_make_none(tree):
    return LIBRARY.berth_make_constant(tree, KINDS["NONE"], 0)


def berth_make_bool(tree, value):
    return LIBRARY.berth_make_constant(tree, KINDS["BOOL"], value)


def berth_make_set(tree):
    return LIBRARY.berth_make_dict(tree, KINDS["SET"])


def berth_set_add(node, item):
    return LIBRARY.berth_dict_set_value(node, item, None)


def berth_make_nested(tree, parts):
    return LIBRARY.berth_make_sparse(tree, LAYOUTS["STRIDED"], None, 0, parts, False)


def berth_root(checkpoint):
    return LIBRARY.berth_find(checkpoint, b"", None)


def storage_data(checkpoint, storage):
    """The address of a storage's first byte, of which it has at least one."""
    nbytes, one = c.c_int64(LIBRARY.berth_storage_get_info(storage)[0].nbytes), c.c_int64(1)
    tensor = Tensor(dtype=DTYPES["uint8"], rank=1, shape=c.pointer(nbytes), stride=c.pointer(one), storage=storage)
    return check(LIBRARY.berth_tensor_data, checkpoint, c.byref(tensor))


class patched:
    """with patched("save.compute_crc32=off"): this thread's options."""

    def __init__(self, assignments):
        self.assignments = assignments

    def __enter__(self):
        check(LIBRARY.berth_config_patch, self.assignments.encode())

    def __exit__(self, *_):
        check(LIBRARY.berth_config_unpatch)
