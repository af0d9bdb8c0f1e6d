"""A tiny GPT-2 for the engines in which a part is tried."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import torch

from ...models.gpt2 import GPT2, GPT2Shape

PERIOD = 65_537  # a prime: rows of a weight are not alike
ATTENTIVE = {"attn.c_attn": 0.5, "attn.c_proj": 4.0, "wpe": 2.0}  # part of a weight's name -> how much larger it is


@lru_cache
def attentive_gpt2(layers: int, heads: int, head_dim: int, context: int, device: str = "cpu") -> GPT2:
    """A GPT-2 with seeded weights by which a token depends much on what attention reads: one wrong number in the cache
    mostly shows in the greedy tokens that follow."""
    shape = GPT2Shape(vocab_size=97, context=context, width=heads * head_dim, num_layers=layers, num_heads=heads)
    generator = torch.Generator().manual_seed(0)
    weights = {name: 0.4 * _drawn(size, generator) for name, size in shape.parameters().items()}
    for name, weight in weights.items():
        if "bias" in name:
            weight.zero_()
        elif "ln_" in name:
            weight.fill_(1.0)
        weight *= next((factor for part, factor in ATTENTIVE.items() if part in name), 1.0)
    return GPT2(shape, {name: weight.to(device) for name, weight in weights.items()}, None, "random")


def _drawn(size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Normal numbers. Those of a large weight come again after a while: to draw them all takes half a second."""
    numbers = torch.randn(min(prod(size), PERIOD), generator=generator)
    return numbers.repeat(-(-prod(size) // PERIOD))[: prod(size)].view(size)
