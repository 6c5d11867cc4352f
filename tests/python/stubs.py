# SPDX-License-Identifier: BSD-3-Clause
"""The stub of the public interface names what is there: functions, parameters, methods, options."""

import ast
import importlib
import inspect
import os
import unittest

import berth

KINDS = {"bool": "bool", "int": "int", "bytes": "_Bytes", "flags": "str", "text": "str"}


def parameters_of_stub(function):
    """[(name, whether it has a default)], and those that only have a name."""
    arguments = function.args
    missing = len(arguments.args) - len(arguments.defaults)
    plain = [(each.arg, at >= missing) for at, each in enumerate(arguments.args)]
    plain += [(each.arg, None) for each in (arguments.vararg, arguments.kwarg) if each]
    return plain, [(each.arg, default is not None)
                   for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults)]


def parameters_of(function):
    def row(each):
        is_variable = each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        return each.name, None if is_variable else each.default is not each.empty

    found = inspect.signature(function).parameters.values()
    return ([row(each) for each in found if each.kind != each.KEYWORD_ONLY],
            [row(each) for each in found if each.kind == each.KEYWORD_ONLY])


class Compared:
    """A module and its stub. names: in neither functions nor classes of the stub."""

    names = ()

    def setUp(self):
        self.module = importlib.import_module(self.name)
        with open(os.path.splitext(self.module.__file__)[0] + ".pyi", encoding="utf-8") as file:
            self.stub = ast.parse(file.read())
        self.classes = {each.name: each for each in self.stub.body if isinstance(each, ast.ClassDef)}

    def functions(self, node):
        """By name; of overloads the last, which has every parameter."""
        return {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}

    def assert_same(self, mine, stub, where):
        expected, by_name = parameters_of_stub(stub)
        found, named = parameters_of(mine)
        if any(getattr(each, "id", "") == "overload" for each in stub.decorator_list):
            expected, found = [[name for name, _ in each] for each in (expected, found)]
        self.assertEqual((found, named), (expected, by_name), where)

    def test_names(self):
        listed = {*self.functions(self.stub), *(name for name in self.classes if name[0] != "_"), *self.names}
        self.assertEqual(listed, set(self.module.__all__))

    def test_functions(self):
        for name, stub in self.functions(self.stub).items():
            self.assert_same(getattr(self.module, name), stub, name)

    def test_classes(self):
        for name, stub in self.classes.items():
            if name[0] == "_":
                continue
            kind, methods = getattr(self.module, name), self.functions(stub)
            for base in stub.bases:
                self.assertIn(base.id, [each.__name__ for each in kind.__mro__] + ["NamedTuple"])
            for method, of_stub in methods.items():
                found = inspect.getattr_static(kind, method)
                found = getattr(found, "__func__", found)  # of a classmethod
                if not isinstance(found, property):
                    self.assert_same(found, of_stub, f"{name}.{method}")
            public = {each for each in vars(kind) if each[0] != "_" and callable(getattr(kind, each))}
            self.assertLessEqual(public, set(methods), name)


class OfDcp(Compared, unittest.TestCase):
    name = "berth.dcp"


class Stubs(Compared, unittest.TestCase):
    name, names = "berth", ["config"]

    def test_options(self):
        """config/options.def has a row that the stub has not, or the other way round."""
        found = {each.target.id: ast.unparse(each.annotation) for each in self.classes["_Config"].body
                 if isinstance(each, ast.AnnAssign) and each.annotation.id in ("bool", "str")}
        for section in ("save", "load", "io", "device"):
            for each in self.classes[f"_{section.capitalize()}Options"].body:
                found[f"{section}.{each.target.id}"] = ast.unparse(each.annotation)
        expected = {}
        for name in berth.config.names():
            option = berth.config.describe(name)
            choices = ", ".join(repr(each) for each in option["bounds"].split(" | "))
            expected[name] = f"Literal[{choices}]" if option["type"] == "enum" else KINDS[option["type"]]
        self.assertEqual(found, expected)

    def test_methods_of_config(self):
        for method, stub in self.functions(self.classes["_Config"]).items():
            self.assert_same(getattr(type(berth.config), method), stub, method)
