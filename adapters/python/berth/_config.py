# SPDX-License-Identifier: BSD-3-Clause
"""berth.config: the library's options, as torch.utils.serialization.config shows PyTorch's."""

import contextlib
import enum
import mmap
import operator
import os
import sys
import threading
import warnings

from berth import _native
from berth._errors import ArgumentError

CLASSES = {"bytes": 1, "acceptance": 2, "speed": 4}  # berth_option_class
TYPES = {"bool": bool, "int": int, "bytes": int}  # of the others str
# PyTorch's values of load.mmap_flags.
MAPS = {mmap.MAP_PRIVATE: "private", mmap.MAP_SHARED: "shared"}


class NoOptionError(ArgumentError, AttributeError, KeyError):
    """There is no such option: the class fits getattr, a patch and get_type, as in PyTorch."""

    __str__ = ArgumentError.__str__  # KeyError would quote the message


def _describe(name):
    try:
        return _native.option_describe(name)
    except ArgumentError as error:
        found = NoOptionError(str(error))
        vars(found).update(vars(error))
        raise found from None


def _name(name):
    """The option's own name: an alias stands for it, and "save_method" for "save.method"."""
    if not isinstance(name, str):
        raise TypeError(f"an option's name is a str, not {type(name).__name__}")
    dotted = name.replace("_", ".", 1)
    return _describe(dotted if "." not in name and dotted in _native.option_names() else name)["name"]


def _text(name, value):
    """A value as the library takes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, enum.Enum):  # torch.serialization.LoadEndianness.BIG
        return value.name.lower()
    if isinstance(value, (str, bytes, os.PathLike)):
        text = os.fsdecode(value)
        if "\0" in text:
            raise ArgumentError(f"{name}: the value {text!r} has a NUL character; no option takes it")
        return text
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: the value of an option is a bool, an int or a str, not "
                        f"{type(value).__name__}") from None
    return MAPS.get(number, str(number)) if name == "load.mmap_flags" else str(number)


class _Patches(threading.local):
    """The patches of a thread that last, the innermost at the end."""

    def __init__(self):
        self.entered = []


_patches = _Patches()


def _begin(pairs):
    """Patches this thread. pairs: of names and texts, of which all take effect, or none."""
    # The library reads words: a value with white space gets its place first.
    texts = [(name, text) for name, text in pairs if text.split() != [text]]
    places = {name: _describe(name)["default"] for name, _ in texts}
    _native.option_patch(" ".join(f"{name}={places.get(name, text)}" for name, text in pairs))
    try:
        for name, text in texts:
            _native.option_set(name, text)
    except BaseException:
        _native.option_unpatch()
        raise


class Patch(contextlib.ContextDecorator):
    """Options for a block, for the calls of a function, or for a unittest.TestCase; on this thread only.

    It may be entered several times, also when it is in force already.
    """

    def __init__(self, changes):
        self._changes = changes

    def __enter__(self):
        pairs = [(_name(name), value) for name, value in self._changes]
        pairs = [(name, _text(name, value)) for name, value in pairs]
        _begin(pairs)
        _patches.entered.append((self, [name for name, _ in pairs]))

    def __exit__(self, *_):
        """Ends this patch. Those that began later, and last, go on: the steps of two generators or tasks
        can alternate."""
        entered, later = _patches.entered, []
        if not any(patch is self for patch, _ in entered):
            raise ArgumentError("this patch did not begin on this thread: a patch is of the thread")
        while True:
            patch, names = entered.pop()
            values = [(name, _text(name, _native.option_get(name))) for name in names]
            _native.option_unpatch()
            if patch is self:
                break
            later.append((patch, values))
        for patch, values in reversed(later):
            _begin(values)
            entered.append((patch, [name for name, _ in values]))

    def __call__(self, function):
        unittest = sys.modules.get("unittest")
        if not unittest or not isinstance(function, type) or not issubclass(function, unittest.TestCase):
            return super().__call__(function)
        patch = self

        class Patched(function):
            @classmethod
            def setUpClass(cls):
                patch.__enter__()
                cls.addClassCleanup(patch.__exit__)
                super().setUpClass()

        Patched.__name__, Patched.__qualname__ = function.__name__, function.__qualname__
        Patched.__module__, Patched.__doc__ = function.__module__, function.__doc__
        return Patched


class _Options:
    """Options as attributes. copy, deepcopy and pickle give their values, as a dict."""

    __slots__ = ("_prefix",)

    def __init__(self, prefix):
        object.__setattr__(self, "_prefix", prefix)

    def _names(self):
        """The options of the section; of all sections by their whole names."""
        return [name[len(self._prefix):] for name in _native.option_names() if name.startswith(self._prefix)]

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _native.option_get(_describe(self._prefix + name)["name"])

    def __setattr__(self, name, value):
        name = _describe(self._prefix + name)["name"]
        _native.option_set(name, _text(name, value))

    def __delattr__(self, name):
        """As config.reset: the option has the environment's value again, or the default."""
        _native.option_reset(_describe(self._prefix + name)["name"])

    @property
    def __dict__(self):
        """What the program has set: unittest.mock.patch sets it again, and deletes what is not here."""
        found = {name: _describe(self._prefix + name) for name in self._names()}
        return {name: each["value"] for name, each in found.items()
                if each["source"] in ("program", "patch")}

    def __dir__(self):
        return self._names()

    def __repr__(self):
        return "\n".join(f"{self._prefix}{name} = {getattr(self, name)!r}" for name in self._names())

    def __reduce_ex__(self, _):
        return dict, ({name: getattr(self, name) for name in self._names()},)


class Section(_Options):
    """The options of one section, as attributes: berth.config.save.durability = "file"."""

    __slots__ = ()


_sections = {}


class Config(_Options):
    """All options.

        berth.config.save.durability = "file"           # for all threads
        with berth.config.patch("load.check", "data"):  # for this thread, until the block ends
            ...

    Sections are `save`, `load`, `io` and `device`; `debug` and `trace` are options without one. Values are
    bools, ints (of bytes where the unit says so; a text such as "4MiB" will do) and texts.
    getattr(config, "save.durability") and setattr take whole names, too. `del` resets an option.
    The environment sets options too: BERTH_SAVE_DURABILITY=file.

    What torch.utils.serialization.config can do, this can do in the same form; docs/config.md has both side
    by side.
    Raises: of an unknown name: an error that is a berth.ArgumentError, an AttributeError and a KeyError. Of
        an invalid value: berth.ArgumentError; TypeError: it is no bool, int or text.
    Threads: any.
    """

    __slots__ = ()
    __name__ = "berth.config"

    def __init__(self):
        super().__init__("")

    def __getattr__(self, name):
        if name not in _sections and any(each.startswith(f"{name}.") for each in _native.option_names()):
            _sections[name] = Section(f"{name}.")
        return _sections[name] if name in _sections else super().__getattr__(name)

    def __dir__(self):
        tops = dict.fromkeys(name.partition(".")[0] for name in self.names())
        return [*tops, *(name for name in vars(Config) if not name.startswith("_"))]

    # ---- as PyTorch's ----

    def patch(self, *assignments, **options):
        """Options for a `with` block, a decorated function or unittest.TestCase, on this thread.

        assignments: ("save.durability", "file"); a dict {"save.durability": "file"}; or words
            "save.durability=file load.check=data"
        options: save_durability="file": the first underscore stands for the dot
        Raises: on entering, as for attributes; then nothing has changed.
        """
        if len(assignments) == 2 and isinstance(assignments[0], str) and "=" not in assignments[0]:
            assignments = (dict([assignments]),)
        changes = []
        for each in assignments:
            if not isinstance(each, (str, dict)):
                raise TypeError("patch takes a name and a value, a dict, or a text, not "
                                f"{type(each).__name__}")
            changes += map(_divided, each.split()) if isinstance(each, str) else each.items()
        return Patch([*changes, *options.items()])

    def get_config_copy(self):
        """The values in force on this thread: a dict {"save.durability": "full", ...}."""
        return {name: _native.option_get(name) for name in _native.option_names()}

    # PyTorch's names of the same; its first two warn that they are copies.
    to_dict = shallow_copy_dict = get_serializable_config_copy = get_config_copy

    def save_config(self):
        """The values in force on this thread, as bytes for load_config.

        They are lines of text, "save.durability=full"; BERTH_CONFIG and `berth --config` read them as well.
        """
        return _native.option_print()

    def save_config_portable(self, *, ignore_private_configs=True, readonly_values=False):
        """As get_config_copy. PyTorch's parameters change nothing: no option is private."""
        return self.get_config_copy()

    def load_config(self, maybe_pickled_config):
        """Sets what save_config, save_config_portable or get_config_copy gave; all of it, or nothing.

        maybe_pickled_config: bytes of save_config, or a dict. Not pickled: nothing in it can be run.
            Unknown names are skipped: bytes may be of another version. Those of bytes are logged, of a dict
            there is a warning.
        Raises: berth.ArgumentError: the bytes are no such text, or a value is invalid. TypeError.
        """
        if isinstance(maybe_pickled_config, (bytes, bytearray, memoryview)):
            text = bytes(maybe_pickled_config)
            if b"\0" in text:
                raise ArgumentError("load_config: these bytes are no text of save_config: byte "
                                    f"{text.index(0)} is 0. A pickle is not read, because it can run code")
            _native.option_parse(text)
            return
        if not isinstance(maybe_pickled_config, dict):
            raise TypeError(f"load_config takes bytes or a dict, not {type(maybe_pickled_config).__name__}")
        known = {}
        for name, value in maybe_pickled_config.items():
            try:
                known[_name(name)] = value
            except NoOptionError as error:
                warnings.warn(f"load_config: {error}; it is skipped", stacklevel=2)
        with self.patch(known):
            pass  # all are valid
        for name, value in known.items():
            _native.option_set(name, _text(name, value))

    def codegen_config(self):
        """Python statements that set what differs from the defaults; a text."""
        return "\n".join(f"{self.__name__}.{name} = {_native.option_get(name)!r}"
                         for name in self.names() if not self.is_default(name))

    def get_hash(self, *classes):
        """A hash of the values in force on this thread; bytes. Equal values have equal hashes everywhere.

        classes: only of options that can change the "bytes" of a saved file, the "acceptance" of a file that
            is loaded, or "speed"; as berth_config_hash. None: of all options.
        """
        unknown = [each for each in classes if each not in CLASSES]
        if unknown:
            raise ArgumentError(f"get_hash: no class {unknown[0]!r}; there are: " + ", ".join(CLASSES))
        return _native.option_hash(sum(CLASSES[each] for each in set(classes or CLASSES))).to_bytes(8, "big")

    def get_type(self, config_name):
        """The type of an option's value: bool, int or str."""
        return TYPES.get(_describe(config_name)["type"], str)

    def is_default(self, name):
        """Whether an option has its default value on this thread, whoever set it."""
        return _describe(name)["is_default"]

    # ---- more than PyTorch's ----

    def names(self):
        """The names of all options: ["save.compute_crc32", ...]."""
        return _native.option_names()

    def reset(self, name=None):
        """Removes what the program has set: of one option, or of all."""
        _native.option_reset(name if name is None else _describe(name)["name"])

    def describe(self, name):
        """A dict about one option: type, unit, bounds, default, help, value, and where it is set."""
        return _describe(name)


def _divided(word):
    """"save.durability=file" as a name and a value."""
    name, equals, value = word.partition("=")
    if not equals:
        raise ArgumentError(f"patch: {word!r} is not of the form name=value")
    return name, value


config = Config()
