"""lesson: 038
verdict: wrong
cause: hangs
shows: cpu
With a full pool it tries append_token again and again until a block comes free, which nobody can free meanwhile.
"""

import time
from collections.abc import Sequence

from torch import Tensor

from rosecourse import EngineConfig, InferenceSession, KVCacheExhausted
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        waiting: list[int] = []
        fast = []
        for b, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if ids else None
            if info is None or info.length == self.kv.block_size or info.owners > 1:
                waiting.append(b)
            else:
                fast.append((b, info))
        if fast:
            idx_t = index_tensor([b for b, _ in fast], self.kv.device)
            blk_t = index_tensor([info.block_index for _, info in fast], self.kv.device)
            pos_t = index_tensor([info.length for _, info in fast], self.kv.device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for _, info in fast:
                info.length += 1
        while waiting:
            b = waiting[0]
            try:
                self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
            except KVCacheExhausted:
                time.sleep(0.001)  # another session may give a block back
                continue
            waiting.pop(0)
