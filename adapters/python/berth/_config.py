# SPDX-License-Identifier: BSD-3-Clause
"""berth.config: the library's options, as torch.utils.serialization.config shows PyTorch's."""

import contextlib

from berth import _native


def _text(value):
    """A value as the library takes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (int, str)):
        return str(value)
    raise TypeError(f"the value of an option is a bool, an int or a str, not {type(value).__name__}")


class Patch(contextlib.ContextDecorator):
    """Options for a block, or for the calls of a function, on this thread only."""

    def __init__(self, assignments):
        self._assignments = assignments

    def _recreate_cm(self):
        return Patch(self._assignments)

    def __enter__(self):
        _native.option_patch(self._assignments)

    def __exit__(self, *_):
        _native.option_unpatch()


class Section:
    """The options of one section, as attributes: berth.config.save.durability = "file"."""

    def __init__(self, name, options):
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_options", options)

    def _full(self, option):
        if option not in self._options:
            raise AttributeError(f"no option {self._name}.{option}; there are: "
                                 + ", ".join(self._options))
        return f"{self._name}.{option}"

    def __getattr__(self, option):
        return _native.option_get(self._full(option))

    def __setattr__(self, option, value):
        _native.option_set(self._full(option), _text(value))

    def __dir__(self):
        return list(self._options)

    def __repr__(self):
        return "\n".join(f"{self._name}.{option} = {getattr(self, option)!r}"
                         for option in self._options)


class Config:
    """All options.

        berth.config.save.durability = "file"          # for all threads
        with berth.config.patch("load.check=data"):    # for this thread, until the block ends
            ...

    Sections are `save`, `load`, `io` and `device`; `debug` and `trace` are options without one. Values are
    bools, ints (of bytes where the unit says so; a text such as "4MiB" will do) and texts.
    The environment sets options too: BERTH_SAVE_DURABILITY=file.
    """

    def __init__(self):
        sections = {}
        for name in _native.option_names():
            section, _, option = name.rpartition(".")
            sections.setdefault(section, []).append(option)
        object.__setattr__(self, "_options", sections.pop("", []))
        object.__setattr__(self, "_sections",
                           {name: Section(name, options) for name, options in sections.items()})

    def __getattr__(self, name):
        if name in self._sections:
            return self._sections[name]
        if name in self._options:
            return _native.option_get(name)
        raise AttributeError(f"no section {name}; there are: " + ", ".join(dir(self)))

    def __setattr__(self, name, value):
        if name not in self._options:
            raise AttributeError(f"{name} is no option")
        _native.option_set(name, _text(value))

    def __dir__(self):
        return [*self._sections, *self._options, "patch", "reset", "describe", "names"]

    def __repr__(self):
        return "\n".join(f"{name} = {_native.option_get(name)!r}" for name in self.names())

    def names(self):
        """The names of all options: ["save.compute_crc32", ...]."""
        return _native.option_names()

    def patch(self, *assignments, **options):
        """Options for a `with` block or a decorated function, on this thread.

        assignments: "save.durability=file load.check=data", or a dict {"save.durability": "file"}
        options: save_durability="file": the first underscore stands for the dot
        Raises: berth.ArgumentError on entering: an unknown name or an invalid value; then nothing
        has changed.
        """
        pairs = [each if isinstance(each, str)
                 else " ".join(f"{name}={_text(value)}" for name, value in each.items())
                 for each in assignments]
        known = {name.replace(".", "_", 1): name for name in self.names()}
        pairs += [f"{known.get(name, name)}={_text(value)}" for name, value in options.items()]
        return Patch(" ".join(pairs))

    def reset(self, name=None):
        """Removes what the program has set: of one option, or of all."""
        _native.option_reset(name)

    def describe(self, name):
        """A dict about one option: type, unit, bounds, default, help, value, and where it is set."""
        return _native.option_describe(name)


config = Config()
