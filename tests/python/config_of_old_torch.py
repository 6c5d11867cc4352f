# SPDX-License-Identifier: BSD-3-Clause
"""Stands for torch.utils.serialization.config, which PyTorch 2.6 has not: options under its config module."""

import sys

from torch.utils._config_module import install_config_module


class load:
    mmap: bool = False
    endianness: object = None
    mmap_flags: int = 2


class save:
    compute_crc32: bool = True
    storage_alignment: int = 64


install_config_module(sys.modules[__name__])
