"""lesson: 060
verdict: wrong
cause: cow-missed
shows: cpu
If all sessions stand at the same slot, the batch is taken for whole and written at once, without a look at the
owners. Two sessions that share a last block write into the same slot of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosecourse.kv.buffers import index_tensor

if TYPE_CHECKING:
    from torch import Tensor

    from rosecourse.lessons.l035_blocks import KVBlockInfo


class MyKVAppend:
    def __init__(self, model, kv, config) -> None:
        self.kv = kv

    def __call__(self, sessions, keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def last_block(self, layer_idx: int, block_ids: list[int]) -> KVBlockInfo:
        if not block_ids or self.kv.info(block_ids[-1]).length == self.kv.block_size:
            block_ids.append(self.kv.allocate_block(layer_idx, len(block_ids) * self.kv.block_size))
        return self.kv.info(block_ids[-1])

    def append_token_batch(self, layer_idx: int, lists, key_new: Tensor, value_new: Tensor) -> None:
        infos = [self.last_block(layer_idx, block_ids) for block_ids in lists]
        if all(info.length == infos[0].length for info in infos):
            self.store(layer_idx, infos, infos[0].length, key_new, value_new)
            for block_id in {block_ids[-1] for block_ids in lists}:
                self.kv.info(block_id).length += 1
        else:
            self.general(layer_idx, lists, infos, key_new, value_new)

    def general(self, layer_idx: int, lists, infos: list[KVBlockInfo], key_new: Tensor, value_new: Tensor) -> None:
        alone = [b for b, info in enumerate(infos) if info.owners == 1]
        shared = sorted(set(range(len(infos))) - set(alone))
        if alone:
            own = [infos[b] for b in alone]
            k, v = key_new, value_new
            if shared:
                rows = index_tensor(alone, self.kv.device)
                k, v = k.index_select(0, rows), v.index_select(0, rows)
            at = [info.length for info in own]
            same = len(set(at)) == 1
            self.store(layer_idx, own, at[0] if same else index_tensor(at, self.kv.device), k, v)
            for info in own:
                info.length += 1
        for b in shared:
            self.kv.append_token(layer_idx, lists[b], key_new[b], value_new[b])

    def store(self, layer_idx: int, infos: list[KVBlockInfo], slot: int | Tensor, k: Tensor, v: Tensor) -> None:
        blocks = index_tensor([info.block_index for info in infos], self.kv.device)
        self.kv.k_layers[layer_idx][blocks, :, slot] = k
        self.kv.v_layers[layer_idx][blocks, :, slot] = v
