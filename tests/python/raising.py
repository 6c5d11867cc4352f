# SPDX-License-Identifier: BSD-3-Clause
"""What the program's own code raises during a save or a load: it arrives as it is, and nothing is left."""

import collections
import copyreg
import gc
import io
import os
import pickle
import signal
import sys
import types
import warnings

import berth
import torch
from berth import _job, _native
from berth._errors import Declined
from torch import nn

import jobs
from folder import Folder
from records import Box

ROUNDS = 30 if os.environ.get("BERTH_LONG", "0") not in ("", "0") else 1


class Refused(Exception):
    """No code but these tests' raises it, catches it or knows it."""


class Stop(BaseException):
    """As KeyboardInterrupt: what only catches Exception lets it through."""


def raising(error):
    """A function, for any name of a method, that raises."""
    def refuse(*_arguments, **_named):
        raise error

    return refuse


def with_method(name, base=object):
    """Makes objects of a class of which one method raises."""
    def make(error):
        made = type("Made", (base,), {name: raising(error)})
        return torch.ones(3).as_subclass(made) if base is torch.Tensor else made()

    return make


def with_attribute(name, make):
    """Makes plain objects; one attribute of theirs, which pickling calls, raises."""
    def made(error):
        value = make()
        setattr(value, name, raising(error))
        return value

    return made


def raises_halfway(error):
    """Its __reduce__ gives an iterator, of which one item can be pickled."""
    def items():
        yield torch.ones(4)
        raise error

    return type("Made", (), {"__reduce__": lambda self: (list, (), None, items())})()


def in_deep_values(error):
    value = with_method("__reduce__")(error)
    for i in range(100):
        value = [torch.ones(1), {i: value}]
    return value


# Layer 2: PyTorch pickles. A function that makes a value with which pickling raises the error.
RAISING = {
    "__reduce__": with_method("__reduce__"),
    "__reduce_ex__": with_method("__reduce_ex__"),
    "__getstate__": with_method("__getstate__"),
    "__getnewargs_ex__": with_method("__getnewargs_ex__"),
    "__reduce_ex__ of a dict": with_method("__reduce_ex__", dict),
    "__reduce_ex__ of a tensor": with_method("__reduce_ex__", torch.Tensor),
    "__getstate__ of a module": with_method("__getstate__", nn.Module),
    "an iterator of __reduce__": raises_halfway,
    "a value of many": in_deep_values,
    "__getstate__ of a tensor": with_attribute("__getstate__", lambda: torch.ones(3)),
    "__getstate__ of a Parameter": with_attribute("__getstate__", lambda: nn.Parameter(torch.ones(3))),
    "__getstate__ of an OrderedDict": with_attribute("__getstate__", lambda: collections.OrderedDict(a=1)),
}


class Raising(Folder):
    def setUp(self):
        super().setUp()
        self.addCleanup(berth.config.reset)
        berth.config.save.durability = "none"
        self.file = self.write("v.pt", b"old")
        self.text = "a text of its own" * 2
        self.tensors = [torch.ones(300) for _ in range(3)]
        gc.collect()

    def counted(self):
        storages = [tensor.untyped_storage() for tensor in self.tensors]
        return ([sys.getrefcount(each) for each in (self.text, *self.tensors, *storages)],
                len(os.listdir("/proc/self/fd")), gc.isenabled(), sys.getswitchinterval(), _job._live)

    def assert_counted(self, before):
        """As before; cycles, as tracebacks make, may have to be collected first."""
        if self.counted() != before:
            gc.collect()
        self.assertEqual(self.counted(), before)

    def assert_raises(self, error, function):
        """It raises this very object, and nothing beside it."""
        with self.assertRaises(type(error)) as caught:
            function()
        self.assertIs(caught.exception, error)
        self.assertEqual((error.__cause__, error.__context__), (None, None))
        caught.exception = error.__traceback__ = None

    def assert_old(self):
        self.assertEqual((self.read(self.file), os.listdir(self.folder)), (b"old", ["v.pt"]))

    def check_saves(self, value, error):
        """The ways to save it; each leaves what it finds."""
        buffer = io.BytesIO(b"old")
        for save in (berth.save, berth.save_async, torch_save):
            for target in (self.file, buffer):
                self.assert_raises(error, lambda: save(value, target))
                self.assertEqual(buffer.getvalue(), b"old")
                self.assert_old()
        with open(self.file, "r+b") as file:
            self.assert_raises(error, lambda: berth.save(value, file))
            self.assertEqual(file.tell(), 0)
        self.assert_old()

    def check(self, make, error):
        before = self.counted()
        for _ in range(ROUNDS):
            self.check_saves([self.tensors, self.text, make(error), torch.ones(2)], error)
        self.assert_counted(before)


def torch_save(value, target):
    with berth.installed():
        torch.save(value, target)


class OfPickling(Raising):
    def test_methods_of_classes(self):
        """Y2"""
        for name, make in RAISING.items():
            for kind in (Refused, Stop, KeyboardInterrupt, MemoryError, pickle.PicklingError):
                with self.subTest(name, kind=kind):
                    self.check(make, kind("of the program"))

    def test_the_layers(self):
        """PyTorch's layer raises: ours leaves it what is of a class, before a method is called (Y5)."""
        for name, make in RAISING.items():
            with self.subTest(name), self.assertRaises(Declined):
                _native.save_begin([make(Refused())], os.fsencode(self.file), None, False)

    def test_a_reducer_of_copyreg(self):
        error = Refused()
        self.addCleanup(copyreg.dispatch_table.pop, Box, None)
        copyreg.pickle(Box, raising(error))
        self.check(lambda _: Box(1), error)
        copyreg.pickle(torch.Tensor, raising(error))
        self.addCleanup(copyreg.dispatch_table.pop, torch.Tensor, None)
        self.check(lambda _: torch.ones(2), error)

    def test_a_persistent_id(self):
        """PyTorch's, which asks the program's packages where a storage is."""
        error, registry = Refused(), list(torch.serialization._package_registry)
        torch.serialization.register_package(0, raising(error), lambda storage, where: None)
        try:
            self.check(lambda _: torch.ones(2), error)
        finally:
            torch.serialization._package_registry[:] = registry

    def test_a_pickler_of_the_program(self):
        error = Refused()
        for name in ("dump", "reducer_override", "__init__"):
            module = types.ModuleType("pickler")
            module.Pickler = type("Pickler", (pickle.Pickler,), {name: raising(error)})
            with self.subTest(name):
                before = self.counted()
                value = [self.tensors, self.text, Box]
                self.assert_raises(error, lambda: berth.save(value, self.file, pickle_module=module))
                self.assert_old()
                del value
                self.assert_counted(before)

    def test_a_warning_that_is_an_error(self):
        """A tensor with hooks, in both layers."""
        hooked = torch.ones(2, requires_grad=True)
        hooked.register_hook(lambda grad: grad)
        before = self.counted()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for value in ([self.tensors, hooked], [self.tensors, Box(1), hooked]):
                with self.assertRaisesRegex(UserWarning, "backward hook"):
                    berth.save(value, self.file)
                self.assert_old()
        value = None
        self.assert_counted(before)

    def test_what_names_a_refused_value(self):
        """repr() of a key: what it raises is dropped, as PyTorch does not call it; but ^C is not."""
        value = {with_method("__repr__")(KeyboardInterrupt("of the program")): torch.ones(2)}
        with self.assertRaisesRegex(KeyboardInterrupt, "of the program"):
            berth.save(value, self.file)
        self.assert_old()
        with self.assertRaisesRegex(Declined, "the value cannot be saved: .* is not a plain type"):
            _native.save_begin({with_method("__repr__")(Refused()): 1}, os.fsencode(self.file), None, False)

    def test_the_handler_of_a_signal_during_a_walk(self):
        """It comes when a value is walked, not when bytes are written: nothing has been begun."""
        error = Refused()
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, raising(error)))
        before, value = self.counted(), [self.text, self.tensors, [1] * 5_000_000, object()]
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        self.assert_raises(error, lambda: berth.save(value, self.file))
        self.assert_old()
        del value
        self.assert_counted(before)


class Counting:
    """A file object: each call of a method counts, and the call of number `fails_at` raises."""

    def __init__(self, data, names, error, fails_at):
        self.file, self.names, self.error = io.BytesIO(data), names, error
        self.n, self.fails_at, self.called = 0, fails_at, collections.Counter()

    def __getattr__(self, name):
        if name not in self.names:
            raise AttributeError(name)
        return lambda *arguments: self.call(name, arguments)

    def call(self, name, arguments):
        self.n, self.called[name] = self.n + 1, self.called[name] + 1
        if self.n - 1 == self.fails_at:
            raise self.error
        return getattr(self.file, name)(*arguments)


class OfFileObjects(Raising):
    def each_call(self, use, data, names, kind=Refused):
        """Each call of the object's methods fails in turn. Returns: what was called, when none did."""
        error, before = kind("of the file"), self.counted()
        for fails_at in range(1000):
            file = Counting(data, names, error, fails_at)
            try:
                use(file)
            except kind as caught:
                self.assertIs(caught, error, file.called)
                self.assertEqual((error.__cause__, error.__context__), (None, None), file.called)
                error.__traceback__ = None
            else:
                break
        jobs.no_jobs()
        self.assertGreater(fails_at, 0)
        self.assertLessEqual(file.n, fails_at)  # no call has failed
        called = set(file.called)
        del file
        self.assert_counted(before)
        return called

    def test_saves(self):
        names = {"write", "flush"}
        value = [self.tensors, self.text, torch.ones(3_000_000)]
        for use in (berth.save, torch_save, lambda value, file: berth.save_async(value, file).result()):
            for value in (value, [Box(1), *value]):
                for kind in (Refused, Stop):
                    with self.subTest(use=use, kind=kind):
                        called = self.each_call(lambda file: use(value, file), b"", names, kind)
                        self.assertEqual(called, names)
        del value

    def loads(self):
        """(what it is, the file's bytes, a function that loads it)"""
        plain, boxed = io.BytesIO(), io.BytesIO()
        torch.save([torch.ones(300_000), "x"], plain)
        torch.save([torch.ones(300), Box(1)], boxed)
        yield "values", plain.getvalue(), berth.load
        yield "verify", plain.getvalue(), berth.verify
        yield "open", plain.getvalue(), lambda file: berth.open(file)["0"]
        yield "trusted", boxed.getvalue(), lambda file: berth.load(file, weights_only=False)
        yield "installed", plain.getvalue(), torch_load
        yield "allowed", boxed.getvalue(), load_allowed

    def test_loads(self):
        """With readinto() and without; files that cannot seek are read to their end."""
        for what, data, load in self.loads():
            for names in ({"read", "seek", "tell", "seekable", "readinto"}, {"read", "seek", "tell"},
                          {"read"}, {"read", "readline", "seek", "tell", "seekable", "readinto"}):
                for kind in (Refused, Stop):
                    if what in ("trusted", "installed", "allowed") and "readline" not in names:
                        continue  # PyTorch asks for it
                    with self.subTest(what, names=names, kind=kind):
                        called = self.each_call(load, data, names, kind)
                        self.assertIn("read" if "readinto" not in names else "seek", called)


def torch_load(file):
    with berth.installed():
        return torch.load(file, weights_only=True)


def load_allowed(file):
    with torch.serialization.safe_globals([Box]):
        return berth.load(file)
