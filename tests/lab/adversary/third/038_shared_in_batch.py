"""lesson: 038
verdict: wrong
cause: cow-missed
shows: cpu
Takes a block for shared only if it is the last block of two sessions of this batch; a fork that waits is overlooked.
"""
from collections import Counter

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        # two writers of one block are the only danger, so count the writers
        writers = Counter(ids[-1] for ids in block_ids_list if ids)
        batch = []
        for b, ids in enumerate(block_ids_list):
            if ids and writers[ids[-1]] == 1 and kv.info(ids[-1]).length < kv.block_size:
                batch.append((b, kv.info(ids[-1])))
            else:
                kv.append_token(layer_idx, ids, key_new[b], value_new[b])
        if not batch:
            return
        idx_t = index_tensor([b for b, _ in batch], kv.device)
        blk_t = index_tensor([info.block_index for _, info in batch], kv.device)
        pos_t = index_tensor([info.length for _, info in batch], kv.device)
        kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new[idx_t]
        kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new[idx_t]
        for _, info in batch:
            info.length += 1
