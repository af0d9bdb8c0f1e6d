"""The part `copy_blocks` of the lessons from 063 on: `copy_blocks(copies)`, before anybody writes into the copies."""

from __future__ import annotations

from ....kv.blocks import Copy
from ..facts import Wrong
from ..pool import Live
from .part_of_a_step import PartOfAStep


class CopyBlocks(PartOfAStep):
    """Shared last blocks are copied; after it the model's own K and V are written."""

    part, words = "copy_blocks", "copies of blocks"
    takes_blocks = False

    def call(self, batch: list[Live]) -> None:
        copies: list[Copy] = self.pool.kv.place([live.session.table for live in batch])
        given = copies[:]
        with self.around():
            self.made(copies)
        if copies != given:
            raise Wrong("the part changed the list of copies that it was given")

    def advance(self, batch: list[Live]) -> None:
        self.append(batch)
