# SPDX-License-Identifier: BSD-3-Clause
"""The one gate to PyTorch's unpickler (Y1): what opens it, and what is refused behind it."""

import contextlib
import decimal
import fractions
import io
import itertools
import os
import pickle
import signal
import struct
import subprocess
import time
from unittest import mock

import berth
import forbidden
import torch
from berth import _gate, _native
from berth._source import PinnedFile
from pickles import ONE, PROTO, archive, doubled, get, number, put, tensor, text
from records import Box, Mine, Point, Runs

from folder import Folder
from same import same

VARIABLES = ("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_SERIALIZATION_DEBUG")
BOX = b"crecords\nBox\n)\x81"
LEGACY = dict(_use_new_zipfile_serialization=False)


@contextlib.contextmanager
def environment(**variables):
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def collided(n, first=0):
    """Keys of one hash: 2^61 - 1 is Python's modulus."""
    return b"".join(b"\x8a\x10" + (first + i * (2**61 - 1)).to_bytes(16, "little") + b"N" for i in range(n))


class Opens(Folder):
    """What opens it."""

    def setUp(self):
        super().setUp()
        self.mark = self.path("mark")

    def evil(self, name, **how):
        torch.save([torch.ones(2), Runs(self.mark)], self.path(name), **how)
        return self.path(name)

    def sources(self, path):
        yield "path", path, {}
        yield "bytes", io.BytesIO(self.read(path)), {}
        with open(path, "rb") as file:
            yield "file", file, {}
        yield "mmap", path, {"mmap": True}

    def test_code_runs_for_false_alone(self):
        """weights_only x variables of PyTorch x sources x plain and installed x formats."""
        for path in (self.evil("zip.pt"), self.evil("legacy.pt", **LEGACY)):
            for load in (berth.load, installed):
                for n in range(len(VARIABLES) + 1):
                    for names in itertools.combinations(VARIABLES, n):
                        with environment(**dict.fromkeys(names, "1")):
                            self.try_each(load, path, names)

    def try_each(self, load, path, names):
        for options in ({}, {"weights_only": True}, {"weights_only": None}, {"weights_only": False}):
            for what, source, more in self.sources(path):
                with self.subTest(path, load=load, names=names, options=options, source=what):
                    with contextlib.suppress(berth.Error, RuntimeError):
                        load(source, **options, **more)[1].close()
                    can_run = options == {"weights_only": False} and VARIABLES[1] not in names
                    can_run = can_run and (what != "mmap" or "zip" in path)
                    self.assertEqual(os.path.exists(self.mark), can_run)
                    with contextlib.suppress(FileNotFoundError):
                        os.remove(self.mark)

    def test_the_variable_that_is_not_obeyed_is_told(self):
        torch.save([1], self.path("v.pt"))
        with environment(TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1"):
            with self.assertWarnsRegex(UserWarning, "not obeyed while Berth is installed"):
                installed(self.path("v.pt"))

    def test_the_globals_that_pytorch_allows_and_berth_does_not(self):
        """All are in the list, and refused by their names; the command refuses them, too."""
        refused = set()
        for name in torch._weights_only_unpickler._get_allowed_globals():
            data = archive(PROTO + b"c%s\n%s\n." % tuple(name.encode().rsplit(b".", 1)))
            for load in (berth.load, installed):
                with contextlib.suppress(RuntimeError):
                    try:
                        load(io.BytesIO(data))
                    except berth.UnsafeFileError as error:
                        self.assertIn(" ".join(name.rsplit(".", 1)), str(error))
                        refused.add(name)
        self.assertEqual(refused, _gate.WITH_CLASSES)
        for name in refused:
            self.assertIn(" ".join(name.rsplit(".", 1)), forbidden.Forbidden.GLOBALS)

    def test_one_of_them_with_what_the_program_allows(self):
        made = (b"ctorch._utils\n_rebuild_device_tensor_from_cpu_tensor\n(" + tensor() + b"ctorch\nfloat64\n" +
                text("cpu") + b"\x89tR")
        data = archive(PROTO + made + b".", ONE)
        function = torch._utils._rebuild_device_tensor_from_cpu_tensor
        for load in (berth.load, installed):
            with self.assertRaisesRegex(berth.UnsafeFileError, "_rebuild_device_tensor_from_cpu_tensor"):
                load(io.BytesIO(data))
            with torch.serialization.safe_globals([Box]), self.assertRaises(berth.UnsafeFileError):
                load(io.BytesIO(data))
            with torch.serialization.safe_globals([function]):
                self.assertEqual(load(io.BytesIO(data)).dtype, torch.float64)

    def test_both_formats_have_what_the_program_allows(self):
        for how in ({}, LEGACY):
            path = self.path("v.pt")
            torch.save([Box(torch.ones(2)), Point(1, 2)], path, **how)
            for load in (berth.load, installed):
                for _, source, more in self.sources(path):
                    if how and more:
                        continue
                    with self.assertRaises(berth.UnsafeFileError):
                        load(source, **more)
                with torch.serialization.safe_globals([Box, Point]):
                    for what, source, more in self.sources(path):
                        with self.subTest(how, load=load, source=what):
                            if how and more:
                                with self.assertRaisesRegex(RuntimeError, "zip archive") as raised:
                                    load(source, **more)
                                self.assertNotIsInstance(raised.exception, berth.DamagedFileError)
                            else:
                                box, point = load(source, **more)
                                self.assertEqual((box.content.sum(), point), (2, Point(1, 2)))
                                if isinstance(source, io.BytesIO):
                                    source.truncate(0)  # its memory was given back


class Turning(io.BytesIO):
    """A file object that has other bytes after so many reads."""

    def __init__(self, first, second, turns_at):
        super().__init__(first)
        self.second, self.turns_at = second, turns_at

    def readinto(self, memory):
        self.turns_at -= 1
        if self.turns_at < 0:
            self.getbuffer()[:] = self.second
        return super().readinto(memory)


def installed(*arguments, **named):
    with berth.installed():
        return torch.load(*arguments, **named)


class Behind(Folder):
    """What is refused although the program has allowed a class of the file, as without it."""

    def setUp(self):
        """What is let in ends for ever in C: SIGPROF ends the process, and so the test, after 30 s of processor."""
        super().setUp()
        signal.setitimer(signal.ITIMER_PROF, 30)
        self.addCleanup(signal.setitimer, signal.ITIMER_PROF, 0)

    def refuse(self, pickle, message):
        data = archive(PROTO + b"(" + pickle + BOX + b"t.", ONE)
        with torch.serialization.safe_globals([Box]):
            for load in (berth.load, installed):
                began = time.process_time()
                with self.assertRaisesRegex(berth.UnsafeFileError, f"^memory: data.pkl(?: at byte [0-9]+)?: .*{message}"):
                    load(io.BytesIO(data))
                self.assertLess(time.process_time() - began, 5)

    def test_another_global(self):
        """By Berth's own list, before PyTorch reads anything."""
        data = archive(PROTO + b"(cos\nsystem\n(" + text("true") + b"tR" + BOX + b"t.", ONE)
        with torch.serialization.safe_globals([Box]):
            with self.assertRaisesRegex(berth.UnsafeFileError, "^memory: data.pkl at byte .* is not allowed"):
                berth.load(io.BytesIO(data))

    def test_keys(self):
        doubling = doubled(b"K\1", 60, lambda i: get(i) + b"\x86")
        many = b"}(" + collided(20_000) + b"u"
        for key, message in ((doubling, "cannot hash"), (b"K\1" + b"\x85" * 100_000, "cannot hash")):
            self.refuse(b"}" + key + b"Ns", message)
            self.refuse(b"c__builtin__\nset\n](" + key + b"e\x85R", message)
        self.refuse(b"}K\1" + b"\x85" * 501 + b"Ns", "cannot hash")
        deepest = archive(PROTO + b"}K\1" + b"\x85" * 500 + b"Ns.", ONE)
        self.assertEqual(list(berth.load(io.BytesIO(deepest)).values()), [None])
        self.refuse(many, "hashes collide")
        self.refuse(b"}" + text("a") + many + b"s", "hashes collide")
        self.refuse(BOX + b"}" + text("a") + many + b"sb", "hashes collide")

    def test_a_refusal_names_its_file(self):
        """And its record, if it has records; whoever reads it, and from what; of a long name the end."""
        torch.save({1: 2}, self.path("old.pt"), **LEGACY)
        pickle = b"}" + b"K\1" + b"\x85" * 600 + b"Ns"
        data = archive(PROTO + b"(" + pickle + b"t.", ONE)
        old = self.read(self.path("old.pt")).replace(b"}q\0K\1K\2s.", pickle + b".")
        paths = {self.path("v.pt"): data, self.path("old.pt"): old, self.path("/".join(["long" * 20] * 5) + "/v.pt"): data}
        for path, content in paths.items():
            self.write(os.path.relpath(path, self.folder), content)
            name = path if len(path) < 200 else "..." + path[-204:]
            why = f"{'' if content == old else 'data.pkl: '}a key is a tuple or an object that Python cannot hash: more than 500"
            with open(path, "rb") as file, torch.serialization.safe_globals([Box]):
                for name, call in ((name, lambda: berth.load(path)), (name, lambda: berth.load(path, mmap=content == data)),
                                   ("memory", lambda: berth.load(io.BytesIO(content))),
                                   (f"descriptor {file.fileno()}", lambda: berth.load(file)),
                                   (name, lambda: installed(path)), (name, lambda: berth.dcp.load({}, path))):
                    with self.subTest(name), self.assertRaises(berth.DamagedFileError) as caught:
                        call()
                    self.assertTrue(str(caught.exception).startswith(f"{name}: {why}"), str(caught.exception))
        berth.save({"a\0b": torch.ones(1)}, self.path("v.pt"))
        with berth.open(self.path("v.pt")) as file:
            for call in (file.__getitem__, file.slice, file.numpy):
                with self.assertRaises(KeyError) as caught:
                    call("a\0b")
                self.assertEqual(caught.exception.args[0], f"{self.path('v.pt')}: no name has a NUL character; keys() gives "
                                 "a path in its place, as \"['a\\x00b']\"")

    def test_keys_that_are_objects(self):
        """Their hashes are not known before PyTorch makes them: a thousand are read, and no more (Y6)."""
        modulus = 2**61 - 1
        kinds = {"Decimal": (b"cdecimal\nDecimal\n", lambda i: text(str(modulus * i)) + b"\x85R"),
                 "Fraction": (b"cfractions\nFraction\n", lambda i: text(str(modulus * i)) + b"\x85R"),
                 "in a tuple": (b"cdecimal\nDecimal\n", lambda i: text(str(modulus * i)) + b"\x85R\x85")}
        containers = {"dict": (b"}(", b"N", b"u"), "set": (b"c__builtin__\nset\n](", b"", b"e\x85R"),
                      "ordered": (b"ccollections\nOrderedDict\n)R(", b"N", b"u")}
        with torch.serialization.safe_globals([decimal.Decimal, fractions.Fraction]):
            for (kind, (made_by, arguments)), (what, (begin, item, end)) in itertools.product(
                    kinds.items(), containers.items()):
                for n in (1000, 4000):
                    keys = b"".join(get(0) + arguments(i) + item for i in range(1, n + 1))
                    file = io.BytesIO(archive(PROTO + b"(" + made_by + put(0) + begin + keys + end + b"t."))
                    began = time.process_time()
                    with self.subTest(kind, what=what, n=n):
                        if n == 1000:
                            self.assertEqual(len(berth.load(file)[1]), n)
                        else:
                            with self.assertRaisesRegex(berth.UnsafeFileError, "keys of a dict or set are objects"):
                                berth.load(file)
                        self.assertLess(time.process_time() - began, 3)
            # One file can have many small dicts, also of the same keys; a dict can have both sorts of keys.
            key = get(0) + text("1") + b"\x85R"
            file = archive(PROTO + b"(" + made_by + put(0) + b"](" + (b"}" + key + b"Ns") * 20_000 + b"et.")
            self.assertEqual(len(berth.load(io.BytesIO(file))[1]), 20_000)
            objects = b"".join(get(0) + arguments(i) + b"N" for i in range(1, 1000))
            self.refuse_object_keys(made_by + put(0) + b"}(" + objects + collided(2500) + b"u")
            shared = b"(" + b"".join(get(0) + arguments(i)[:-1] + put(i) for i in range(1, 200)) + b"t"
            again = b"}(" + b"".join(get(i) + b"N" for i in range(1, 200)) + b"u"
            self.refuse_object_keys(made_by + put(0) + b"](" + shared + again * 1000 + b"e")
        for name in (b"__builtin__", b"builtins"):
            with torch.serialization.safe_globals([frozenset]):
                numbers = b"".join(b"\x8a\x10" + (i * (2**61 - 1)).to_bytes(16, "little") for i in range(20_000))
                self.refuse_object_keys(b"c" + name + b"\nfrozenset\n](" + numbers + b"e\x85R", "hashes collide")
                for items in (b"", b"K\1K\2", b"".join(map(number, range(3000)))):
                    data = archive(PROTO + b"c" + name + b"\nfrozenset\n](" + items + b"e\x85R.")
                    self.assertEqual(type(berth.load(io.BytesIO(data))), frozenset)
                with self.assertRaises(berth.Error):
                    berth.load(io.BytesIO(archive(PROTO + b"c" + name + b"\nfrozenset\n](]e\x85R.")))
        # A class hashes its fields: tuples in them count as in tuples.
        key = doubled(b"K\1", 60, lambda i: get(i) + b"\x86")
        with torch.serialization.safe_globals([Point]):
            self.refuse_object_keys(b"}crecords\nPoint\n" + key + b"K\1\x86\x81Ns", "cannot hash")
        with torch.serialization.safe_globals([Box]):
            self.refuse_object_keys(b"}" + BOX + b"}" + text("content") + key + b"sbNs", "cannot hash")

    def refuse_object_keys(self, pickle, message="are objects|collide"):
        began = time.process_time()
        with self.assertRaisesRegex(berth.UnsafeFileError, f"^memory: data.pkl(?: at byte [0-9]+)?: .*(?:{message})"):
            berth.load(io.BytesIO(archive(PROTO + b"(" + pickle + b"t.")))
        self.assertLess(time.process_time() - began, 3)

    def test_what_another_reading_gives(self):
        """What Berth has read is what PyTorch unpickles: an object may have other bytes after any of its reads."""
        def keys(step):
            return b"".join(b"\x8a\x10" + (step * i + 1).to_bytes(16, "little") + b"N" for i in range(4000))

        torch.save([1], self.path("legacy.pt"), **LEGACY)
        head, tail = self.read(self.path("legacy.pt")).split(b"\x80\2]q\0K\1a.")
        good, bad = (PROTO + b"(}(" + keys(step) + b"u" + BOX + b"t." for step in (1, 2**61 - 1))
        for first, second in ((archive(good), archive(bad)), (head + good + tail, head + bad + tail)):
            with torch.serialization.safe_globals([Box]), self.assertRaisesRegex(berth.Error, "hashes collide"):
                berth.load(Turning(second, second, 0))
            n_loaded = 0
            for turns_at in range(30):
                file = Turning(first, second, turns_at)
                for options in ({}, {"encoding": "latin1"}):
                    with torch.serialization.safe_globals([Box]), contextlib.suppress(berth.Error):
                        self.assertEqual(len(set(map(hash, berth.load(file, **options)[0]))), 4000, turns_at)
                        n_loaded += 1
            self.assertGreater(n_loaded, 20)

    def test_what_pytorch_says_and_what_the_caller_raises(self):
        """Both formats, paths and objects alike: the file is to blame, or map_location is."""
        def location(_storage, _location):
            raise KeyError("of the caller")

        torch.save([1], self.path("legacy.pt"), **LEGACY)
        head, tail = self.read(self.path("legacy.pt")).split(b"\x80\2]q\0K\1a.")
        module = b"(" + text("module") + BOX + text("file") + text("source") + b"tQ"
        with torch.serialization.safe_globals([Box]):
            for path, kind, says in (
                    (self.write("module.pt", head + PROTO + module + b"." + tail), berth.UnsafeFileError, "PyTorch's"),
                    (self.write("place.pt", archive(PROTO + b"(" + tensor(location=b"cpx") + BOX + b"t.", ONE)),
                     berth.Error, "'cpx', where this PyTorch cannot put it")):
                for source in (path, io.BytesIO(self.read(path))):
                    with self.subTest(source), self.assertRaisesRegex(kind, says):
                        berth.load(source)
            for how in ({}, LEGACY):
                path = self.path("v.pt")
                torch.save([Box(1), torch.ones(2)], path, **how)
                for source in (path, io.BytesIO(self.read(path))):
                    with self.subTest(source, how=how), self.assertRaises(KeyError) as raised:
                        berth.load(source, location)
                    self.assertEqual(raised.exception.args, ("of the caller", ))

    def test_a_pinned_file_has_no_bytes_outside(self):
        """Also not of a file that was told to seek before its begin."""
        for source in (memoryview(b"berth"), os.fsencode(self.write("berth", b"berth"))):
            pinned = _native.pin(source)
            for offset, nbytes in ((-1, 2), (2**63 - 1, 1), (5, 1), (4, 2), (0, 6), (1, 2**63 - 1), (0, -1)):
                with self.subTest(offset=offset, nbytes=nbytes), self.assertRaises(ValueError):
                    pinned.read(offset, nbytes)
            self.assertEqual((pinned.read(1, 4), pinned.read(5, 0)), (b"erth", b""))
            with io.BufferedReader(PinnedFile(pinned)) as file:
                for begin, whence in ((-1, os.SEEK_SET), (-6, os.SEEK_END)):
                    with self.assertRaises((OSError, ValueError)):
                        file.seek(begin, whence)
                        file.read(1)

    def test_what_was_kept_stays(self):
        """Also in the middle of a later read."""
        pinned = _native.pin(os.fsencode(self.write("v", b"0123456789")))
        pinned.keep(True)
        pinned.read(4, 2)
        self.write("v", b"abcdefghij")
        self.assertEqual([pinned.read(2, 6), pinned.read(0, 10)], [b"cd45gh", b"abcd45ghij"])

    def test_a_file_that_is_exchanged(self):
        """Between Berth's reading and PyTorch's: another file of that name, and other bytes in the same file."""
        first, second = ([Box(i), torch.full((30_000, ), i)] for i in (1, 2))
        for how in ({}, LEGACY):
            torch.save(second, self.path("second.pt"), **how)
            other = self.read(self.path("second.pt"))

            def exchange():
                self.write("new.pt", other)
                os.replace(self.path("new.pt"), self.path("v.pt"))

            for change in (exchange, lambda: self.write("v.pt", other)):
                for what, options in (("path", {}), ("path", {"encoding": "latin1"}), ("file", {}),
                                      ("path", {"mmap": True})):
                    if how and "mmap" in options:
                        continue
                    torch.save(first, self.path("v.pt"), **how)
                    with self.subTest(how, change=change, what=what, options=options):
                        with open(self.path("v.pt"), "rb") as file:
                            box, tensor = self.load_changed(file if what == "file" else file.name, change, options)
                        self.assertEqual(box.content, 1)
                        if change is exchange:  # else the tensors are those of the file now
                            self.assertEqual(tensor.unique().tolist(), [1])

    def load_changed(self, f, change, options):
        scan = _gate.try_pickle

        def changing(kept):
            scan(kept)
            change()

        with mock.patch.object(_gate, "try_pickle", changing), torch.serialization.safe_globals([Box]):
            return berth.load(f, **options)

    def test_what_another_value_replaces(self):
        many = b"}(" + collided(20_000) + b"u"
        self.refuse(b"}" + text("a") + many + b"s" + text("a") + b"Ns", "a key twice")
        self.refuse(b"c__builtin__\nset\n](" + b"K\1\x85K\1\x85" + b"e\x85R", "a key twice")

    def test_the_states_of_the_program(self):
        """A mode of PyTorch: its unpickler makes the values, behind the same limits."""
        good = archive(PROTO + tensor() + b".", ONE)
        bad = archive(PROTO + b"}(" + collided(20_000) + b"u.")
        evil = archive(PROTO + b"cos\nsystem\n(" + text("true") + b"tR.")
        for options in ({}, {"encoding": "latin1"}):
            with contextlib.nullcontext() if options else torch.device("meta"):
                for load in (berth.load, installed):
                    self.assertEqual(load(io.BytesIO(good), **options).numel(), 1)
                    for data in (bad, evil):
                        with self.assertRaises(berth.UnsafeFileError):
                            load(io.BytesIO(data), **options)

    def test_texts_of_python_2(self):
        """What torch.load gives, in both formats; a refusal if it refuses, or the encoding is not one of ours."""
        torch.save([1], self.path("legacy.pt"), **LEGACY)
        head, tail = self.read(self.path("legacy.pt")).split(b"\x80\2]q\0K\1a.")
        for old in (b"abc", b"caf\xe9", b"\xc3\xa9", b"\xed\xa0\x80", bytes(range(128, 256)), b""):
            body = b"U" + bytes([len(old)]) + old
            body = PROTO + b"}(" + body + tensor() + body + b"\x85" + text("\u00e9") + b"u."
            legacy = head + PROTO + b"(U" + bytes([len(old)]) + old + text("\u00e9") + b"t." + tail
            for encoding in ("utf-8", "UTF8", "ascii", "latin1", "ISO-8859-1", "bytes", "cp1252", "none such"):
                for name, data in (("zip", archive(body, ONE)), ("legacy", legacy)):
                    with self.subTest(old, encoding=encoding, name=name):
                        self.check_old(self.write(name, data), encoding)

    def check_old(self, path, encoding):
        try:
            theirs = torch.load(path, encoding=encoding)
        except Exception:
            theirs = None
        for load in (berth.load, installed):
            try:
                mine = load(path, encoding=encoding)
            except berth.Error as error:
                if theirs is not None:
                    self.assertEqual(encoding, "cp1252")
                    self.assertIn('UTF-8 at its byte 0 (load.old_text=latin1 reads it, in Python encoding="latin1")',
                                  str(error).replace("byte 3", "byte 0"))
            else:
                same(mine, theirs, resizable=False)


class Damage(Folder):
    """It is told as damage, with its record, whatever the pickle names, in each mode."""

    def errors(self, data):
        for trust in ((), (Box, ), None):
            for load in (berth.load, installed):
                with torch.serialization.safe_globals(list(trust or ())):
                    try:
                        load(io.BytesIO(data), weights_only=trust is not None)
                    except berth.Error as error:
                        yield trust, error

    def test_of_archives(self):
        for value in ([Box(torch.ones(2000))], [torch.ones(2000)]):
            torch.save(value, self.path("v.pt"))
            data = self.read(self.path("v.pt"))
            at = data.index(b"data.pkl")
            for broken, message in ((data[:-30], "cut|end"), (data[:1000], "cut|end"), (data[:at + 70], "cut|end")):
                found = list(self.errors(broken))
                self.assertEqual(len(found), 6)
                for trust, error in found:
                    self.assertIn(error.status, _gate.DAMAGE, (trust, str(error)))
            where = data.index(b"Box" if b"Box" in data else b"torch.FloatStorage"[6:])
            broken = data[:where] + b"b" + data[where + 1:]
            for trust, error in self.errors(broken):
                self.assertEqual((error.status, error.record), ("BERTH_E_CHECKSUM", "data.pkl"), (trust, str(error)))

    def test_of_the_legacy_format(self):
        torch.save([Box(torch.ones(2000))], self.path("v.pt"), **LEGACY)
        data = self.read(self.path("v.pt"))
        for n in (len(data) - 100, len(data) - 8010, 100):
            for trust, error in self.errors(data[:n]):
                self.assertIn(error.status, _gate.DAMAGE if trust else (*_gate.DAMAGE, "BERTH_E_FORBIDDEN",
                                                                        "BERTH_E_PICKLE"), (trust, str(error)))


    def test_of_pickles_that_are_trusted(self):
        """Record and byte of the first opcode that cannot be read, whatever the unpickler raises."""
        torch.save([1], self.path("legacy.pt"), **LEGACY)
        head = self.read(self.path("legacy.pt")).split(b"\x80\2]q\0K\1a.")[0]
        body = PROTO + b"(" + tensor() + text("abc") + b"K\1"
        for pickle, at in (*((body[:n], None) for n in range(1, len(body))), (body, len(body)),
                           (body + b"X\3\0\0\0\xd8bc", len(body)), (body + b"\xee", len(body)),
                           (body + b"ccol\xc2\nx\n", len(body)), (PROTO + b"K\1\x86.", 4), (PROTO + b"h\x07.", 2),
                           (body.replace(b"storage", b"storagf", 1) + b"t.", None),
                           (PROTO + text("storage") + b"\x85Q.", None), (PROTO + b"}]Ns.", 5),
                           (PROTO + b"}]\x85Ns.", 6)):
            for record, data, base in (("data.pkl", archive(pickle, ONE), None), ("", head + pickle, len(head))):
                base = data.index(pickle) if base is None else base
                for load in (berth.load, installed):
                    with self.subTest(pickle, load=load, record=record):
                        with self.assertRaises(berth.DamagedFileError) as caught:
                            load(io.BytesIO(data), weights_only=False)
                        error = caught.exception
                        if not record and error.status == "BERTH_E_TRUNCATED":  # the library's words, before it is run
                            continue
                        self.assertIsInstance(error, berth.UnsafeFileError)
                        self.assertEqual(error.record, record)
                        self.assertIn(f"byte {error.offset}: the pickle is malformed", str(error))
                        if at is not None:
                            self.assertEqual(error.offset, base + at)

    def test_what_is_no_pickle_is_told_alike_in_every_mode(self):
        legacy, tensors = self.path("l.pt"), self.path("s.safetensors")
        torch.save({"w": torch.arange(100)}, legacy, **LEGACY)
        berth.save({"w": torch.arange(1000.)}, tensors)
        files = {"empty": b"", "zeros": bytes(5000), "elf": b"\x7fELF" + bytes(60), "gzip": b"\x1f\x8b\x08" + bytes(60),
                 "html": b"<!DOCTYPE html><html>", "cut": self.read(tensors)[:-100], "more": self.read(tensors) + b"more",
                 "legacy": self.read(legacy) + b"a text behind", "legacy cut": self.read(legacy)[:-100]}
        for name, content in files.items():
            self.write(name, content)
        for name in (*files, "not there"):
            path = self.path(name)
            with self.assertRaises(berth.Error) as safe:
                berth.load(path)
            for module in (berth, torch):
                with (self.subTest(name, module=module), berth.installed(),
                      self.assertRaises(type(safe.exception)) as trusted):
                    module.load(path, weights_only=False)
                self.assertEqual(str(trusted.exception), str(safe.exception))
            if name in ("empty", "zeros", "cut", "more", "legacy", "legacy cut"):
                self.assertIsInstance(safe.exception, berth.DamagedFileError, name)
        same(berth.load(tensors, weights_only=False), berth.load(tensors))
        self.write("two", self.read(legacy) * 2)
        self.assertTrue(torch.equal(berth.load(self.path("two"), weights_only=False)["w"], torch.arange(100)))

    def test_what_may_not_be_looked_at(self):
        """In a folder of another user."""
        path = self.path("closed/v.pt")
        torch.save([1], path)
        for folder in (self.path("closed"), self.path(".")):
            os.chmod(folder, 0)
            self.addCleanup(os.chmod, folder, 0o700)
        user = os.geteuid()
        for weights_only in (True, False):
            try:
                if user == 0:
                    os.seteuid(65534)
                with self.assertRaisesRegex(berth.FileError, "cannot be opened: Permission denied"):
                    berth.load(path, weights_only=weights_only)
            finally:
                os.seteuid(user)

    def test_errors_of_the_files_own_classes_stay(self):
        for kind in (EOFError, AssertionError, ValueError):
            torch.save(Raising(kind), self.path("v.pt"))
            with self.assertRaises(kind) as caught:
                berth.load(self.path("v.pt"), weights_only=False)
            self.assertIs(type(caught.exception), kind)

    def test_calls_of_trusted_files_with_no_arguments(self):
        """REDUCE with an int in their place: PyTorch's own error stays; an untrusted file is refused."""
        data = archive(PROTO + b"ccollections\nOrderedDict\nK\1R.")
        for load in (torch.load, berth.load, installed):
            with self.assertRaisesRegex(TypeError, "^argument list must be a tuple$"):
                load(io.BytesIO(data), weights_only=False)
        for load in (berth.load, installed):
            with self.assertRaisesRegex(berth.UnsafeFileError, "REDUCE with an int for arguments"):
                load(io.BytesIO(data))


class Raising:
    """Its state raises an exception."""

    def __init__(self, kind):
        self.kind = kind

    def __setstate__(self, state):
        raise state["kind"]("of the file's class")


class Prefixes(Folder):
    """All beginnings of malicious pickles: each is refused by an exception of ours."""

    def pickles(self):
        yield pickle.dumps([{"a": 1.5}, Runs("mark"), "text", 2**80, b"bytes"], 2)
        yield pickle.dumps(Mine(a=1, b=Box("x" * 300)), 2)
        yield pickle.dumps([Runs("mark")], 0)
        yield pickle.dumps([Runs("mark"), Box("b")], 4)
        yield PROTO + b"cos\nsystem\n(" + text("true") + b"tR" + text("é" * 40) + b"U\3abc\x8a\3abcG" + \
            struct.pack(">d", 1) + b"J\1\2\3\4."

    def test_in_archives_and_legacy_files(self):
        torch.save([1], self.path("legacy.pt"), **LEGACY)
        head = self.read(self.path("legacy.pt")).split(b"\x80\2]q\0K\1a.")[0]
        for data in self.pickles():
            for n in range(len(data)):
                for file in (archive(data[:n]), head + data[:n]):
                    for load in (berth.load, installed):
                        with self.subTest(data[:n], load=load), self.assertRaises(berth.Error):
                            load(io.BytesIO(file))
                with torch.serialization.safe_globals([Box, open]), self.assertRaises(berth.Error):
                    berth.load(io.BytesIO(archive(data[:n])))
        self.assertFalse(os.path.exists("mark"))

    def test_by_the_command(self):
        path = self.write("v.pt", archive(PROTO + b"ctorch._utils\n_rebuild_wrapper_subclass\n."))
        done = subprocess.run([os.path.join(os.environ["BERTH_BUILD"], "berth"), "ls", path], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("_rebuild_wrapper_subclass", done.stderr)

