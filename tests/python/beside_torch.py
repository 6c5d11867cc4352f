# SPDX-License-Identifier: BSD-3-Clause
"""berth.config beside PyTorch's: each row of docs/config.md, "In Python", is called on both."""

import contextlib
import copy
import mmap
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
import warnings

import berth
import torch
from berth import config as mine

try:
    from torch.utils.serialization import config as theirs
except ImportError:
    import config_of_old_torch as theirs

NAME = "save.storage_alignment"  # an int, and 64 by default, in both
PAGE = os.path.join(os.path.dirname(__file__), "../../docs/config.md")
OF_2_6 = torch.__version__.startswith("2.6.")


def rows_of_page():
    """The first cells of the table."""
    with open(PAGE, encoding="utf-8") as file:
        part = file.read().partition("\n## In Python")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [line.split(" | ")[0].strip("| ").replace("`", "") for line in lines[2:]]


def of(config):
    return config.save.storage_alignment


def elsewhere(function):
    """What a function returns on another thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def patched(config, patch):
    """The value in a patch, and behind it."""
    with patch:
        inside = of(config)
    return inside, of(config)


ROWS = {}


def row(name):
    def named(function):
        ROWS[name] = function
        return function
    return named


def both(case, function, expected):
    for config in (theirs, mine):
        case.assertEqual(function(config), expected, config.__name__)


@row("config.save.storage_alignment")
def read(case):
    both(case, of, 64)


@row("config.save.storage_alignment = 4096")
def assign(case):
    def assigned(config):
        config.save.storage_alignment = 4096
        return of(config), elsewhere(lambda: of(config))

    case.assertEqual(assigned(theirs), (4096, 4096 if OF_2_6 else 64))
    case.assertEqual(assigned(mine), (4096, 4096))
    theirs.save.storage_alignment = 65  # which no file can have
    with case.assertRaisesRegex(ValueError, "65.*power of two"):
        mine.save.storage_alignment = 65


@row('getattr(config, "save.storage_alignment"), setattr')
def whole_name(case):
    def by_name(config):
        setattr(config, NAME, 128)
        return getattr(config, NAME), of(config)

    both(case, by_name, (128, 128))


@row("del config.save.storage_alignment")
def delete(case):
    def deleted(config):
        config.save.storage_alignment = 128
        del config.save.storage_alignment
        return getattr(config.save, "storage_alignment", None)

    case.assertEqual((deleted(theirs), deleted(mine)), (None, 64))
    with case.assertRaises(KeyError):
        delattr(theirs, "save.nothing")
    with case.assertRaises(KeyError):
        delattr(mine, "save.nothing")


@row("config.nothing, config.save.nothing = 1")
def no_such_name(case):
    for config in (theirs, mine):
        for code in (lambda: config.nothing, lambda: config.save.nothing,
                     lambda: setattr(config.save, "nothing", 1), lambda: setattr(config, "nothing", 1)):
            with case.assertRaises(AttributeError):
                code()
        case.assertFalse(hasattr(config, "nothing"))


@row("config.load.endianness = LoadEndianness.BIG")
def endianness(case):
    big = torch.serialization.LoadEndianness.BIG
    theirs.load.endianness = mine.load.endianness = big
    case.assertEqual((theirs.load.endianness, mine.load.endianness), (big, "big"))


@row("config.load.mmap_flags = mmap.MAP_SHARED")
def flags(case):
    theirs.load.mmap_flags = mine.load.mmap_flags = mmap.MAP_SHARED
    case.assertEqual((theirs.load.mmap_flags, mine.load.mmap_flags), (mmap.MAP_SHARED, "shared"))


@row('config.patch("save.storage_alignment", 4096)')
def patch_of_two(case):
    both(case, lambda config: patched(config, config.patch(NAME, 4096)), (4096, 64))


@row('config.patch({"save.storage_alignment": 4096})')
def patch_of_a_dict(case):
    both(case, lambda config: patched(config, config.patch({NAME: 4096, "load.mmap": True})), (4096, 64))


@row('config.patch(**{"save.storage_alignment": 4096})')
def patch_of_names(case):
    both(case, lambda config: patched(config, config.patch(**{NAME: 4096})), (4096, 64))
    with case.assertRaises(AttributeError):
        theirs.patch(save_storage_alignment=4096).__enter__()
    case.assertEqual(patched(mine, mine.patch(save_storage_alignment=4096)), (4096, 64))


@row('config.patch(arg1="save.storage_alignment", arg2=4096)')
def patch_by_names_of_parameters(case):
    case.assertEqual(patched(theirs, theirs.patch(arg1=NAME, arg2=4096)), (4096, 64))
    with case.assertRaisesRegex(AttributeError, "arg1"):
        mine.patch(arg1=NAME, arg2=4096).__enter__()


@row("config.patch(None)")
def patch_of_nothing(case):
    case.assertEqual(patched(theirs, theirs.patch(None)), (64, 64))
    with case.assertRaises(TypeError):
        mine.patch(None)
    both(case, lambda config: patched(config, config.patch()), (64, 64))
    both(case, lambda config: patched(config, config.patch({})), (64, 64))


@row("@config.patch(...) on a function")
def decorator(case):
    def decorated(config):
        @config.patch(NAME, 4096)
        def call():
            return of(config)

        return call(), of(config), call()

    both(case, decorated, (4096, 64, 4096))


@row("@config.patch(...) on a unittest.TestCase")
def decorator_of_tests(case):
    def decorated(config):
        @config.patch(NAME, 4096)
        class Case(unittest.TestCase):
            seen = []

            def test(self):
                self.seen.append(of(config))

        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
        return Case.__name__, Case.seen, result.wasSuccessful(), of(config)

    both(case, decorated, ("Case", [4096], True, 64))


@row("a patch that is entered twice")
def twice(case):
    def entered(config):
        patch = config.patch(NAME, 4096)
        with patch, patch:
            return of(config)

    if OF_2_6:
        case.assertRaises(AssertionError, entered, theirs)
        theirs.save.storage_alignment = 64
    else:
        case.assertEqual(entered(theirs), 4096)
    case.assertEqual((entered(mine), of(mine)), (4096, 64))


@row("a patch in a patch; a value that is set in a patch")
def nested(case):
    def seen(config):
        with config.patch(NAME, 128):
            with config.patch(NAME, 256):
                config.save.storage_alignment = 512
                found = [of(config)]
            found.append(of(config))
        return [*found, of(config)]

    both(case, seen, [512, 128, 64])


@row("a patch with a mistake")
def mistaken(case):
    for config in (theirs, mine):
        patch = config.patch({NAME: 4096, "save.nothing": 1})
        with case.assertRaises(AttributeError):
            patch.__enter__()
        case.assertEqual(of(config), 64)
    patched(theirs, theirs.patch({NAME: 4096, "save.compute_crc32": "maybe"}))
    with case.assertRaises(ValueError):
        patched(mine, mine.patch({NAME: 4096, "save.compute_crc32": "maybe"}))
    case.assertEqual(of(mine), 64)


@row("a patch, seen by other threads")
def threads(case):
    def seen(config):
        with config.patch(NAME, 4096):
            return elsewhere(lambda: of(config))

    case.assertEqual((seen(theirs), seen(mine)), (4096 if OF_2_6 else 64, 64))


@row("patches that end out of order")
def out_of_order(case):
    def seen(config):
        first, second = config.patch(NAME, 128), config.patch("save.compute_crc32", False)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        found = [of(config), config.save.compute_crc32]
        second.__exit__(None, None, None)
        return [*found, of(config), config.save.compute_crc32]

    both(case, seen, [64, False, 64, True])

    def of_one_option(config, *order):
        patches, found = [config.patch(NAME, 128 << i) for i in range(len(order))], []
        for each in patches:
            each.__enter__()
        for i in order:
            patches[i].__exit__(None, None, None)
            found.append(of(config))
        return found

    case.assertEqual((of_one_option(theirs, 0, 1), of_one_option(mine, 0, 1)), ([64, 128], [256, 64]))
    case.assertEqual(of_one_option(mine, 0, 2, 1), [512, 256, 64])  # those that go on keep their order


@row('unittest.mock.patch.object(config.save, "storage_alignment", 4096)')
def mocked(case):
    def seen(config):
        found = []
        for value in (None, 128):
            if value:
                config.save.storage_alignment = value
            with unittest.mock.patch.object(config.save, "storage_alignment", 4096):
                found.append(of(config))
            found.append(of(config))
        return found

    both(case, seen, [4096, 64, 4096, 128])


@row("get_hash()")
def hashes(case):
    def seen(config):
        before = config.get_hash()
        with config.patch(NAME, 4096):
            inside = config.get_hash()
        return type(before), inside != before, config.get_hash() == before

    both(case, seen, (bytes, True, True))
    with mine.patch("load.prefetch", "read"):
        hashes = [mine.get_hash(each) for each in ("bytes", "acceptance", "speed")]
    case.assertEqual([mine.get_hash(each) == found for each, found
                      in zip(("bytes", "acceptance", "speed"), hashes)], [True, True, False])
    with case.assertRaisesRegex(ValueError, "no class 'colour'; there are: bytes, acceptance, speed"):
        mine.get_hash("colour")


@row("to_dict(), shallow_copy_dict()")
def deprecated_copies(case):
    for config in (theirs, mine):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            case.assertEqual(config.to_dict(), config.get_config_copy())
            case.assertEqual(config.shallow_copy_dict(), config.get_config_copy())
        case.assertEqual([each.category for each in seen], [FutureWarning] * 2 if config is theirs else [])


@row("get_config_copy()")
def copies(case):
    def seen(config):
        with config.patch(NAME, 4096):
            found = config.get_config_copy()
        found["save.compute_crc32"] = False  # of the copy alone
        return type(found), found[NAME], config.save.compute_crc32

    both(case, seen, (dict, 4096, True))


@row("get_serializable_config_copy()")
def serializable_copies(case):
    case.assertEqual(mine.get_serializable_config_copy(), mine.get_config_copy())
    if not OF_2_6:
        case.assertEqual(theirs.get_serializable_config_copy(), theirs.get_config_copy())


@row("save_config(), load_config(bytes)")
def saved(case):
    def seen(config):
        config.save.storage_alignment = 4096
        blob = config.save_config()
        config.save.storage_alignment = 128
        config.load_config(blob)
        return type(blob), of(config)

    both(case, seen, (bytes, 4096))


@row("load_config(dict)")
def loaded(case):
    def seen(config):
        values = {**config.get_config_copy(), NAME: 4096}
        config.load_config(values)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            config.load_config({"save.nothing": 1, NAME: 128})
        return of(config), len(heard)

    case.assertEqual(seen(mine), (128, 1))
    with contextlib.ExitStack() as stack:
        if not OF_2_6:  # which imports more than half of PyTorch to warn, by a log
            warn = "torch._dynamo.utils.warn_once"
            stack.enter_context(unittest.mock.patch(warn, lambda text: warnings.warn(text)))
        case.assertEqual(seen(theirs), (128, 1))


@row("save_config_portable()")
def portable(case):
    def seen(config):
        if not OF_2_6:
            config.save_config_portable(ignore_private_configs=False, readonly_values=True)
        config.save.storage_alignment = 4096
        return config.save_config_portable()[NAME]

    both(case, seen, 4096)


@row("codegen_config()")
def code(case):
    def seen(config):
        config.save.storage_alignment = 4096
        text = config.codegen_config()
        config.save.storage_alignment = 64
        exec(text, {"torch": torch, "berth": berth, theirs.__name__: theirs})
        of_environment = {f"{config.__name__}.debug = True"}  # where tests run in debug mode
        return set(text.splitlines()) - of_environment, of(config)

    for config in (theirs, mine):
        case.assertEqual(seen(config), ({f"{config.__name__}.{NAME} = 4096"}, 4096))


@row('get_type("save.storage_alignment")')
def types(case):
    both(case, lambda config: (config.get_type(NAME), config.get_type("load.mmap")), (int, bool))
    for config in (theirs, mine):
        with case.assertRaises(KeyError):
            config.get_type("save.nothing")


@row("_is_default(name)")
def defaults(case):
    case.assertTrue(theirs._is_default(NAME) and mine.is_default(NAME))
    theirs.save.storage_alignment = mine.save.storage_alignment = 128
    case.assertFalse(theirs._is_default(NAME) or mine.is_default(NAME))
    theirs.save.storage_alignment = mine.save.storage_alignment = 64
    case.assertEqual((theirs._is_default(NAME), mine.is_default(NAME)), (False, True))


@row("_make_closure_patcher(**changes)")
def closures(case):
    revert = theirs._make_closure_patcher(**{NAME: 4096})()
    case.assertEqual(of(theirs), 4096)
    revert()
    patch = mine.patch(NAME, 4096)
    case.assertEqual([patched(mine, patch), patched(mine, patch), of(theirs)], [(4096, 64)] * 2 + [64])


@row("_compile_ignored_keys")
def ignored(case):
    case.assertEqual(theirs._compile_ignored_keys, set())
    case.assertFalse(hasattr(mine, "_compile_ignored_keys"))


@row("copy.copy(config), copy.deepcopy(config), pickle.dumps(config)")
def values(case):
    mine.save.storage_alignment = 4096
    for function in (copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))):
        for part in ("", "save"):
            with case.assertRaises((TypeError, RecursionError)):
                function(getattr(theirs, part) if part else theirs)
        case.assertEqual(function(mine), mine.get_config_copy())
        case.assertEqual(function(mine.save), {name: getattr(mine.save, name) for name in dir(mine.save)})
    case.assertEqual(copy.deepcopy([mine.save])[0]["storage_alignment"], 4096)


@row("dir(config)")
def names(case):
    for config in (theirs, mine):
        case.assertLessEqual({"save", "load"}, set(dir(config)))
    case.assertIn("storage_alignment", dir(mine.save))
    public = {name for name in dir(type(theirs)) if name[0] != "_"} - set(dir(object))
    case.assertEqual(public - set(dir(mine)), set())  # all of PyTorch's is there


def reset():
    mine.reset()
    for name, entry in theirs._config.items():
        delattr(theirs, name)
        entry.hide = False


class BesideTorch(unittest.TestCase):
    def setUp(self):
        self.addCleanup(reset)

    def test_each_row_of_the_page(self):
        page = rows_of_page()
        self.assertEqual(page, list(ROWS))
        for name, function in ROWS.items():
            with self.subTest(name):
                try:
                    function(self)
                finally:
                    reset()

    def test_no_bytes_run_code(self):
        class Evil:
            def __reduce__(self):
                return exec, ("raise SystemExit('it ran')",)

        for protocol in range(6):
            with self.assertRaisesRegex(berth.ArgumentError, "pickle is not read|form name=value"):
                mine.load_config(pickle.dumps({NAME: Evil()}, protocol))
        for text in (b"save.durability=maybe", b"save.storage_alignment",
                     b"save.storage_alignment=128\nload.mmap=x"):
            with self.assertRaises(berth.ArgumentError):
                mine.load_config(text)
        self.assertEqual(of(mine), 64)
        for other in (None, 1, "text", [1]):
            with self.assertRaisesRegex(TypeError, "bytes or a dict"):
                mine.load_config(other)

    def test_values_are_whole(self):
        """White space in a value begins no other assignment; what is no value is refused."""
        for value in ("/tmp/a b", "/tmp/a\tsave.durability=none", "save.durability=none x", b"/tmp/\xff"):
            for change in (lambda: mine.patch("trace", value), lambda: mine.patch(trace=value),
                           lambda: mine.patch({"save.method": "direct", "trace": value})):
                if b"\t" in os.fsencode(value):
                    with self.assertRaises(berth.ArgumentError):
                        change().__enter__()
                else:
                    with change():
                        self.assertEqual(mine.trace, os.fsdecode(value))
                        self.assertEqual(mine.save.durability, "full")
                        with mine.patch("trace", "/tmp/an other"):
                            mine.load_config(mine.save_config())
                        self.assertEqual(mine.trace, os.fsdecode(value))
                self.assertEqual((mine.trace, mine.save.method), ("", "auto"))
        for value in ("data none", "data\0", "", "da ta"):
            for change in (lambda: mine.patch("load.check", value).__enter__(),
                           lambda: setattr(mine.load, "check", value),
                           lambda: mine.load_config({"save.method": "direct", "load.check": value})):
                with self.assertRaises(berth.ArgumentError):
                    change()
        self.assertEqual((mine.load.check, mine.save.method), ("directory", "auto"))

    def test_a_patch_ends_on_its_thread(self):
        patch = mine.patch(NAME, 4096)
        patch.__enter__()

        def end():
            with self.assertRaisesRegex(ValueError, "did not begin on this thread"):
                patch.__exit__(None, None, None)
            return True

        self.assertTrue(elsewhere(end))
        self.assertEqual(of(mine), 4096)
        patch.__exit__(None, None, None)
        with self.assertRaises(ValueError):
            patch.__exit__(None, None, None)
        self.assertEqual(of(mine), 64)

    def test_generators_that_take_turns(self):
        def steps(value):
            with mine.patch(NAME, value):
                yield of(mine)
                yield

        first, second = steps(128), steps(256)
        self.assertEqual([next(first), next(second)], [128, 256])
        mine.save.storage_alignment = 512  # of the patch that is in force
        first.close()
        self.assertEqual(of(mine), 512)
        second.close()
        self.assertEqual(of(mine), 64)

    def test_saved_text_is_that_of_the_command(self):
        mine.save.storage_alignment = 4096
        code = ("from berth import config\n"
                "print(config.save.storage_alignment, config.describe('debug')['source'])")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_SERIAL")}
        with tempfile.NamedTemporaryFile() as file:
            file.write(mine.save_config())
            file.flush()
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                                  env={**environment, "BERTH_CONFIG": file.name})
        self.assertEqual(done.stdout, f"4096 file {file.name}:1\n")
