"""Prompts that nobody has asked for, so that the products of a prefill come in few sizes.

For each number of rows that it has not seen, cuBLAS asks a heuristic which of its kernels to take. On an H200's host
that takes 2 to 5 ms for each of a layer's four products, where a whole prefill of short prompts takes 4 ms. Prompts
come in any number of tokens, so that for a long time nearly every prefill would wait for it. (vLLM pads the tokens of a
step up to the sizes of its CUDA graphs.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..kv.pool import KVPool
from ..models.shape import Model

LEAST = 64  # rows: for fewer, the weights have to be read all the same


class Pad(NamedTuple):
    """A prompt of zeros, as `PromptTokens` looks at a session."""

    token_ids: list[int]
    table: list[int]
    num_cached_tokens: int = 0


def few_sizes(num_tokens: int) -> int:
    """The next multiple of 64; above 512 the next of eight sizes from one power of two to the next."""
    step = max(LEAST, 1 << (num_tokens - 1).bit_length() >> 4)
    return -(-num_tokens // step) * step


def pads_for(model: Model, kv: KVPool) -> Callable[[int], list[Pad]]:
    """What makes the pads of a prefill of so many tokens. There are none on a CPU, whose library takes no such time.

    Nor for a cache without a block for pads.
    """
    return Pads(model, kv) if kv.device.type == "cuda" and kv.spare_blocks else no_pads


def no_pads(num_tokens: int) -> list[Pad]:
    """Nothing to add."""
    return []


class Pads:
    """Fills a prefill up to one of few sizes. What the pads compute goes to the cache's block for pads."""

    def __init__(self, model: Model, kv: KVPool, size: Callable[[int], int] = few_sizes) -> None:
        """kv: with a block that no session can hold, number `num_blocks` (lesson 066). size: of a prefill."""
        self.size = size
        self.longest = min(kv.block_size, model.shape.context)
        self.block = kv.num_blocks

    def __call__(self, num_tokens: int) -> list[Pad]:
        """Prompts of a block or less, that make `num_tokens` up to a size."""
        missing = self.size(num_tokens) - num_tokens
        full, rest = divmod(missing, self.longest)
        lengths = [self.longest] * full + [rest] * (rest > 0)
        return [Pad([0] * length, [self.block]) for length in lengths]
