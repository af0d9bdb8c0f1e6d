"""lesson: 060
verdict: wrong
cause: inputs-changed
shows: cpu
Takes the layers off the caller's lists with `pop`, to free their memory early: the step's keys and values are empty lists afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        layer_idx = self.kv.num_layers
        while keys:  # from the last layer down: `pop` from the end is cheap, and a layer's K and V can go at once
            layer_idx -= 1
            key_new, value_new = keys.pop(), values.pop()
            tables = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, tables, key_new, value_new)

    def append_token_batch(
        self, layer_idx: int, tables: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        mine: dict[int, KVBlockInfo] = {}
        shared: list[int] = []
        for row, table in enumerate(tables):
            info = self.kv.info(table[-1]) if table else None
            if info is None or info.length == self.kv.block_size:
                table.append(self.kv.allocate_block(layer_idx, info.start + info.length if info else 0))
                info = self.kv.info(table[-1])
            if info.owners == 1:
                mine[row] = info
            else:
                shared.append(row)
        if mine:
            infos = list(mine.values())
            blocks = index_tensor([info.block_index for info in infos], self.kv.device)
            at = {info.length for info in infos}
            slots = at.pop() if len(at) == 1 else index_tensor([info.length for info in infos], self.kv.device)
            k, v = key_new, value_new
            if shared:
                rows = index_tensor(list(mine), self.kv.device)
                k, v = k.index_select(0, rows), v.index_select(0, rows)
            self.kv.k_layers[layer_idx][blocks, :, slots] = k
            self.kv.v_layers[layer_idx][blocks, :, slots] = v
            for info in infos:
                info.length += 1
        for row in shared:
            self.kv.append_token(layer_idx, tables[row], key_new[row], value_new[row])
