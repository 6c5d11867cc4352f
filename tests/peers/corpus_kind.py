# SPDX-License-Identifier: BSD-3-Clause
"""One kind of what people do to files: a row of the tables in corpus_zips.py, corpus_files.py and
corpus_saves.py. Each begins in a folder that has model.pt, which torch.save wrote, and model/,
unzipped from it; each makes new.pt."""

import re
from typing import NamedTuple


class Kind(NamedTuple):
    name: str
    make: object              # a command of bash, or a function of the value
    says: str = ""            # the sentence; empty: it opens
    torch: bool = None        # whether PyTorch opens it, where that is otherwise than here; `why` says why
    why: str = ""
    sums: str = ""            # what only load.check=data says
    is_changed: bool = False  # its values are not those of model.pt

    @property
    def opens(self):
        return not self.says

    @property
    def torch_opens(self):
        return self.opens if self.torch is None else self.torch

    @property
    def tools(self):
        words = re.findall(r"[\w-]+", self.make) if isinstance(self.make, str) else []
        return [word for word in dict.fromkeys(words) if word in TOOLS]


TOOLS = ("zip", "unzip", "zipnote", "7zz", "bsdtar", "jar", "advzip", "gzip", "xz", "zstd", "lz4", "bzip2",
         "compress", "git", "curl", "iconv", "unix2dos", "dos2unix", "openssl", "xxd")

# Why PyTorch reads what is refused here.
ANY_END = "Z1: PyTorch looks for the last end record, and ignores what follows it"
ANY_OF_TWO = "Z1: PyTorch reads one of two; another reader reads the other"
NO_SUMS = "Z10: PyTorch compares no CRC"
