"""lesson: 038
verdict: right
cause: right
shows: cpu
An over-engineered part: a sorter with two trays, a frozen ticket for each simple token, a clerk for each cache.
It does what the lesson asks: one indexed store each for K and V, and append_token for the rest.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


@dataclass(frozen=True, slots=True)
class Ticket:
    """A token that may be written with the others."""

    row: int
    info: KVBlockInfo

    @property
    def address(self) -> tuple[int, int]:
        return self.info.block_index, self.info.length

    def stamp(self) -> None:
        self.info.length += 1


class Rule(Protocol):
    def __call__(self, info: KVBlockInfo) -> bool: ...


@dataclass(slots=True)
class Trays:
    together: list[Ticket] = field(default_factory=list)
    alone: list[int] = field(default_factory=list)


class Sorter:
    def __init__(self, kv: KVBlockManager, *rules: Rule) -> None:
        self._kv, self._rules = kv, rules

    def sort(self, block_ids_list: Sequence[Sequence[int]]) -> Trays:
        trays = Trays()
        for row, info in enumerate(self._last_blocks(block_ids_list)):
            if info is not None and all(rule(info) for rule in self._rules):
                trays.together.append(Ticket(row, info))
            else:
                trays.alone.append(row)
        return trays

    def _last_blocks(self, lists: Sequence[Sequence[int]]) -> Iterator[KVBlockInfo | None]:
        for ids in lists:
            yield self._kv.info(ids[-1]) if ids else None


class Clerk:
    """Writes rows into a layer of one cache."""

    def __init__(self, layers: Sequence[Tensor]) -> None:
        self._layers = layers

    def file(self, layer_idx: int, blocks: Tensor, slots: Tensor, papers: Tensor) -> None:
        self._layers[layer_idx][blocks, :, slots] = papers


class MyKVAppend:
    """Put the new token's K and V into the cache."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self._sorter = Sorter(kv, self._has_room, self._is_private)
        self._clerks = Clerk(kv.k_layers), Clerk(kv.v_layers)

    def _has_room(self, info: KVBlockInfo) -> bool:
        return info.length < self.kv.block_size

    def _is_private(self, info: KVBlockInfo) -> bool:
        return info.owners == 1

    def __call__(
        self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]
    ) -> None:
        for layer_idx, papers in enumerate(zip(keys, values, strict=True)):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, *papers)

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        trays = self._sorter.sort(block_ids_list)
        for row in trays.alone:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])
        if not trays.together:
            return
        blocks, slots = zip(*(ticket.address for ticket in trays.together), strict=True)
        device = self.kv.device
        rows_t = index_tensor([ticket.row for ticket in trays.together], device)
        blocks_t, slots_t = index_tensor(list(blocks), device), index_tensor(list(slots), device)
        for clerk, papers in zip(self._clerks, (key_new, value_new), strict=True):
            clerk.file(layer_idx, blocks_t, slots_t, papers.index_select(0, rows_t))
        for ticket in trays.together:
            ticket.stamp()
