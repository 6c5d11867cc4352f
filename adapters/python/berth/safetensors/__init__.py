# SPDX-License-Identifier: BSD-3-Clause
"""The interface of the package safetensors, by Berth, for every format.

    from berth.safetensors import safe_open
    from berth.safetensors.torch import load_file, save_file

The names, results and error classes are those of safetensors 0.8 (torch and numpy), and `prefetch` is that of 0.9. A
file can be one of safetensors or of PyTorch; and where a path is asked for, it can be an index and its files, a
folder, a URL, or a list of paths. Nothing of a file is run. Saves are atomic, durable and parallel, with the same
bytes.

`berth.install(safetensors=True)` puts these functions in place of the package's, for the whole process.
"""

from berth.safetensors._errors import SafetensorError
from berth.safetensors._open import PySafeSlice, TensorMeta, safe_open
from berth.safetensors._prefetch import PrefetchLoader
from berth.safetensors._save import TensorSpec, deserialize, serialize, serialize_file

__all__ = [
    "PrefetchLoader",
    "PySafeSlice",
    "SafetensorError",
    "TensorMeta",
    "TensorSpec",
    "deserialize",
    "safe_open",
    "serialize",
    "serialize_file",
]
