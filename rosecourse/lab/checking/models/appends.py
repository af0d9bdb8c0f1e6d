"""The parts that write into the cache: `kv_append` of lessons 035 to 062 and from 063 on, and `copy_blocks`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, equal

from ....decode.inputs import DecodeInputs
from ....kv.blocks import Copy
from .. import Wrong
from ..layout import place_and_copy
from ..pool import Live
from .part_of_a_step import PartOfAStep


class KVAppend(PartOfAStep):
    """K and V of a step go into the cache: `kv_append(sessions, keys, values)`."""

    part = "kv_append"
    stories = 250
    calls = 0

    def call(self, batch: list[Live]) -> None:
        k, v = self.new_tokens(batch)
        sessions, keys, values = [live.session for live in batch], list(k), list(v)
        given, copies = (sessions[:], keys[:], values[:]), [tensor.clone() for tensor in (*keys, *values)]
        with self.around():
            self.made(sessions, keys, values)
        if any([*map(id, now)] != [*map(id, was)] for now, was in zip((sessions, keys, values), given, strict=True)):
            raise Wrong("the part changed a list that it was given")
        if not all(map(equal, copies, (*keys, *values))):
            raise Wrong("the part changed the K or V that it was given, which the model still uses")

    def new_tokens(self, batch: list[Live]) -> tuple[Tensor, Tensor]:
        """K and V of the next token of each session, each [L, B, H, D]."""
        self.new = self.pool.tokens.of((live.name, live.length) for live in batch)
        return self._views_of(self.new.to(self.pool.kv.device))

    def advance(self, batch: list[Live]) -> None:
        for b, live in enumerate(batch):
            live.dense = torch.cat([live.dense, self.new[:, :, b : b + 1]], 2)
            live.session.num_cached_tokens += 1

    def _views_of(self, new: Tensor) -> tuple[Tensor, Tensor]:
        """K and V, each [L, B, H, D], as views of a larger tensor, whose rows lie differently in each step."""
        layers, batch, heads, size = new.shape[1:]
        self.calls += 1
        gap = self.calls % 3
        memory = torch.full((2, layers, batch + 1, 2 * heads + 4, size), -1.0, dtype=new.dtype, device=new.device)
        k, v = memory[0, :, :batch, gap : gap + heads], memory[0, :, :batch, heads + 2 + gap : 2 * heads + 2 + gap]
        dense = memory[1].flatten(1)[:, : batch * heads * size].view(layers, batch, heads, size)
        if self.calls % 5 == 4:
            v = dense
        elif self.calls % 5 == 2:
            k = dense
        k.copy_(new[0])
        v.copy_(new[1])
        return k, v


class AppendByTable(KVAppend):
    """They go where the block tables say: `kv_append(inputs)` gives `append(layer_idx, k, v)`."""

    stories = 200
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


class CopyBlocks(PartOfAStep):
    """`copy_blocks(copies)`: shared last blocks are copied; after it the model's own K and V are written."""

    part = "copy_blocks"
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
