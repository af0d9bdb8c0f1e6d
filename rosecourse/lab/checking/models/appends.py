"""The part `kv_append` of lessons 035 to 062: `kv_append(sessions, keys, values)`."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor, equal

from ..facts import Wrong
from ..pool import Live
from .part_of_a_step import PartOfAStep

HELD = 3  # steps whose K and V may still be there: Python frees them when it likes


class KVAppend(PartOfAStep):
    """K and V of a step go into the cache."""

    part, words = "kv_append", "a KV append"
    calls = 0
    _fed: tuple[weakref.ref[Tensor], ...] = ()

    def call(self, batch: list[Live]) -> None:
        k, v = self.new_tokens(batch)
        sessions, keys, values = [live.session for live in batch], list(k), list(v)
        given, copies = (sessions[:], keys[:], values[:]), [tensor.clone() for tensor in (*keys, *values)]
        self._watch(keys[0])
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

    def look_back(self) -> None:
        if sum(tensor() is not None for tensor in self._fed) > HELD:
            raise Wrong("the part holds on to the K and V of every step: memory grows for ever")

    def _watch(self, tensor: Tensor) -> None:
        self._fed = (*self._fed, weakref.ref(tensor))

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
