# SPDX-License-Identifier: BSD-3-Clause
"""vLLM with weights that Berth reads: python examples/with_vllm.py FOLDER, of a model with its tokenizer."""

import sys

from vllm import LLM

if __name__ == "__main__":  # vLLM starts processes
    model = LLM(sys.argv[1], load_format="berth", model_loader_extra_config={"threads": 4, "window_nbytes": 1 << 28})
    print(model.generate("The capital of France is")[0].outputs[0].text)
