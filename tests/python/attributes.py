# SPDX-License-Identifier: BSD-3-Clause
"""Attributes that a file gives to its objects: nothing is looked up on them, so nothing of them is called (Y5).

A file can name a class or a function as a value (P1), and a tensor's attribute can have the name of any
method. Each name is tried with both, and with an int.
"""

import collections
import io

import berth
import torch
from berth._dcp_outline import outline_of
from pickles import ONE, PROTO, archive, get, put, tensor, text, view

from folder import Folder
from same import same

called = []
# What stands for an allowed class and an allowed function in these tests.
ALLOWED = {"collections.Counter": type("Spy", (), {"__init__": lambda *_: called.append("class")}),
           "_codecs.encode": lambda *_: called.append("function")}
VALUES = {"int": b"K\1", "class": b"ccollections\nCounter\n", "function": b"c_codecs\nencode\n"}
LAYOUT = b"ctorch.serialization\n_get_layout\n" + text("torch.sparse_coo") + b"\x85R"
STORAGES = [("0", bytes(4)), ("1", bytes(8)), ("2", bytes(4)), ("4", bytes(4)), ("3", bytes(4))]  # as they are met


def state(name, value):
    return b"}" + text(name) + VALUES[value] + b"s"


def with_state(made, attributes):
    """A tensor with attributes; made: the pickle of one that REDUCE makes."""
    function, _, arguments = made[:-1].partition(b"\n(")
    return (b"ctorch._tensor\n_rebuild_from_type_v2\n(" + function + b"\nctorch\nTensor\n(" + arguments +
            attributes + b"tR")


def sparse():
    return (b"ctorch._utils\n_rebuild_sparse_tensor\n(" + LAYOUT + b"(" +
            view(b"Long", "1", 1, [1, 1], [1, 1]) + tensor("2") + b"K\1\x85\x89ttR")


def quantized():
    made = view(b"QInt8", "4", 4, [4], [1])
    head, _, rest = made.partition(b"_rebuild_tensor_v2")
    at = rest.rindex(b"\x89ccollections")
    scheme = b"(ctorch\nper_tensor_affine\nG?\xf0\0\0\0\0\0\0K\0t"
    return head + b"_rebuild_qtensor" + rest[:at] + scheme + rest[at:]


def parameter(attributes):
    return (b"ctorch._utils\n_rebuild_parameter_with_state\n(" + tensor("3") +
            b"\x88ccollections\nOrderedDict\n)R" + attributes + b"tR")


def file_of(name, values=VALUES):
    """Tensors of each kind, each with one attribute, and others of their storages."""
    made = b""
    for value in values:
        attributes = state(name, value)
        made += (with_state(tensor("0"), attributes) + with_state(sparse(), attributes) +
                 with_state(quantized(), attributes) + parameter(attributes))
    return archive(PROTO + b"](" + made + tensor("0") + quantized() + tensor("3") + b"e.", STORAGES)


def bare(value):
    """A value whose tensors have no attributes."""
    if isinstance(value, torch.Tensor):
        return torch.Tensor.detach(value)
    return [bare(each) for each in value] if type(value) is list else value


class Attributes(Folder):
    def setUp(self):
        super().setUp()
        allowed = torch._weights_only_unpickler._get_allowed_globals()
        for name, spy in ALLOWED.items():
            self.addCleanup(allowed.__setitem__, name, allowed[name])
            allowed[name] = spy
        self.addCleanup(called.clear)

    def loaded(self, data):
        """By every way; None: refused."""
        path = self.write("v.pt", data)
        try:
            value = berth.load(io.BytesIO(data))
        except berth.UnsafeFileError as error:
            self.assertRegex(str(error), "the tensor's own")
            return None
        berth.load(path, mmap=True)
        berth.load(path, map_location=lambda storage, _: storage)
        with berth.open(path) as file:
            for each in file:
                file[each]
        with berth.installed():
            torch.load(path, weights_only=True)
        return value

    def test_each_name_of_a_tensor(self):
        plain = bare(torch.load(io.BytesIO(file_of("mine")), weights_only=True))
        n_read = 0
        for name in dir(torch.Tensor):
            with self.subTest(name):
                value = self.loaded(file_of(name))
                if value is None:
                    continue
                n_read += 1
                states = [torch._utils._get_obj_state(each) for each in value]
                self.assertEqual([each and list(each) for each in states], 12 * [[name]] + 3 * [None])
                same(bare(value), plain, resizable=False)
                self.save_again(berth.load(io.BytesIO(file_of(name, ["int"]))), "int")
                self.assertEqual(called, [])
        self.assertGreater(n_read, 400)

    def save_again(self, value, kind):
        """Values without a plain form are pickled by PyTorch and Python, which do call methods of the file."""
        if kind != "int":
            return None
        buffer = io.BytesIO()
        berth.save(value, buffer)
        return berth.load(io.BytesIO(buffer.getvalue()))

    def test_each_name_of_an_ordered_dict(self):
        for name in dir(collections.OrderedDict):
            for kind in VALUES:
                data = archive(PROTO + b"ccollections\nOrderedDict\n)R" + put(0) + text("a") + b"K\1s" +
                               state(name, kind) + b"b.")
                with self.subTest(name, kind=kind):
                    value = berth.load(io.BytesIO(data))
                    self.assertEqual((list(value), list(vars(value))), (["a"], [name]))
                    again = self.save_again(value, kind) or value
                    self.assertEqual((list(again), list(vars(again))), (["a"], [name]))
                    self.assertEqual(called, [])

    def test_a_dict_saved_as_safetensors(self):
        for name in dir(collections.OrderedDict):
            value = collections.OrderedDict(a=torch.ones(2))
            vars(value)[name] = ALLOWED["_codecs.encode"]
            with self.subTest(name):
                berth.save(value, self.path("v.safetensors"))
                self.assertEqual((berth.load(self.path("v.safetensors"))["a"].tolist(), called), ([1, 1], []))

    def test_the_copy_of_an_asynchronous_joint_save(self):
        """What tensors share, and their attributes, are in the copy."""
        for name in dir(torch.Tensor):
            whole, parameter = torch.ones(4), torch.nn.Parameter(torch.ones(2), False)
            made = {"whole": whole, "part": torch.Tensor.detach(whole)[1:], "parameter": parameter}
            for value in (whole, parameter):
                vars(value)[name] = ALLOWED["_codecs.encode"]
            with self.subTest(name):
                copies = outline_of(made, None, True)
                self.assertEqual(called, [])
                for key, value in made.items():
                    self.assertEqual((type(copies[key]), list(vars(copies[key]))), (type(value), list(vars(value))))
                    same(bare(copies[key]), bare(value), resizable=False)
                torch.Tensor.zero_(whole)
                self.assertEqual((bare(copies["whole"]).sum(), copies["part"].data_ptr()),
                                 (4, bare(copies["whole"]).data_ptr() + 4))
