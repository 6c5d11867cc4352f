# SPDX-License-Identifier: BSD-3-Clause
"""Archives that Python's zipfile reads as Berth does, or Berth does not (One reading)."""

import io
import json
import os
import random
import subprocess
import sys
import zipfile
import zlib

from case import BUILD, Case
from pickles import ONE, PROTO, archive, tensor, text


class Compared(Case):
    """What Berth accepts, zipfile reads just so."""

    def compare(self, content, listed):
        with zipfile.ZipFile(io.BytesIO(content)) as theirs:
            infos = [info for info in theirs.infolist() if not info.is_dir()]
            self.assertEqual([(i.filename.split("/", 1)[1], i.file_size, i.CRC) for i in infos],
                             [(r["record"], r["nbytes"], r["crc32"]) for r in listed])
            for info, record in zip(infos, listed):
                if info.CRC == 0 and info.file_size:
                    continue
                lies = content[record["offset"]:record["offset"] + info.compress_size]
                if info.compress_type == zipfile.ZIP_DEFLATED:
                    lies = zlib.decompress(lies, -15)
                self.assertEqual(theirs.read(info), lies)

    def accepted(self, content, path):
        """Whether it was, and then that zipfile agrees."""
        done = self.berth("ls", "--records", "--json", path, "--set", "load.check=data")
        if done.returncode:
            self.assertEqual(done.err.count("\n"), 1)
            return False
        try:
            self.compare(content, json.loads(done.out))
        except NotImplementedError as error:  # "version needed", which changes no reading
            self.assertIn("zip file version", str(error))
        return True


class OneReading(Compared):
    """Small archives with a few bytes changed."""

    N = 1500

    def changed(self, rng, content):
        content = bytearray(content)
        # Where the facts are: not in padding, not in what the sums protect.
        facts = [i for i, byte in enumerate(content) if byte != ord("Z")]
        for _ in range(rng.randint(1, 2)):
            at = rng.choice(facts)
            content[at] = rng.choice([0, 1, 0xFF, content[at] ^ 1 << rng.randrange(8),
                                      content[rng.choice(facts)], (content[at] + 1) % 256])
        return bytes(content)

    def test_with_zipfile(self):
        rng = random.Random(20)
        content = archive(PROTO + b"}" + text("t") + tensor() + b"s.", ONE)
        n_accepted = 0
        for i in range(self.N):
            changed = self.changed(rng, content) if i else content
            n_accepted += self.accepted(changed, self.write("changed.pt", changed))
        print(f"one reading: {n_accepted} of {self.N} accepted", file=sys.stderr)
        self.assertGreater(n_accepted, 5)


class Variants(Compared):
    """The variants of ambiguity.c."""

    def test_with_zipfile(self):
        environment = dict(os.environ, BERTH_KEEP=self.folder)
        subprocess.run([os.path.join(BUILD, "tests", "hostile", "all"), "--jobs=1", "--filter=ambiguity/*"],
                       env=environment, check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        names = sorted(name for name in os.listdir(self.folder) if name.endswith(".pt"))
        n_accepted, refused = 0, []
        for name in names:
            path = os.path.join(self.folder, name)
            with self.subTest(name), open(path, "rb") as file:
                try:
                    n_accepted += self.accepted(file.read(), path)
                except zipfile.BadZipFile:  # which is no other reading
                    refused.append(name)
        print(f"ambiguity variants: {n_accepted} of {len(names)} accepted, and read so by zipfile; "
              f"{len(refused)} more refused by it", file=sys.stderr)
        self.assertGreater(n_accepted, 40)
        self.assertLess(len(refused), 8, refused)
