"""lesson: 060
verdict: right
cause: right
shows: cpu
Over-engineered: the scan yields targets, a plan says which rows go to which blocks and slots, and a store carries the plan out.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


@dataclass(frozen=True)
class Target:
    """A row of the batch, and the block that its token goes to."""

    row: int
    block: KVBlockInfo

    @property
    def is_shared(self) -> bool:
        return self.block.owners > 1


@dataclass(frozen=True)
class Plan:
    targets: tuple[Target, ...]
    num_rows: int  # of the whole batch

    def blocks(self, device) -> Tensor:
        return index_tensor([target.block.block_index for target in self.targets], device)

    def slots(self, device) -> int | Tensor:
        """One number if it is the same for all."""
        numbers = [target.block.length for target in self.targets]
        if numbers.count(numbers[0]) == len(numbers):
            return numbers[0]
        return index_tensor(numbers, device)

    def rows(self, device) -> Tensor | None:
        """None if it is the whole batch."""
        if len(self.targets) == self.num_rows:
            return None
        return index_tensor([target.row for target in self.targets], device)


class Store:
    """Brings rows of K and V to one layer."""

    def __init__(self, k_layer: Tensor, v_layer: Tensor) -> None:
        self.caches = (k_layer, v_layer)

    def carry_out(self, plan: Plan, *news: Tensor) -> None:
        device = self.caches[0].device
        where = (plan.blocks(device), slice(None), plan.slots(device))
        rows = plan.rows(device)
        for cache, new in zip(self.caches, news, strict=True):
            cache[where] = new if rows is None else new.index_select(0, rows)


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.stores = [Store(k, v) for k, v in zip(kv.k_layers, kv.v_layers, strict=True)]

    def __call__(
        self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]
    ) -> None:
        """keys, values: for each layer [B, H, D]."""
        for layer_idx, (key_new, value_new) in enumerate(zip(keys, values, strict=True)):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, key_new, value_new)

    def targets(self, layer_idx: int, block_ids_list: list[list[int]]) -> Iterator[Target]:
        for row, block_ids in enumerate(block_ids_list):
            last = self.kv.info(block_ids[-1]) if block_ids else None
            if last is None:
                block_ids.append(self.kv.allocate_block(layer_idx, 0))
            elif last.length == self.kv.block_size:
                block_ids.append(self.kv.allocate_block(layer_idx, last.start + last.length))
            yield Target(row, self.kv.info(block_ids[-1]))

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        """Append one token to each of B sessions in one layer; key_new, value_new: [B, H, D]."""
        targets = list(self.targets(layer_idx, block_ids_list))
        copied = [target.row for target in targets if target.is_shared]
        together = tuple(target for target in targets if not target.is_shared)
        if together:
            plan = Plan(together, len(key_new))
            self.stores[layer_idx].carry_out(plan, key_new, value_new)
            for target in together:
                target.block.length += 1
        for row in copied:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])
