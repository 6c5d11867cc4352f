# SPDX-License-Identifier: BSD-3-Clause
"""The stub of the public interface and docs/python-reference.md name what is there: functions, methods, options."""

import ast
import importlib
import inspect
import os
import re
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


class Reference(unittest.TestCase):
    """docs/python-reference.md has each name once, with its parameters, and each option as `berth config` tells it."""

    maxDiff = None
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/python-reference.md")

    def setUp(self):
        """sections: {heading: [what the first cell of each row has]}."""
        with open(self.path, encoding="utf-8") as file:
            self.page = file.read()
        self.sections = {}
        for part in self.page.split("\n## ")[1:]:
            self.sections[part.partition("\n")[0]] = re.findall(r"^\| `(.+?)` \|", part, flags=re.M)

    def assert_parameters(self, row, function):
        name, _, parameters = row.partition("(")
        tree = ast.parse(f"def f({parameters}: ...").body[0]
        expected, by_name = parameters_of_stub(tree)
        found, named = parameters_of(function)
        is_method = bool(found) and found[0][0] == "self"
        self.assertEqual((found[is_method:], named), (expected, by_name), name)

    def test_each_public_name_is_there_once(self):
        modules = [importlib.import_module(each) for each in (
            "berth", "berth.dcp", "berth.safetensors", "berth.safetensors.torch", "berth.safetensors.numpy")]
        for module in modules:
            names = getattr(module, "__all__", None) or [name for name, each in vars(module).items() if name[0] != "_"
                                                         and getattr(each, "__module__", "") == module.__name__]
            for name in names:
                whole = f"{module.__name__}.{name}"
                with self.subTest(whole):
                    found = [len(re.findall(form.format(re.escape(whole)), self.page, flags=re.M))
                             for form in ("^\\| `{}[`(]", "^## {}$", "`{}`")]
                    self.assertEqual(next(filter(None, found), 0), 1, "rows, else headings, else mentions: " + str(found))

    def test_parameters(self):
        n = 0
        for row in (row for rows in self.sections.values() for row in rows if row.startswith("berth.") and "(" in row):
            module, _, name = row.partition("(")[0].rpartition(".")
            if module in ("berth.deepspeed", "berth.lightning"):
                continue  # their packages may not be there
            function = getattr(importlib.import_module(module), name)
            self.assert_parameters(row, function.__init__ if inspect.isclass(function) else function)
            n += 1
        self.assertGreater(n, 25)

    def test_methods(self):
        for name in ("Job", "File", "Report", "Rows", "config"):
            kind = getattr(berth, name) if name != "config" else type(berth.config)
            rows = self.sections[f"berth.{name}"]
            public = {each for each in dir(kind) if each[0] != "_"} | set(getattr(kind, "__dataclass_fields__", ()))
            told = set(re.findall(r"[a-z_0-9]+", self.page.partition(f"\n## berth.{name}\n")[2].partition("\n## ")[0]))
            self.assertLessEqual(public, told, name)
            for row in rows:
                self.assertIn(row.partition("(")[0], public, name)
                if "(" in row:
                    self.assert_parameters(row, getattr(kind, row.partition("(")[0]))

    def test_options(self):
        """If it fails, it shows the table that belongs there."""
        rows = ["| option | default | values | |", "|---|---|---|---|"]
        for name in berth.config.names():
            each = berth.config.describe(name)
            default = "measured" if each["default"] == "0" and "0: measured" in each["bounds"] else each["default"]
            values = each["bounds"].replace(" | ", ", ").replace(", 0: measured", "")
            help_text = each["help"].replace("__metadata__", "`__metadata__`")
            rows.append(f"| `{name}` | {default} | {values} | {help_text} |")
        self.assertEqual(self.page.partition("\n## Options\n")[2].partition("\n\n|")[2].splitlines(),
                         "\n".join(rows)[1:].splitlines())
