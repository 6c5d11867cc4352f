# SPDX-License-Identifier: BSD-3-Clause
"""`berth map`: the parts of a file share its bytes; the picture has every storage, and nothing overlaps."""

import collections
import json
import math
import os
import struct
import xml.etree.ElementTree as ElementTree

from case import Case, old

SVG = "{http://www.w3.org/2000/svg}"
# The font is of one width a letter: at most 0.62 of its size, which is 19 units where the picture is narrow.
LETTER_WIDTH, LINE_HEIGHT = 0.62 * 19, 19
FILES = ("training-1.13-zip.pth", "many-1.13-zip.pth", "views-1.13-zip.pth", "training-1.13-stream.pth",
         "views-1.13-stream.pth", "rare-1.13-zip.pth")


def texts_and_boxes(root):
    """Each as (left, top, right, bottom); boxes by the lane that they lie in."""
    texts = []
    for text in root.iter(SVG + "text"):
        x, y = float(text.get("x")), float(text.get("y"))
        texts.append((x, y - LINE_HEIGHT * 0.8, x + LETTER_WIDTH * len(text.text), y + LINE_HEIGHT * 0.2))
    lanes = collections.defaultdict(list)
    for box in root.iter(SVG + "rect"):
        x, y, width, height = (float(box.get(name)) for name in ("x", "y", "width", "height"))
        if box.get("class") != "frame":
            lanes[y].append((x, y, x + width, y + height))
    return texts, lanes


def overlap(a, b):
    return min(a[2], b[2]) - max(a[0], b[0]) > 0.011 and min(a[3], b[3]) - max(a[1], b[1]) > 0.011


class Map(Case):
    def map(self, path):
        return json.loads(self.berth("map", "--json", path).out)

    def picture(self, path):
        self.assertEqual(self.berth("map", path, "-o", "map.svg").out, "")
        return ElementTree.parse(self.path("map.svg")).getroot()

    def safetensors(self):
        self.berth("convert", self.demo, "demo.safetensors", "--root", "model")
        return self.path("demo.safetensors")

    def files(self):
        return [self.demo, self.safetensors()] + [old(name) for name in FILES]

    def test_the_parts_share_all_bytes(self):
        for path in self.files():
            with self.subTest(path):
                report, at = self.map(path), 0
                for part in report["parts"]:
                    self.assertEqual(part["offset"], at)
                    self.assertGreater(part["nbytes"], 0)
                    at += part["nbytes"]
                self.assertEqual(at, os.path.getsize(path))
                self.assertEqual(at, sum(n for n in report["totals"].values() if isinstance(n, int)))
                self.assertEqual(sum(report["totals"]["dtypes"].values()), report["totals"]["storage"])
                self.assertEqual(report["totals"]["gap"], 0)

    def test_headers_and_the_directory_are_where_the_file_has_them(self):
        content = self.read(self.demo)
        signatures = {"header": b"PK\3\4", "descriptor": b"PK\7\x08", "directory": b"PK\1\2"}
        seen = collections.Counter()
        for part in self.map(self.demo)["parts"]:
            seen[part["kind"]] += 1
            begin = content[part["offset"]:part["offset"] + 4]
            self.assertEqual(begin, signatures.get(part["kind"], begin), part)
        self.assertEqual((seen["header"], seen["directory"], seen["pickle"]), (14, 1, 1))

    def test_every_storage_of_ls_is_in_the_picture(self):
        for path in self.files():
            with self.subTest(path):
                metadata = json.loads(self.picture(path).find(SVG + "metadata").text)
                begins = {offset for offset, _, _, _ in metadata["storages"]}
                for tensor in json.loads(self.berth("ls", "--json", path).out):
                    numel = math.prod(tensor["shape"])
                    if tensor["offset"] is not None and numel > 0:
                        item = tensor["nbytes"] // numel
                        self.assertIn(tensor["offset"] - tensor["storage_offset"] * item, begins, tensor)
                self.assertEqual(sum(n for _, _, _, n in metadata["storages"] if path == self.demo),
                                 9 if path == self.demo else 0)

    def check_picture(self, path):
        """Its boxes; nothing overlaps, or leaves it."""
        root = self.picture(path)
        _, _, width, height = map(float, root.get("viewBox").split())
        texts, lanes = texts_and_boxes(root)
        boxes = [box for lane in lanes.values() for box in lane]
        for left, top, right, bottom in texts + boxes:
            self.assertTrue(0 <= left and 0 <= top and right <= width and bottom <= height)
        for i, text in enumerate(texts):
            self.assertFalse(any(overlap(text, other) for other in texts[i + 1:] + boxes), text)
        for lane in lanes.values():
            lane.sort()
            self.assertFalse(any(overlap(a, b) for a, b in zip(lane, lane[1:])))
        tops = sorted({(lane[0][1], lane[0][3]) for lane in lanes.values()})
        self.assertTrue(all(a[1] <= b[0] for a, b in zip(tops, tops[1:])), tops)
        return boxes

    def test_nothing_overlaps_or_leaves_the_picture(self):
        for path in self.files():
            with self.subTest(path):
                self.assertGreater(len(self.check_picture(path)), 0)

    def test_so_it_is_from_1_to_100000_tensors(self):
        """Of any sizes, also none, and of a name that is as long as one can be."""
        for n in (1, 10, 10_000, 100_000):
            with self.subTest(n):
                path = self.many_safetensors(n)
                boxes = self.check_picture(path)
                self.assertLess(len(boxes), 12 * 4 * 720 / 2)  # lines of 12 rows, of 4 lanes
                if n <= 10_000:
                    self.berth("convert", path, "many.pt", "--set", "save.durability=none")
                    self.assertGreater(len(self.check_picture("many.pt")), min(n, 700))

    def many_safetensors(self, n):
        dtypes = {"F32": 4, "BF16": 2, "I64": 8, "U8": 1}
        header, at = {}, 0
        for i in range(n):
            dtype, numel = list(dtypes)[i // 3 % 4], i * 7919 % 97 * (1000 if i % 101 == 0 else 1)
            end = at + numel * dtypes[dtype]
            header[f"layers.{i}.weight"] = {"dtype": dtype, "shape": [numel], "data_offsets": [at, end]}
            at = end
        text = json.dumps(header).encode()
        return self.write("m" * 243 + ".safetensors", struct.pack("<Q", len(text)) + text + bytes(at))

    def test_it_needs_nothing_else(self):
        root = self.picture(self.demo)
        text = self.read("map.svg").decode()
        self.assertIsNone(root.find(".//" + SVG + "script"))
        self.assertNotIn("url(", text)
        self.assertNotIn("href", text)
        self.assertIn("prefers-color-scheme:dark", text)
        titles = [box.find(SVG + "title").text for box in root.iter(SVG + "rect") if "x " in box.get("class")]
        self.assertTrue(any("model.layers.0.weight" in title for title in titles), titles)
        self.assertTrue(all(titles))

    def test_bytes_that_no_tensor_uses_and_shared_storages(self):
        self.berth("copy", old("views-1.13-zip.pth"), "some.pt", "--only", "row", "--only", "*half*")
        report = self.map("some.pt")
        self.berth("copy", old("views-1.13-zip.pth"), "two.pt", "--only", "column", "--only", "row")
        self.assertEqual([storage["tensors"] for storage in self.map("two.pt")["storages"]], [2])
        for storage in report["storages"]:
            self.assertLessEqual(storage["used_nbytes"], storage["nbytes"])
        used = collections.defaultdict(set)
        for tensor in json.loads(self.berth("ls", "--json", "some.pt").out):
            numel = math.prod(tensor["shape"])
            if tensor["offset"] is not None and numel > 0:
                last = sum((n - 1) * stride for n, stride in zip(tensor["shape"], tensor["stride"]))
                used[tensor["storage"]].update(
                    range(tensor["offset"], tensor["offset"] + (last + 1) * tensor["nbytes"] // numel))
        unused = {storage["key"]: storage["nbytes"] - len(used[storage["key"]])
                  for storage in report["storages"]}
        self.assertGreater(sum(unused.values()), 0)
        self.assertEqual(unused, {storage["key"]: storage["nbytes"] - storage["used_nbytes"]
                                  for storage in report["storages"]})
        self.assertEqual(report["totals"]["unused"], sum(unused.values()))

    def test_the_page_cache_and_extents_if_the_system_tells(self):
        size = os.path.getsize(self.demo)
        report = self.map(self.demo)
        for name in ("extents", "page_cache"):
            ranges = report[name]["ranges"] if name == "page_cache" and report[name] else report[name]
            for item in ranges or []:
                self.assertLessEqual(item["offset"] + item["nbytes"], size)
        self.read(self.demo)
        if report["page_cache"]:
            self.assertEqual(self.map(self.demo)["page_cache"]["nbytes"], size)

    def test_the_terminal(self):
        for columns in ("40", "80", "200"):
            lines = self.berth("map", self.demo, env={"COLUMNS": columns}).out.splitlines()
            self.assertTrue(all(len(line) < int(columns) for line in lines if line[:14].strip().isdigit()))
        self.assertRegex(lines[0], r"zip, \d+ storages, 9 tensors$")
        self.assertTrue(any(line.startswith("A float32") for line in lines))
        self.assertIn("\033[36m", self.berth("map", "--color", "always", self.demo).out)

    def test_only_records(self):
        self.refused("map", old("torchscript-1.13.pt"), code=1)
        report = json.loads(self.berth("map", "-r", "--json", old("torchscript-1.13.pt")).out)
        self.assertEqual(report["storages"], [])
        self.assertGreater(report["totals"]["record"], 0)

    def test_refused(self):
        self.refused("map", "nope.pt", says="nope.pt")
        self.write("cut.pt", self.read(self.demo)[:-100])
        self.refused("map", "cut.pt", "-o", "cut.svg", code=1, says="cut.pt")
        self.assertNotIn("cut.svg", self.entries())
        self.refused("map", self.demo, "-o", "missing/map.svg", says="missing")
        self.refused("map", self.demo, "--json", "-o", "-", says="standard output")
        os.symlink(self.demo, self.path("link.pt"))
        before = self.read(self.demo)
        for out in (self.demo, "link.pt"):
            self.refused("map", self.demo, "-o", out, says="is the input")
        self.assertEqual(self.read(self.demo), before)
        self.refused("map", self.demo, "-o", "https://host/map.svg", says="this is not written to a URL")
        self.assertIn("an argument is missing", self.berth("map", code=2).err)
        self.assertTrue(self.berth("map", self.demo, "-o", "-").out.startswith("<svg "))

    def test_names_of_a_file_stay_text(self):
        path = self.path("<b>&\x01\xe9.pt")
        os.rename(self.demo, path)
        root = self.picture(path)
        self.assertEqual(root.find(SVG + "title").text, "Map of <b>&\\x01\xe9.pt")
