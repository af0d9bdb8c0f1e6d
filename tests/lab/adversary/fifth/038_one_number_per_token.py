"""lesson: 038
verdict: wrong
cause: size-limit
shows: cpu
Block and slot travel to the device as one number, block * 64 + slot, and are taken apart there with // 64 and % 64.
With blocks of up to 64 tokens that is right; with larger ones (block_size=128) a slot from 64 on comes out as a slot of the next block.
"""
import numpy as np

from rosecourse.kv.buffers import index_tensor

PER_BLOCK = 64  # slots


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            lists = [s.block_ids_per_layer[layer] for s in sessions]
            self.append_token_batch(layer, lists, keys[layer], values[layer])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        infos = [self.kv.info(ids[-1]) if ids else None for ids in block_ids_list]
        fast = np.array(
            [i is not None and i.length < self.kv.block_size and i.owners == 1 for i in infos], dtype=bool
        )
        rows = np.flatnonzero(fast).tolist()
        if rows:
            packed = [infos[b].block_index * PER_BLOCK + infos[b].length for b in rows]
            idx_t, where = index_tensor([rows, packed], self.kv.device)  # one copy, not three
            blk_t, pos_t = where // PER_BLOCK, where % PER_BLOCK
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for b in rows:
                infos[b].length += 1
        for b in np.flatnonzero(~fast).tolist():
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
