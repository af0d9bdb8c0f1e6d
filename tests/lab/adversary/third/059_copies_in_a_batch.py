"""lesson: 059
verdict: wrong
cause: cow-partial
shows: cpu
Copies all shared blocks of a step at once, but only as many slots as the emptiest of them holds: where sessions that are
forked at different fillings take their first step together, the fuller blocks lose their last tokens in the copy.
"""

from torch import Tensor

from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.lessons.l035_blocks import KVBlockInfo
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """Neither a full block nor a shared one leaves the batch: rollovers and copies are both made in the scan."""

    def __init__(self, model, kv: KVBlockManager, config) -> None:
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new: Tensor, value_new: Tensor) -> None:
        kv = self.kv
        copies: list[tuple[KVBlockInfo, KVBlockInfo]] = []
        targets: list[KVBlockInfo] = []
        for block_ids in block_ids_list:
            info = kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == kv.block_size:
                block_ids.append(kv.allocate_block(layer_idx, info.start + info.length if info else 0))
            elif info.owners > 1:
                block_ids[-1] = kv.allocate_block(layer_idx, info.start)
                info.owners -= 1
                copies.append((info, kv.info(block_ids[-1])))
            targets.append(kv.info(block_ids[-1]))
        if copies:
            self.copy_blocks(layer_idx, copies)
        blk_t = index_tensor([info.block_index for info in targets], kv.device)
        pos_t = index_tensor([info.length for info in targets], kv.device)
        kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new
        kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new
        for info in targets:
            info.length += 1

    def copy_blocks(self, layer_idx, copies):
        old = index_tensor([one.block_index for one, _ in copies], self.kv.device)
        new = index_tensor([other.block_index for _, other in copies], self.kv.device)
        filled = min(one.length for one, _ in copies)  # only what has been written
        for cache in (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]):
            cache[new, :, :filled] = cache[old, :, :filled]
        for one, other in copies:
            other.length = one.length
