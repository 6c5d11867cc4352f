# SPDX-License-Identifier: BSD-3-Clause
"""The build of a wheel: setuptools' own, but the extension comes from scons (pyproject.toml)."""

import os
import re
import shutil
import subprocess
import sys

import setuptools
from setuptools import build_meta
from setuptools.command.build_ext import build_ext

MODULE = "_native.abi3.so"
COMMAND = "_command"  # only with Jansson


def version():
    with open("berth.h", encoding="utf-8") as header:
        return re.search(r'BERTH_VERSION_STRING "(.+)"', header.read())[1]


class BuildByScons(build_ext):
    """Jansson is no part of a wheel's machine: without it safetensors files are refused."""

    def build_extension(self, extension):
        build = os.path.join(os.path.abspath(self.build_temp), "scons")
        options = ["VARIANT=release", f"BUILD={build}", f"JANSSON={os.environ.get('JANSSON', 'none')}"]
        subprocess.check_call([sys.executable, "-m", "SCons", "-Q", f"-j{os.cpu_count() or 1}",
                               *options, "python"])
        folder = "adapters/python/berth" if self.inplace else os.path.join(self.build_lib, "berth")
        os.makedirs(folder, exist_ok=True)
        for name in (MODULE, COMMAND):
            made, target = os.path.join(build, "release/python/berth", name), os.path.join(folder, name)
            if name == MODULE or os.path.exists(made):
                shutil.copy(made, target)
                subprocess.check_call(["strip", "--strip-debug", target])


def setup(function, *arguments, **keywords):
    """Calls a hook of setuptools with what pyproject.toml cannot say."""
    original = setuptools.setup

    def with_extension(*_, **attributes):
        extension = setuptools.Extension("berth._native", [], py_limited_api=True)
        return original(version=version(), ext_modules=[extension],
                        cmdclass={"build_ext": BuildByScons},
                        options={"bdist_wheel": {"py_limited_api": "cp311"}}, **attributes)

    setuptools.setup = with_extension
    try:
        return function(*arguments, **keywords)
    finally:
        setuptools.setup = original


def build_wheel(*arguments, **keywords):
    return setup(build_meta.build_wheel, *arguments, **keywords)


def build_sdist(*arguments, **keywords):
    return setup(build_meta.build_sdist, *arguments, **keywords)


def build_editable(*arguments, **keywords):
    return setup(build_meta.build_editable, *arguments, **keywords)


get_requires_for_build_wheel = build_meta.get_requires_for_build_wheel
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
get_requires_for_build_editable = build_meta.get_requires_for_build_editable
