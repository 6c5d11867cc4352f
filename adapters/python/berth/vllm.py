# SPDX-License-Identifier: BSD-3-Clause
"""A model loader for vLLM: `vllm serve FOLDER --load-format berth`.

vLLM finds it by itself where the package berth-checkpoint is installed (entry point `vllm.general_plugins`).
"""

import copy
import os
import time

from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight

from berth.safetensors import safe_open

OPTIONS = ("threads", "window_nbytes")


class BerthModelLoader(DefaultModelLoader):
    """Files are found as by vLLM's own loader; Berth reads them, in the order of their bytes, each byte once.

    Files in PyTorch's format (`.bin`, `.pt`) as well: no code of theirs runs. What another rank's experts need is not read.

    load_config.model_loader_extra_config: {"threads": how many read, "window_nbytes": how many bytes are read and not
        yet taken by the model}; without them, those of `safe_open(...).prefetch`
    Raises: ValueError for other options; as berth.safetensors.safe_open and its prefetch.
    """

    def __init__(self, load_config):
        options = load_config.model_loader_extra_config
        wrong = [name for name in options if name not in OPTIONS]
        if wrong:
            raise ValueError(f"the load format berth has no option {wrong[0]!r}; it has {' and '.join(OPTIONS)}")
        own = copy.copy(load_config)  # vLLM's loader knows its own formats and options only
        own.load_format, own.model_loader_extra_config = "auto", {}
        super().__init__(own)
        self._options = dict(options)

    def _get_weights_iterator(self, source):
        if self.load_config.safetensors_load_strategy == "torchao":  # puts tensors of parts together
            yield from super()._get_weights_iterator(source)
            return
        self.counter_before_loading_weights = self.counter_before_loading_weights or time.perf_counter()
        _, files, _, _ = self._prepare_weights(source.model_or_path, source.subfolder, source.revision,
                                               source.fall_back_to_pt, source.allow_patterns_overrides)
        is_unused = source.is_unused_weight or (lambda name: False)
        with safe_open([os.path.abspath(file) for file in sorted(files)], "pt", backend="pread") as file:
            plan = {name: None for name in file.keys()
                    if not is_unused(name) and not should_skip_weight(name, self.local_expert_ids)}
            with file.prefetch(plan, **self._options) as loader:
                for name, tensor in loader:
                    yield source.prefix + name, tensor


def register():
    """For vLLM, in each of its processes. Without an entry point a program calls it before it makes an engine."""
    register_model_loader("berth")(BerthModelLoader)
