"""lesson: 038
verdict: right
cause: right
shows: cpu
One index_put_ for K and one for V over the view [num_blocks, block_size, H, D]; the others go to append_token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from rosecourse import EngineConfig, InferenceSession
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model


@dataclass
class LayerPlan:
    """What one layer has to do in one step."""

    rows: list[int] = field(default_factory=list)
    infos: list[KVBlockInfo] = field(default_factory=list)
    special: list[int] = field(default_factory=list)

    def where(self) -> Iterator[list[int]]:
        yield [info.block_index for info in self.infos]
        yield [info.length for info in self.infos]


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        # token-major views of the same memory: [num_blocks, block_size, H, D]
        self.views = [(k.transpose(1, 2), v.transpose(1, 2)) for k, v in zip(kv.k_layers, kv.v_layers, strict=True)]

    def __call__(
        self, sessions: Sequence[InferenceSession], keys: list[torch.Tensor], values: list[torch.Tensor]
    ) -> None:
        for layer_idx, (k, v) in enumerate(zip(keys, values, strict=True)):
            self.append_token_batch(layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], k, v)

    def plan(self, block_ids_list: list[list[int]]) -> LayerPlan:
        plan = LayerPlan()
        for row, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if len(ids) else None
            if info and info.owners == 1 and info.length < self.kv.block_size:
                plan.rows.append(row)
                plan.infos.append(info)
            else:
                plan.special.append(row)
        return plan

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: torch.Tensor, value_new: torch.Tensor
    ) -> None:
        plan = self.plan(block_ids_list)
        for row in plan.special:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])
        if not plan.rows:
            return
        where = tuple(index_tensor(numbers, self.kv.device) for numbers in plan.where())
        if plan.special:
            picked = index_tensor(plan.rows, self.kv.device)
            key_new, value_new = key_new[picked], value_new[picked]
        for view, new in zip(self.views[layer_idx], (key_new, value_new), strict=True):
            view.index_put_(where, new)
        for info in plan.infos:
            info.length += 1
