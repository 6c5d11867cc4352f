# SPDX-License-Identifier: BSD-3-Clause
"""Sets of files by their index, in every command; and `berth convert` back into files of a size."""

import json
import os
import struct
import subprocess
import unittest

import index_names
from case import Case


PYTHON = os.environ.get("BERTH_PYTHON")
ODD = """
import torch
empty, whole = torch.zeros(0), torch.arange(12.).reshape(3, 4)
pair = torch.tensor([1 + 2j, 3 - 1j])
torch.save({"a": empty, "b": empty, "k": whole, "format": whole, "turned": torch.rand(3, 5).t(),
            "column": torch.rand(4, 3)[:, 1], "pair": pair, "other": pair.conj()}, "odd.pt")
torch.save({"\\ud800": whole}, "surrogate.pt")
"""


def safetensors(tensors, **metadata):
    """The bytes of a file of int32 tensors of one dimension, by name."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, values in tensors.items():
        begin, data = len(data), data + struct.pack(f"<{len(values)}i", *values)
        header[name] = {"dtype": "I32", "shape": [len(values)], "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def split(sizes, most):
    """As huggingface_hub's split_state_dict_into_shards_factory."""
    files, current = [], {}
    for name, nbytes in sizes.items():
        if nbytes > most:
            files.append([name])
            continue
        if sum(current.values()) + nbytes > most:
            files.append(list(current))
            current = {}
        current[name] = nbytes
    return files + ([list(current)] if current else [])


class Shards(Case):
    def setUp(self):
        super().setUp()
        self.berth("convert", self.demo, "whole.pt", "--root", "model", "--without", "head")

    def shapes(self, path):
        return {row["name"]: row["nbytes"] for row in json.loads(self.berth("ls", "--json", path).out)}

    def index(self, name):
        return json.loads(self.read(name))

    def expect_text_of_save_pretrained(self, name):
        text = self.read(name).decode()
        self.assertEqual(text, json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n")

    def test_into_files_of_a_size_and_back(self):
        sizes = self.shapes("whole.pt")
        for index, extension in (("model.safetensors.index.json", "safetensors"),
                                 ("pytorch_model.bin.index.json", "bin")):
            with self.subTest(index):
                self.berth("convert", "whole.pt", index, "--shard-size", "300KiB")
                written = self.index(index)
                files = sorted(set(written["weight_map"].values()))
                base = index.split(".")[0]
                self.assertGreater(len(files), 2)
                self.assertEqual(files, [f"{base}-{i + 1:05}-of-{len(files):05}.{extension}"
                                         for i in range(len(files))])
                self.assertEqual(written["metadata"], {"total_size": sum(sizes.values())})
                self.assertEqual(sorted(written["weight_map"]), sorted(sizes))
                for file in files:
                    inside = self.shapes(file)
                    self.assertEqual(set(inside),
                                     {name for name, at in written["weight_map"].items() if at == file})
                    self.assertLessEqual(sum(inside.values()), 300 << 10)
                self.expect_text_of_save_pretrained(index)
                self.berth("verify", index)
                self.assertEqual(self.berth("diff", index, "whole.pt").out, "equal\n")
                self.berth("convert", index, "again.pt")
                self.assertEqual(self.berth("diff", "again.pt", "whole.pt").out, "equal\n")
                self.berth("convert", index, "other.safetensors.index.json", "--shard-size", "1GB")
                self.assertEqual(set(self.index("other.safetensors.index.json")["weight_map"].values()),
                                 {"other-00001-of-00001.safetensors"})

    def test_the_split_is_that_of_huggingface_hub(self):
        """A tensor that is too large alone comes before the smaller ones that are being collected."""
        sizes = (10, 100, 10, 6, 20, 5, 25)
        self.write("in.safetensors", safetensors({name: range(n) for name, n in zip("abcdefg", sizes)}))
        self.berth("convert", "in.safetensors", "in.pt")
        self.berth("convert", "in.pt", "m.safetensors.index.json", "--shard-size", "100")
        found = self.index("m.safetensors.index.json")
        files = split(self.shapes("in.pt"), 100)
        self.assertEqual(found["weight_map"], {name: f"m-{i + 1:05}-of-{len(files):05}.safetensors"
                                               for i, names in enumerate(files) for name in names})
        self.assertEqual((files[0], found["metadata"]["total_size"]), (["b"], 176 * 4))

    def test_names_of_files(self):
        """D2: the cases that tests/python/sets.py has, too."""
        os.mkdir(self.path("in"))
        for name, may_be in index_names.NAMES.items():
            with self.subTest(name):
                self.write("in/" + index_names.LISTED, index_names.index(name))
                if may_be:
                    file = self.path("in/" + index_names.file_of(name))
                    os.makedirs(os.path.dirname(file), exist_ok=True)
                    self.write(file, safetensors({index_names.TENSOR: [1, 2]}))
                    self.assertEqual(self.berth("cat", "in/" + index_names.LISTED, index_names.TENSOR).stdout,
                                     struct.pack("<2i", 1, 2))
                else:
                    self.refused("ls", "in/" + index_names.LISTED, code=1, says=(index_names.LISTED,))

    def test_commands_take_an_index(self):
        self.berth("convert", "whole.pt", "m.bin.index.json", "--shard-size", "300KiB")
        name = "layers.1.weight"
        self.assertEqual(self.berth("cat", "m.bin.index.json", name).stdout,
                         self.berth("cat", "whole.pt", name).stdout)
        self.assertEqual(self.berth("show", "--json", "m.bin.index.json", name).out,
                         self.berth("show", "--json", "whole.pt", name).out)
        self.berth("convert", "m.bin.index.json", "one.safetensors", "--only", "layers.1")
        self.berth("convert", "whole.pt", "other.safetensors", "--only", "layers.1")
        self.assertEqual(self.read("one.safetensors"), self.read("other.safetensors"))
        self.refused("show", "m.bin.index.json", "layers.9.weight", code=1, says="layers.9.weight")

    def test_an_index_is_parsed_in_bounded_memory(self):
        """P3: as the header of a safetensors file. And a pipe is not waited for."""
        rows = {"many objects": '{"weight_map":{"a":"b"},"x":[' + "{}," * 100000 + "{}]}", "deep": "[" * 100000,
                "a name twice": '{"weight_map":{"a":"b","a":"c"}}', "a number": '{"weight_map":1e999}',
                "NUL": '{"weight_map":{"a":"b\\u0000"}}', "a NUL in a name": '{"weight_map":{"a\\u0000":"b"}}',
                "absolute": '{"weight_map":{"a":"/etc/passwd"}}', "above": '{"weight_map":{"a":"../demo.pt"}}',
                "below and above": '{"weight_map":{"a":"x/../../demo.pt"}}', "dots": '{"weight_map":{"a":".."}}',
                "no text": '{"weight_map":{"a":["b"]}}', "more": '{"weight_map":{"a":"b"}} {}'}
        for kind, text in rows.items():
            with self.subTest(kind):
                self.write("m.bin.index.json", text.encode())
                self.refused("ls", "m.bin.index.json", code=1, says="m.bin.index.json: ")
        self.write("m.bin.index.json", rows["many objects"].encode())
        self.refused("ls", "m.bin.index.json", code=1, says="too many objects")
        os.truncate(self.path("m.bin.index.json"), 100_000_001)
        self.refused("ls", "m.bin.index.json", code=1, says="no file of at most 100000000 bytes")
        os.remove(self.path("m.bin.index.json"))
        os.mkfifo(self.path("m.bin.index.json"))
        self.refused("ls", "m.bin.index.json", code=2, says="is a pipe")

    def test_tied_tensors_stay_together(self):
        self.write("tied.safetensors", safetensors({"a.w": range(40), "z.w": range(40)}, format="pt",
                                                 **{"b.w": "a.w"}))
        self.berth("convert", "tied.safetensors", "tied.pt")
        self.berth("convert", "tied.pt", "m.bin.index.json", "--shard-size", "200")
        found = self.index("m.bin.index.json")
        self.assertEqual(found["weight_map"]["a.w"], found["weight_map"]["b.w"])
        self.assertNotEqual(found["weight_map"]["a.w"], found["weight_map"]["z.w"])
        self.assertEqual(found["metadata"]["total_size"], 320)
        self.berth("convert", "m.bin.index.json", "m.safetensors.index.json", "--keep-ties", "--shard-size", "200")
        self.assertEqual(sorted(self.index("m.safetensors.index.json")["weight_map"]), ["a.w", "z.w"])
        self.assertEqual(self.berth("diff", "m.safetensors.index.json", "tied.pt").out, "equal\n")
        self.berth("convert", "m.safetensors.index.json", "again.pt")
        self.assertEqual(json.loads(self.berth("info", "--json", "again.pt").out)["storages"], 2)
        self.berth("convert", "tied.pt", "c.safetensors.index.json")
        self.assertEqual(sorted(self.index("c.safetensors.index.json")["weight_map"]), ["a.w", "b.w", "z.w"])
        self.assertEqual(self.index("c.safetensors.index.json")["metadata"]["total_size"], 480)

    @unittest.skipUnless(PYTHON, "BERTH_PYTHON names no Python with PyTorch")
    def test_odd_tensors(self):
        """Empty, tied under the name "format", not contiguous, conjugated: as `convert` to one file has them."""
        subprocess.run([PYTHON, "-c", ODD], check=True, cwd=self.folder)
        self.berth("convert", "odd.pt", "one.safetensors")
        self.berth("convert", "odd.pt", "m.safetensors.index.json", "--shard-size", "100")
        found = self.index("m.safetensors.index.json")
        inside, nbytes = {}, 0
        for file in sorted(set(found["weight_map"].values())):
            header = self.read(file)[8:8 + struct.unpack("<Q", self.read(file)[:8])[0]]
            for name, entry in json.loads(header).items():
                if name != "__metadata__":
                    inside[name] = file
                    nbytes += entry["data_offsets"][1] - entry["data_offsets"][0]
        self.assertEqual(found, {"metadata": {"total_size": nbytes}, "weight_map": inside})
        self.assertEqual(self.berth("diff", "m.safetensors.index.json", "one.safetensors").out, "equal\n")
        before = self.entries()
        for index in ("n.bin.index.json", "n.safetensors.index.json"):
            self.assertIn("a tensor's key is no text that JSON can hold",
                          self.berth("convert", "surrogate.pt", index, code=2).err)
        self.assertEqual(self.entries(), before)

    def test_what_is_refused(self):
        for words, says in (
                (["whole.pt", "m.index.json"], "must end in .safetensors.index.json or .bin.index.json"),
                (["whole.pt", "m.bin.index.json", "--to", "pt"], "--to does not apply"),
                (["whole.pt", "m.pt", "--shard-size", "1GB"], "--shard-size does not apply: OUT is no index"),
                ([self.demo, "m.bin.index.json"], "is no tensor: the files of an index hold"),
                ([self.demo, "m.bin.index.json", "--root", "layers"], "layers"),
                (["whole.pt", "no/m.bin.index.json"], "no/m-00001-of-00001.bin")):
            with self.subTest(words):
                done = self.berth("convert", *words, code=1 if "--root" in words else 2)
                self.assertIn(says, done.err)
        for size in ("0", "-1", " -5", "+5", "5BiB", "5XB", "GB", "5GiBB", "99999999999TB", "4BB"):
            self.assertIn("is not a number of bytes", self.berth("convert", "whole.pt", "m.bin.index.json",
                                                                 f"--shard-size={size}", code=2).err)
        self.assertEqual(self.entries(), ["demo.pt", "whole.pt"])
        done = self.berth("convert", self.demo, "m.bin.index.json", "--tensors-only", code=2)
        self.assertIn("there are no tensors", done.err)

    def test_the_index_comes_last(self):
        """D5"""
        os.mkdir(self.path("m-00002-of-00004.bin"))
        self.berth("convert", "whole.pt", "n.bin.index.json", "--shard-size", "300KiB")
        n = len(set(self.index("n.bin.index.json")["weight_map"].values()))
        os.rmdir(self.path("m-00002-of-00004.bin"))
        os.mkdir(self.path(f"m-00002-of-{n:05}.bin"))
        self.write("m.bin.index.json", b"old")
        done = self.berth("convert", "whole.pt", "m.bin.index.json", "--shard-size", "300KiB", code=2)
        self.assertIn(f"m.bin.index.json: 1 of {n} files were written, and no index", done.err)
        self.assertEqual(self.read("m.bin.index.json"), b"old")

    def test_an_index_that_lies(self):
        self.berth("convert", "whole.pt", "m.bin.index.json", "--shard-size", "300KiB")
        found = self.index("m.bin.index.json")
        first, second = sorted(set(found["weight_map"].values()))[:2]
        name = next(name for name, file in found["weight_map"].items() if file == first)
        for change, says, code in (({name: second}, f'"{name}" is not in {second}', 1),
                                   ({"x": second}, f'"x" is not in {second}', 1),
                                   ({"x": "gone.bin"}, "gone.bin: cannot be opened: No such file", 1),
                                   ({"x": "m.bin.index.json"}, "the index of a checkpoint", 1)):
            changed = {"weight_map": dict(found["weight_map"], **change)}
            self.write("bad.bin.index.json", json.dumps(changed).encode())
            for words in (["show", "bad.bin.index.json"], ["convert", "bad.bin.index.json", "x.pt"],
                          ["diff", "bad.bin.index.json", "whole.pt"], ["cat", "bad.bin.index.json", name]):
                with self.subTest((change, words)):
                    done = self.berth(*words, code=code)
                    self.assertIn(says, done.err)
        os.truncate(self.path(second), 1000)
        self.berth("convert", "m.bin.index.json", "x.pt", code=1)
        self.assertNotIn("x.pt", self.entries())
