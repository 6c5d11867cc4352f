#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The graph check finds what it is there to find: each fault is planted and must be told."""
import os
import subprocess
import sys
import tempfile
import unittest

import suite
from check_graph import check
from check_includes import ROOMS


class GraphCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        self.objects = os.path.join(self.root, "objects")
        self.write("berth.h", "#define BERTH_OK 0\n#define BERTH_KIND(x) BERTH_KIND_##x\n"
                   "enum { BERTH_KIND(int) };\nint berth_open(void);\n")
        for room in ROOMS:
            self.compile(f"{room}/{room}_first.c", "int bth_%s = 1;\n" % room)

    def write(self, path, text):
        whole = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        with open(whole, "w", encoding="utf-8") as file:
            file.write(text)
        return whole

    def compile(self, path, text):
        into = os.path.join(self.objects, path[:-len(".c")] + ".o")
        os.makedirs(os.path.dirname(into), exist_ok=True)
        subprocess.run(["gcc", "-c", self.write(path, text), "-o", into], check=True)

    def ring(self, paths):
        """Sources each of which calls the next, the last one the first."""
        for n, path in enumerate(paths):
            other = (n + 1) % len(paths)
            self.compile(path, f"void bth_f{other}(void);\nvoid bth_f{n}(void) {{ bth_f{other}(); }}\n")

    def told(self):
        return check(self.objects, self.root)

    def test_a_good_house(self):
        self.write("load/good.h", '/* berth_gone */ const char *bth_text = "BERTH_GONE";\n'
                   "#define BTH_NAME(x) BERTH_KIND_##x\nint berth_open(void);\n")
        self.assertEqual(self.told(), [])

    def test_a_cycle_of_three_is_taken(self):
        self.ring(["io/a.c", "io/b.c", "io/c.c"])
        self.assertEqual(self.told(), [])

    def test_a_cycle_of_four_is_told_with_its_names(self):
        self.ring(["io/a.c", "io/b.c", "io/c.c", "io/d.c"])
        self.assertEqual(self.told(), [
            "io: a cycle of calls among 4 sources, at most 3 may be:",
            "  io/a.c takes bth_f1 from io/b.c", "  io/b.c takes bth_f2 from io/c.c",
            "  io/c.c takes bth_f3 from io/d.c", "  io/d.c takes bth_f0 from io/a.c"])

    def test_a_chain_is_no_cycle(self):
        self.ring(["io/a.c", "io/b.c", "io/c.c", "io/d.c", "io/e.c"])
        self.compile("io/e.c", "void bth_f4(void) {}\n")
        self.assertEqual(self.told(), [])

    def test_the_table_of_a_wing_is_the_cores(self):
        self.ring(["io/a.c", "io/b.c", "io/c.c", "io/d.c"])
        self.compile("io/c.c", "void __attribute__((weak)) bth_f3(void) {}\nvoid bth_f2(void) { bth_f3(); }\n")
        self.assertEqual(self.told(), [])

    def test_an_object_without_a_source_does_not_count(self):
        self.ring(["io/a.c", "io/b.c", "io/c.c", "io/d.c"])
        os.remove(os.path.join(self.root, "io/d.c"))
        self.assertEqual(self.told(), [])

    def test_a_cycle_between_sub_rooms(self):
        self.ring(["load/open/a.c", "load/rows/b.c"])
        self.assertEqual(self.told(), [
            "load: a cycle of calls between sub-rooms:",
            "  load/open takes bth_f1 from load/rows", "  load/rows takes bth_f0 from load/open"])

    def test_a_base_name_twice(self):
        self.write("save/method.h", "")
        self.write("load/method.c", "")
        self.write("load/method.h", "")
        self.assertEqual(self.told(), ["method: a base name in load and save"])

    def test_public_and_private_names(self):
        self.write("save/x.c", "int berth_gone(void) { return BERTH_OK; }\n")
        self.write("tools/x.c", "\nint y = bth_hidden;\n")
        self.write("tests/api/x.c", "int z = BTH_HIDDEN;\n")
        private = "is private: only the library may use it"
        self.assertEqual(self.told(), [
            "save/x.c:1: berth_gone is public by its name, and in no public header: bth_, BTH_",
            f"tests/api/x.c:1: BTH_HIDDEN {private}", f"tools/x.c:2: bth_hidden {private}"])

    def test_a_folder_that_nothing_was_built_in(self):
        self.assertIn("format: no objects in nowhere", check("nowhere", self.root))


if __name__ == "__main__":
    suite.run(suite.load([sys.modules[__name__]]))
