"""The oracle for parts that copy blocks: a step places its sessions, the part copies, and the oracle appends.

No number stands twice in the pool but where two sessions share a token: a block that is not in use holds numbers of its
own, so that whatever a part copies can be told from what it was to copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...kv.blocks import Copy
from . import book_judges, number_judges
from .books import ONE_TABLE_BOOKS
from .copy_judges import Asked, look_at_copies
from .layout import ONE_TABLE
from .learner import Learner
from .oracle import Oracle
from .pool import Sizes, Tracked

NEGATIVE = {torch.float16: (0x0400, 0x7800), torch.bfloat16: (0x0080, 0x7F00)}  # the first bits, and how many


class CopyOracle(Oracle):
    """For a part `copy_blocks`: it is called once a step with the list of copies, which may be empty."""

    layout, books = ONE_TABLE, ONE_TABLE_BOOKS

    def __init__(self, learner: Learner, sizes: Sizes) -> None:
        self.copies: list[Copy] = []
        super().__init__(learner, sizes)
        self._empty = [_negative_numbers(cache, which) for which, cache in enumerate((self.kv.keys, self.kv.values))]
        self._clear(list(range(sizes.num_blocks)))

    def _clear(self, blocks: Sequence[int]) -> None:
        """Let blocks hold what stands in them while nobody uses them."""
        for cache, empty in zip((self.kv.keys, self.kv.values), self._empty, strict=True):
            cache[:, list(blocks)] = empty[:, list(blocks)]
        self._written = True

    def make_room(self, batch: Sequence[Tracked]) -> None:
        self.copies = self.kv.place([t.table for t in batch])
        self._clear([copy.destination for copy in self.copies])

    def arguments(self, batch: Sequence[Tracked], tokens: torch.Tensor) -> tuple[Any, ...]:
        return (self.copies,)

    def work(self, batch: Sequence[Tracked]) -> torch.Tensor:
        asked = self._asked(batch)
        self.call(batch, self.copies)
        book_judges.look_at_manager(self, self._as_made)
        number_judges.look_at_guards(self)
        look_at_copies(self, self._known_caches(), asked)
        self.accept()
        return self._append(batch)

    def _asked(self, batch: Sequence[Tracked]) -> list[Asked]:
        """The copies, and how many slots of each are in use."""
        owners = {t.table[-1]: t for t in batch}
        return [Asked(*copy, owners[copy.destination].length % self.kv.block_size) for copy in self.copies]

    def _append(self, batch: Sequence[Tracked]) -> torch.Tensor:
        """Write the next tokens, as the forward does behind the part; returns their K and V, [2, L, B, H, D]."""
        tokens = self.next_tokens(batch)
        blocks = torch.tensor([t.table[-1] for t in batch], dtype=torch.int64)
        slots = torch.tensor([t.length % self.kv.block_size for t in batch], dtype=torch.int64)
        for layer, (keys, values) in enumerate(tokens.transpose(0, 1)):
            self.kv.write_tokens(layer, blocks, slots, keys, values)
        for t in batch:
            t.table.num_tokens += 1
        return tokens


def _negative_numbers(like: torch.Tensor, which: int) -> torch.Tensor:
    """As many numbers as a cache has, all of them negative, as no token's are. which: 0 for K, 1 for V.

    In a type of 16 bits there are too few for a large pool: they come again.
    """
    numbers = torch.arange(like.numel(), device=like.device) + which * like.numel()
    if like.dtype in NEGATIVE:
        first, count = NEGATIVE[like.dtype]
        negative = (first + numbers % count - 2**15).to(torch.int16).view(like.dtype)
    else:
        negative = -(numbers + 1).to(like.dtype)
    return negative.view(like.shape)
