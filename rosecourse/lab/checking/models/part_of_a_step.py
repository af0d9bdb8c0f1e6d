"""What the parts have in common that a step of a pool of sessions calls."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ....decode.parts import DecodeParts
from ....errors import KVCacheExhausted
from ....kv.pool import KVPool
from .. import Wrong
from ..holding import Before
from ..pool import Live, Pool, Sizes


class PartOfAStep(ABC):
    """A part in an engine's pool, and what a story does with it.

    part: its name in `DecodeParts`. holds: what is right in all stories. takes_blocks: whether it takes blocks itself.
    shows_blocks: whether a picture of the blocks says something.
    """

    part: str
    holds = "every number in its place, every block with its owners"
    takes_blocks = True
    shows_blocks = True
    stories = 400  # that it lives through
    operations: tuple[str, ...] = ()  # of its stories, beyond those of every pool
    most: int | None = None  # sessions of a batch

    def __init__(self, part: type, cache: type[KVPool], sizes: Sizes, device: str = "cpu") -> None:
        self.pool = Pool(cache, sizes, device)
        self.config = sizes.config()
        self.before = Before(self.pool)
        self.around: Callable[[], AbstractContextManager[Any]] = nullcontext  # each call of the part
        self.made = self.make(part, sizes)

    def make(self, part: type, sizes: Sizes) -> Any:
        return part(sizes.model(), self.pool.kv, self.config)

    @staticmethod
    def engine(parts: DecodeParts, device: Any) -> DecodeParts:
        return parts

    @abstractmethod
    def call(self, batch: list[Live]) -> None:
        """Call the part for one more token of each session, and look at what it returns. Raises `Wrong`."""

    @abstractmethod
    def advance(self, batch: list[Live]) -> None:
        """What the rest of the step does after the part."""

    def started(self, live: Live, parent: Live | None = None) -> None:  # noqa: B027 - not every part listens
        """A session has begun, or has been computed again. parent: of a fork."""

    def picture(self) -> list[str]:
        return self.before.picture() if self.shows_blocks else []

    def append(self, batch: list[Live]) -> None:
        """Write the next token of each session as a model does, where room has been made for it, and count it."""
        pool, size = self.pool, self.pool.sizes.block_size
        blocks = torch.tensor([live.session.table[-1] for live in batch])
        slots = torch.tensor([live.length % size for live in batch])
        new = pool.tokens.of((live.name, live.length) for live in batch)
        for layer in range(pool.sizes.layers):
            pool.kv.write_tokens(layer, blocks, slots, new[0, layer], new[1, layer])
        for b, live in enumerate(batch):
            live.dense = torch.cat([live.dense, new[:, :, b : b + 1]], 2)
            live.session.num_cached_tokens += 1
            live.session.table.num_tokens += 1

    def look_back(self) -> None:  # noqa: B027 - not every part looks back
        """Raise `Wrong` unless what was right before is right still."""

    def step(self, batch: list[Live], room: int | None = None) -> None:
        """One step. room: blocks that are free beyond what it needs; None: as many as there are. Raises `Wrong`."""
        pool, needed = self.pool, self.pool.blocks_needed(batch)
        spare = pool.kv.num_available() - needed
        taken = None
        if room is not None and spare > room and needed + room >= 0:
            taken = pool.kv.allocate((spare - room) * pool.sizes.block_size)
        self.before = Before(pool)
        enough = pool.kv.num_available() >= needed
        try:
            self._work(batch, enough, needed)
        finally:
            if taken is not None:
                pool.kv.free(taken)
        self.before.look(batch if enough else [], stopped=not enough)

    def _work(self, batch: list[Live], enough: bool, needed: int) -> None:
        try:
            self.call(batch)
        except KVCacheExhausted:
            if enough:
                raise Wrong(
                    f"the step needs {needed} new block(s) a layer, and so many are free; the part asked for one more"
                ) from None
            for live in batch:
                self.pool.free(live)
            return
        if not enough and self.takes_blocks:
            raise Wrong(f"the step needs {needed} new block(s) and has fewer; the part raised no KVCacheExhausted")
        self.advance(batch)
