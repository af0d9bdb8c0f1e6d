"""lesson: 038
verdict: wrong
cause: cow-partial
shows: cpu
Its own copy-on-write slices `[block, :n]`, which is the first n heads and not the first n slots: with few tokens heads are lost.
"""

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model


class MyKVAppend:
    """Shared blocks are unshared first, so that they can go into the batch like the others."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions, keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        batch: list[tuple[int, KVBlockInfo]] = []
        slow: list[int] = []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                slow.append(b)
                continue
            if info.owners > 1:
                info = self.unshare(layer_idx, block_ids)
            batch.append((b, info))
        if batch:
            idx_t = index_tensor([b for b, _ in batch], self.kv.device)
            blk_t = index_tensor([info.block_index for _, info in batch], self.kv.device)
            pos_t = index_tensor([info.length for _, info in batch], self.kv.device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for _, info in batch:
                info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def unshare(self, layer_idx: int, block_ids: list[int]) -> KVBlockInfo:
        old = self.kv.info(block_ids[-1])
        copy_id = self.kv.allocate_block(layer_idx, old.start)
        new = self.kv.info(copy_id)
        n = old.length
        for cache in (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]):
            cache[new.block_index, :n] = cache[old.block_index, :n]
        new.length = n
        old.owners -= 1
        block_ids[-1] = copy_id
        return new
