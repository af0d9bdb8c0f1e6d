"""lesson: 038
verdict: wrong
cause: k-v-swapped
shows: cpu
A helper takes (values, keys) and is called with (keys, values): K goes into the cache of V and the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from rosecourse import InferenceSession
from rosecourse.kv.buffers import index_tensor
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager


@dataclass
class Batch:
    rows: list[int] = field(default_factory=list)
    infos: list[KVBlockInfo] = field(default_factory=list)

    def add(self, row: int, info: KVBlockInfo) -> None:
        self.rows.append(row)
        self.infos.append(info)

    def store(self, kv: KVBlockManager, layer: int, value_new: Tensor, key_new: Tensor) -> None:
        idx, blk, pos = index_tensor(
            [self.rows, [i.block_index for i in self.infos], [i.length for i in self.infos]], kv.device
        )
        kv.k_layers[layer][blk, :, pos] = key_new[idx]
        kv.v_layers[layer][blk, :, pos] = value_new[idx]
        for info in self.infos:
            info.length += 1


class MyKVAppend:
    def __init__(self, model, kv: KVBlockManager, config) -> None:
        self.kv = kv

    def __call__(self, sessions: list[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer in range(self.kv.num_layers):
            batch, others = Batch(), []
            for row, session in enumerate(sessions):
                ids = session.block_ids_per_layer[layer]
                info = self.kv.info(ids[-1]) if ids else None
                if info and info.owners == 1 and info.length < self.kv.block_size:
                    batch.add(row, info)
                else:
                    others.append((row, ids))
            if batch.rows:
                batch.store(self.kv, layer, keys[layer], values[layer])
            for row, ids in others:
                self.kv.append_token(layer, ids, keys[layer][row], values[layer][row])
