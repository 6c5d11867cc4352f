# SPDX-License-Identifier: BSD-3-Clause
"""The shapes of checkpoints that are measured, and how they are made."""

import collections

GIB, MIB = 1 << 30, 1 << 20

# One layer of a 1.1 billion parameter Llama: name, rows, columns (0: a vector).
LAYER = [("self_attn.q_proj", 2048, 2048), ("self_attn.k_proj", 256, 2048),
         ("self_attn.v_proj", 256, 2048), ("self_attn.o_proj", 2048, 2048),
         ("mlp.gate_proj", 5632, 2048), ("mlp.up_proj", 5632, 2048),
         ("mlp.down_proj", 2048, 5632), ("input_layernorm", 2048, 0),
         ("post_attention_layernorm", 2048, 0)]
LLAMA_NBYTES = 2200096768
# The state_dict of ten Linear(10000, 10000) in float32, as those who asked for pinned memory measured.
LINEAR_N, LINEAR_WIDTH = 10, 10000
LINEAR_NBYTES = LINEAR_N * (LINEAR_WIDTH + 1) * LINEAR_WIDTH * 4
LLAMA = [("model.embed_tokens.weight", 32000, 2048),
         *((f"model.layers.{i}.{name}.weight", rows, columns)
           for i in range(22) for name, rows, columns in LAYER),
         ("model.norm.weight", 2048, 0), ("lm_head.weight", 32000, 2048)]

# Of each shape: its letter, what it is, its default size.
SHAPES = {"uniform": ("a", "64 MiB tensors", 4 * GIB),
          "llama": ("b", "Llama-like 1.1B, bfloat16", LLAMA_NBYTES),
          "small": ("c", "100,000 tensors of 1 to 4 KiB", 100000 * 2560),
          "one": ("d", "one tensor", 4 * GIB),
          "linear": ("e", "ten Linear(10000, 10000), float32", LINEAR_NBYTES)}
USUAL = [shape for shape in SHAPES if shape != "linear"]


def sizes(shape, nbytes):
    """[(name, dtype, shape)] of tensors that have about nbytes bytes together."""
    if shape == "llama":
        part = nbytes / LLAMA_NBYTES
        return [(name, "bfloat16", (max(1, int(rows * part)), columns)[:2 if columns else 1])
                for name, rows, columns in LLAMA]
    if shape == "linear":
        rows = max(1, int(LINEAR_WIDTH * nbytes / LINEAR_NBYTES))
        return [(f"{i}.{name}", "float32", dimensions) for i in range(LINEAR_N)
                for name, dimensions in (("weight", (rows, LINEAR_WIDTH)), ("bias", (rows,)))]
    if shape == "small":
        random, listed = 1, []
        for i in range(max(1, nbytes // 2560)):
            random = (random * 1664525 + 1013904223) % 2**32
            listed.append((f"tensor.{i}", "float32", (256 + (random >> 16) % 769,)))
        return listed
    n = 1 if shape == "one" else max(1, nbytes // (64 * MIB))
    return [(f"tensor.{i}", "float32", (nbytes // n // 4,)) for i in range(n)]


def make(shape, nbytes, device="cpu"):
    """An OrderedDict of tensors, each where PyTorch's allocator puts it.

    Their bytes are random, but the same 8 MiB repeated: to make 4 GiB would take longer than to
    save them, and no device compresses over such a distance.
    """
    import torch

    state = collections.OrderedDict()
    generator = torch.Generator().manual_seed(1)
    block = torch.empty(8 * MIB // 8, dtype=torch.int64)
    block.random_(generator=generator)
    block = block.view(torch.uint8).to(device)
    for name, dtype, dimensions in sizes(shape, nbytes):
        tensor = torch.empty(dimensions, dtype=getattr(torch, dtype), device=device)
        flat = tensor.view(-1).view(torch.uint8)
        for at in range(0, flat.numel(), block.numel()):
            part = flat[at:at + block.numel()]
            part.copy_(block[:part.numel()])
        if flat.numel() >= 8:
            flat[:8] = torch.empty(8, dtype=torch.uint8).random_(0, 256, generator=generator)
        state[name] = tensor
    return state


def nbytes_of(state):
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())
