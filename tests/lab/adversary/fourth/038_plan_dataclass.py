"""lesson: 038
verdict: right
cause: right
shows: both
A plan object collects the simple sessions; `index_put_` on a token-major view stores them, with one index tensor of three rows a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rosecourse import EngineConfig, InferenceSession
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model


@dataclass
class Plan:
    rows: list[int] = field(default_factory=list)
    infos: list[KVBlockInfo] = field(default_factory=list)
    left_over: list[int] = field(default_factory=list)

    def index(self, device: torch.device) -> tuple[Tensor, ...]:
        return index_tensor([self.rows, [i.block_index for i in self.infos], [i.length for i in self.infos]], device).unbind()


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx, tables in enumerate(self.tables_by_layer(sessions)):
            plan = self.plan(tables)
            if plan.rows:
                rows, blocks, slots = plan.index(self.kv.device)
                for caches, new in ((self.kv.k_layers, keys), (self.kv.v_layers, values)):
                    caches[layer_idx].transpose(1, 2).index_put_((blocks, slots), new[layer_idx].index_select(0, rows))
            for info in plan.infos:
                info.length += 1
            for row in plan.left_over:
                self.kv.append_token(layer_idx, tables[row], keys[layer_idx][row], values[layer_idx][row])

    def tables_by_layer(self, sessions: Sequence[InferenceSession]) -> Iterator[list[list[int]]]:
        for layer_idx in range(self.kv.num_layers):
            yield [session.block_ids_per_layer[layer_idx] for session in sessions]

    def plan(self, tables: list[list[int]]) -> Plan:
        plan = Plan()
        for row, table in enumerate(tables):
            match [self.kv.info(block_id) for block_id in table[-1:]]:
                case [info] if info.owners == 1 and info.length < self.kv.block_size:
                    plan.rows.append(row)
                    plan.infos.append(info)
                case _:
                    plan.left_over.append(row)
        return plan
