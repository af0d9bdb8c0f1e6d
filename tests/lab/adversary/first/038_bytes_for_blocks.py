"""lesson: 038
verdict: wrong
cause: size-limit
shows: cpu
Keeps block indices and slots in arrays of uint8 to make the upload small: from block 256 on they wrap to the blocks at
the beginning of the pool.
"""

import numpy as np
import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.where = np.zeros((3, config.max_batch_size), dtype=np.uint8)

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        n, written, slow = 0, [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size or info.owners > 1:
                slow.append(b)
                continue
            self.where[:, n] = np.array([b, info.block_index, info.length]).astype(np.uint8)
            written.append(info)
            n += 1
        if n:
            idx, blk, pos = torch.from_numpy(self.where[:, :n].copy()).to(self.kv.device).long()
            self.kv.k_layers[layer_idx][blk, :, pos] = key_new[idx]
            self.kv.v_layers[layer_idx][blk, :, pos] = value_new[idx]
        for info in written:
            info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
