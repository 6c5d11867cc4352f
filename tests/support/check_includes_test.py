#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The include check finds what it is there to find: each crossing is planted and must be told."""
import os
import sys
import tempfile
import unittest

import suite
from check_includes import check

HOUSE = [
    "berth.h", "berth/more.h", "berth/rows.h", "base/error.h", "config/layers.h", "format/values/value.h", "io/file.h", "save/plan.h", "load/open.h",
    "io/device/device.h", "io/trace/trace_file.h", "save/joint/joint_file.h", "load/rows/rows.h", "load/device/x.h",
    "tools/common.h", "adapters/python/native/native.h", "tests/support/support.h", "tests/support/save/records.h", "tests/save/common.h", "tests/data/made.inc",
]
FROM_THE_ROOT = "includes are written from the repository's root"
PURE = "format/ is pure: no file, no thread, no clock, no environment"


class IncludeCheck(unittest.TestCase):
    def told(self, path, line):
        """What the check says of one line planted as the second of a file."""
        with tempfile.TemporaryDirectory() as root:
            for name in HOUSE:
                os.makedirs(os.path.join(root, os.path.dirname(name)), exist_ok=True)
                open(os.path.join(root, name), "w", encoding="utf-8").close()
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as planted:
                planted.write("\n" + line + "\n")
            return check(root)

    def refused(self, path, line, rule):
        self.assertEqual(self.told(path, line), [f"{path}:2: {line}: {rule}"])

    def taken(self, path, line):
        self.assertEqual(self.told(path, line), [])

    def test_save_and_load_never_include_each_other(self):
        rule = "may include the public headers, base/, config/, format/, io/,"
        self.refused("save/x.c", '#include "load/open.h"', f"save/ {rule} save/")
        self.refused("load/x.c", '#include "save/plan.h"', f"load/ {rule} load/")

    def test_lower_rooms_do_not_look_up(self):
        self.refused("base/x.c", '#include "config/layers.h"', "base/ may include the public headers, base/")
        self.refused("config/x.c", '#include "io/file.h"', "config/ may include the public headers, base/, config/")
        self.refused("format/x.c", '#include "io/file.h"',
                     "format/ may include the public headers, base/, config/, format/")
        self.refused("io/x.h", '#include "format/values/value.h"',
                     "io/ may include the public headers, base/, config/, io/")

    def test_outside_sees_only_the_public_header(self):
        self.refused("tools/x.c", '#include "base/error.h"', "tools/ may include the public headers, tools/, adapters/curl/")
        self.refused("tools/x.c", "#include <base/error.h>",
                     "tools/ may include the public headers, tools/, adapters/curl/")
        python = "adapters/python/ may include the public headers, adapters/python/, adapters/curl/"
        self.refused("adapters/python/native/x.c", '#include "base/error.h"', python)
        self.refused("adapters/python/native/x.c", '#include "tools/common.h"', python)
        self.taken("adapters/python/native/x.c", '#include "adapters/python/native/native.h"')
        self.taken("adapters/python/native/x.c", "#include <Python.h>")
        network = "only adapters/curl/ knows the network"
        self.refused("load/x.c", "#include <curl/curl.h>", network)
        self.refused("tools/x.c", "#include <curl/curl.h>", network)
        self.taken("adapters/curl/x.c", "#include <curl/curl.h>")
        self.refused("adapters/curl/x.c", '#include "tools/common.h"',
                     "adapters/curl/ may include the public headers, adapters/curl/")
        self.refused("load/x.c", "#include <Python.h>", "only the package for Python knows Python")
        self.taken("adapters/mpi/x.c", "#include <mpi.h>")
        self.refused("adapters/mpi/x.c", '#include "base/error.h"',
                     "adapters/mpi/ may include the public headers, adapters/mpi/")
        self.refused("save/x.c", "#include <mpi.h>", "only adapters/mpi knows MPI")
        self.refused("tests/api/x.c", '#include "io/file.h"',
                     "tests/api/ may include the public headers, tests/support/, tests/api/")
        self.refused("tests/support/x.c", '#include "io/file.h"',
                     "tests/support/ may include the public headers, tests/support/")
        self.refused("tests/api/x.c", '#include "tests/support/save/records.h"',
                     "tests/api/ may include the public headers, tests/support/, tests/api/")
        self.refused("tests/support/x.c", '#include "tests/support/save/records.h"',
                     "tests/support/ may include the public headers, tests/support/")

    def test_the_core_includes_no_wing(self):
        def by_table(wing):
            return f"the core calls the wing {wing} by a table (docs/decisions/rings.md)"

        self.refused("save/x.c", '#include "io/device/device.h"', by_table("device"))
        self.refused("io/x.h", '#include "io/trace/trace_file.h"', by_table("trace"))
        self.refused("save/x.c", '#include "save/joint/joint_file.h"', by_table("joint"))
        self.refused("load/transfer/x.c", '#include "load/rows/rows.h"', by_table("rows"))
        self.refused("load/rows/x.c", '#include "io/device/device.h"',
                     "another wing includes no file of the wing device")
        self.taken("save/device/x.c", '#include "io/device/device.h"')
        self.taken("load/rows/y.c", '#include "load/rows/rows.h"')
        self.taken("tests/load/x.c", '#include "load/rows/rows.h"')

    def test_no_way_around_by_relative_paths(self):
        self.refused("tools/x.c", '#include "../base/error.h"', FROM_THE_ROOT)
        self.refused("save/x.c", '#include "plan.h"', FROM_THE_ROOT)
        self.refused("save/x.c", '#  include  "format/../load/open.h"', FROM_THE_ROOT)

    def test_the_public_header_stands_alone(self):
        self.refused("berth.h", '#include "base/error.h"',
                     "public headers include nothing but berth.h")

    def test_format_is_pure(self):
        for header in ("unistd.h", "pthread.h", "time.h", "sys/mman.h", "fcntl.h"):
            self.refused("format/x.c", f"#include <{header}>", PURE)
            self.taken("io/x.c", f"#include <{header}>")

    def test_libraries_stay_in_their_place(self):
        self.refused("load/x.c", "#include <zlib.h>", "only format/ computes and inflates, and adapters/curl/ sums the parts that it sends")
        self.refused("config/x.c", "#include <jansson.h>", "only format/ and tools/ read and write JSON")
        self.refused("format/x.c", "#include <argp.h>", "only tools/ includes it")
        self.refused("io/x.c", "#include <criterion/criterion.h>", "only tests include it")

    def test_a_file_that_is_not_there(self):
        self.refused("save/x.c", '#include "io/gone.h"', "there is no such file in the repository")

    def test_what_is_right_is_taken(self):
        for path, line in (
            ("save/x.c", '#include "format/values/value.h"'),
            ("load/x.c", '#include "berth.h"'),
            ("load/x.c", '#include "berth/more.h"'),
            ("berth/more.h", "#include <berth.h>"),
            ("tools/x.c", '#include "tools/common.h"'),
            ("tests/save/x.c", '#include "load/open.h"'),
            ("tests/save/x.c", '#include "tests/save/common.h"'),
            ("tests/api/x.c", '#include "tests/support/support.h"'),
            ("tests/save/x.c", '#include "tests/support/save/records.h"'),
            ("tests/support/load/x.c", '#include "tests/support/save/records.h"'),
            ("tests/support/load/x.c", '#include "load/open.h"'),
            ("format/x.c", "#include <string.h>"),
            ("format/x.c", '/* #include "save/plan.h" */'),
        ):
            self.taken(path, line)


if __name__ == "__main__":
    suite.run(suite.load([sys.modules[__name__]]))
