"""lesson: 059
verdict: wrong
cause: hangs
shows: cpu
If the pool has no free block, the part waits until somebody gives one back, instead of raising KVCacheExhausted.
Nobody can give one back while the step runs, so the call never returns. With enough blocks everything is right.
"""
import time

from rosecourse.errors import KVCacheExhausted
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def get_block(self, layer_idx, start):
        while True:
            try:
                return self.kv.allocate_block(layer_idx, start)
            except KVCacheExhausted:
                time.sleep(0.0005)  # a session will end soon

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, slow = {}, []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                start = 0 if info is None else info.start + info.length
                block_ids.append(self.get_block(layer_idx, start))
                info = self.kv.info(block_ids[-1])
            if info.owners == 1:
                fast[b] = info
            else:
                slow.append(b)

        if fast:
            device = self.kv.device
            idx_t = index_tensor(list(fast), device)
            blk_t = index_tensor([info.block_index for info in fast.values()], device)
            pos_t = index_tensor([info.length for info in fast.values()], device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for info in fast.values():
                info.length += 1

        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
