# SPDX-License-Identifier: BSD-3-Clause
"""The build of a wheel: setuptools' own, but the extension comes from scons (pyproject.toml).

Arguments for scons: pip wheel . --config-settings scons="DEPENDS=folder CC=clang"
"""

import os
import re
import shlex
import shutil
import subprocess
import sys

import setuptools
from setuptools import build_meta
from setuptools.command.build_ext import build_ext

BUILT = ("_native.abi3.so", "_command")


def version():
    with open("berth.h", encoding="utf-8") as header:
        return re.search(r'BERTH_VERSION_STRING "(.+)"', header.read())[1]


class BuildByScons(build_ext):
    arguments = ()  # of scons, from the caller

    def build_extension(self, extension):
        build = os.path.join(os.path.abspath(self.build_temp), "scons")
        options = ["VARIANT=release", *self.arguments]
        variant = dict(option.split("=", 1) for option in options)["VARIANT"]
        done = subprocess.call([sys.executable, "-m", "SCons", "-Q", f"-j{os.cpu_count() or 1}",
                                *options, f"BUILD={build}", "python"])
        built = os.path.join(build, variant, "python/berth")
        if done != 0 or not os.path.exists(os.path.join(built, BUILT[0])):
            raise SystemExit("The package was not built. The lines above say what scons misses.")
        folder = "adapters/python/berth" if self.inplace else os.path.join(self.build_lib, "berth")
        os.makedirs(folder, exist_ok=True)
        for name in BUILT:
            target = os.path.join(folder, name)
            shutil.copy(os.path.join(built, name), target)
            subprocess.check_call([os.environ.get("STRIP", "strip"), "--strip-unneeded", target])


def setup(hook, config_settings, *arguments):
    """Calls a hook of setuptools with what pyproject.toml cannot say."""
    original = setuptools.setup
    BuildByScons.arguments = shlex.split((config_settings or {}).get("scons", ""))

    def with_extension(*_, **attributes):
        extension = setuptools.Extension("berth._native", [], py_limited_api=True)
        return original(version=version(), ext_modules=[extension],
                        cmdclass={"build_ext": BuildByScons},
                        options={"bdist_wheel": {"py_limited_api": "cp311"}}, **attributes)

    setuptools.setup = with_extension
    try:
        return hook(*arguments)
    finally:
        setuptools.setup = original


def build_wheel(folder, config_settings=None, metadata_folder=None):
    return setup(build_meta.build_wheel, config_settings, folder, None, metadata_folder)


def build_editable(folder, config_settings=None, metadata_folder=None):
    return setup(build_meta.build_editable, config_settings, folder, None, metadata_folder)


def build_sdist(folder, config_settings=None):
    return setup(build_meta.build_sdist, config_settings, folder)


get_requires_for_build_wheel = build_meta.get_requires_for_build_wheel
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
get_requires_for_build_editable = build_meta.get_requires_for_build_editable
