"""The random numbers of a request: a hash of its seed and a position, whatever the rung, the row and the batch.

It takes 32-bit integers alone, so that a device can draw the same number. The mixer is the finalizer of MurmurHash3.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

WORD = 32  # bits
MASK = 2**WORD - 1
STEP = 0x9E3779B9  # 2^32 divided by the golden ratio: position 0 is no special one


def mixed(word: Any) -> Any:
    """A 32-bit integer for another, one to one; or an int64 tensor of them for another, whose products may overflow."""
    word = word ^ word >> 16
    word = word * 0x85EBCA6B & MASK
    word = word ^ word >> 13
    word = word * 0xC2B2AE35 & MASK
    return word ^ word >> 16


def key_of(seed: int) -> int:
    """The 32 bits of a seed, 0 or more, that draws are made of: those below 2^32 all have different ones."""
    key = 0
    while True:
        key = mixed((key + STEP + seed) & MASK)
        seed >>= WORD
        if not seed:
            return key


def draw(seed: int, position: int) -> float:
    """A number in [0, 1), a multiple of 2^-32. position: that of the token which is chosen by it in its sequence."""
    return _word(key_of(seed), position) / 2**WORD


def draws(keys: Tensor, positions: Tensor) -> Tensor:
    """`draw` for int64 tensors of the keys of seeds and of positions; returns float64."""
    return _word(keys, positions).double() / 2**WORD


def _word(key: Any, position: Any) -> Any:
    return mixed((mixed((position + STEP) & MASK) + key) & MASK)
