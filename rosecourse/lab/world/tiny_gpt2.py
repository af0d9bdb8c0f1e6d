"""A tiny GPT-2 for the pools and engines in which a part is tried."""

from __future__ import annotations

from functools import lru_cache

import torch

from ...models.gpt2 import GPT2, GPT2Shape


@lru_cache
def random_gpt2(layers: int, heads: int, head_dim: int, context: int, device: str = "cpu") -> GPT2:
    """A GPT-2 with seeded random weights, large enough that every token depends on its whole context."""
    shape = GPT2Shape(vocab_size=97, context=context, width=heads * head_dim, num_layers=layers, num_heads=heads)
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(size, generator=generator) * 0.4 for name, size in shape.parameters().items()}
    return GPT2(shape, {name: weight.to(device) for name, weight in weights.items()}, None, "random")
