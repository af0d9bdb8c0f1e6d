"""The part `block_tables` of lessons 035 to 061: `block_tables(sessions)` is int32 [L, B, max_blocks]."""

import torch
from torch import Tensor, equal

from .. import Wrong, kind_of, must
from ..pool import Live
from .part_of_a_step import PartOfAStep


class BlockTables(PartOfAStep):
    """A step shows where the blocks lie; after it the cache itself appends."""

    part = "block_tables"
    stories = 200
    takes_blocks = shows_blocks = False

    def call(self, batch: list[Live]) -> None:
        lists = [self.pool.lists(live) for live in batch]
        with self.around():
            self.returned = self.made([live.session for live in batch])
        self.wanted, self.names = self._table_of(lists), [live.name for live in batch]
        must("what the part returns", kind_of(self.wanted), kind_of(self.returned))
        if [self.pool.lists(live) for live in batch] != lists:
            raise Wrong("the part changed a session's list of blocks")
        self._compare("")

    def look_back(self) -> None:
        if hasattr(self, "returned"):
            self._compare("the tables of this engine, which were right before, have changed: ")

    def advance(self, batch: list[Live]) -> None:
        nothing = torch.zeros((), dtype=self.pool.dtype)
        for layer in range(self.pool.sizes.layers):
            for live in batch if layer % 2 else batch[::-1]:
                self.pool.kv.append_token(layer, live.session.table[layer], nothing, nothing)
        for live in batch:
            token = torch.zeros_like(self.pool.tokens.of([(live.name, live.length)]))
            live.dense = torch.cat([live.dense, token], 2)
            live.session.num_cached_tokens += 1

    def _table_of(self, lists: list[list[list[int]]]) -> Tensor:
        width = self.config.max_blocks
        rows = [
            [[*indices, *[0] * (width - len(indices))] for indices in (self.pool.indices(ids) for ids in layer)]
            for layer in zip(*lists, strict=True)
        ]
        return torch.tensor(rows, dtype=torch.int32)

    def _compare(self, when: str) -> None:
        if equal(self.returned, self.wanted):
            return
        layer, b, _ = (self.returned != self.wanted).nonzero()[0].tolist()
        found, want = self.returned[layer, b].tolist(), self.wanted[layer, b].tolist()
        at = f"{when}layer {layer}, row {b} (session {self.names[b]})"
        raise Wrong(f"{at}: must be {want}\n{' ' * len(at)}  found:   {found}")
