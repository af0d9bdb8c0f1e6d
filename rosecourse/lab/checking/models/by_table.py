"""The part `kv_append` of the lessons from 063 on: `kv_append(inputs)` gives `append(layer_idx, k, v)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, equal

from ....decode.inputs import DecodeInputs
from ..facts import Wrong
from ..layout import place_and_copy
from ..pool import Live
from .appends import KVAppend


class AppendByTable(KVAppend):
    """K and V of a step go where the block tables say; blocks are placed before."""

    words = "a KV append by the block table"
    takes_blocks = False

    operations = ("broken",)

    def broken(self, batch: list[Live]) -> str:
        """A step that is interrupted behind its first layer, and whose tokens come again."""
        self.call(batch, broken=True)
        return f"a step of [{', '.join(live.name for live in batch)}] is interrupted behind its first layer"

    def call(self, batch: list[Live], broken: bool = False) -> None:
        place_and_copy(self.pool.kv, [live.session.table for live in batch])
        k, v = self.new_tokens(batch)
        inputs = self._inputs(batch)
        given = [inputs.token_ids, inputs.context_lens, inputs.block_tables, k, v]
        copies = [tensor.clone() for tensor in given]
        with self.around():
            append: Callable[[int, Tensor, Tensor], Any] = self.made(inputs)
            for layer in range(1 if broken else self.pool.sizes.layers):
                append(layer, k[layer], v[layer])
        if not all(map(equal, copies, given)):
            raise Wrong("the part changed the inputs of the step, or the K or V that it was given")

    def advance(self, batch: list[Live]) -> None:
        super().advance(batch)
        for live in batch:
            live.session.table.num_tokens += 1

    def _inputs(self, batch: list[Live]) -> DecodeInputs:
        """The inputs of a step; in every third, the tables of each layer have memory of their own."""
        kv, width = self.pool.kv, self.config.max_blocks
        rows = [[*live.session.table, *[0] * (width - len(live.session.table))] for live in batch]
        tables = torch.tensor(rows, dtype=torch.int32).expand(kv.num_layers, -1, -1)
        tables = tables.contiguous() if self.calls % 3 == 0 else tables
        lengths = [live.length for live in batch]
        token_ids = torch.ones(len(batch), dtype=torch.int64, device=kv.device)
        sessions = [live.session for live in batch]
        return DecodeInputs(
            token_ids, torch.tensor(lengths, device=kv.device), max(lengths), tables.to(kv.device), sessions
        )
