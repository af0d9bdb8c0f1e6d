"""lesson: 059
verdict: right
cause: right
shows: both
Two passes over the layers: the first begins all blocks that the step needs, in all layers, the second writes. After the
first nobody is full, and only shared blocks remain. Flat rows and `index_copy_`.
"""

import numpy as np
import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.heads = np.arange(kv.k_layers[0].shape[1])

    def begin_blocks(self, sessions):
        for session in sessions:
            for layer, ids in enumerate(session.block_ids_per_layer):
                used = sum(self.kv.info(block_id).length for block_id in ids[-1:])
                if not ids or used == self.kv.block_size:
                    ids.append(self.kv.allocate_block(layer, len(ids) * self.kv.block_size))

    def __call__(self, sessions, keys, values):
        self.begin_blocks(sessions)
        for layer in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer] for session in sessions]
            infos = np.array([self.kv.info(ids[-1]) for ids in lists], dtype=object)
            alone = np.array([info.owners == 1 for info in infos])
            if alone.any():
                self.write(layer, np.flatnonzero(alone), infos[alone], keys[layer], values[layer])
            for b in np.flatnonzero(~alone):
                self.kv.append_token(layer, lists[b], keys[layer][b], values[layer][b])

    def write(self, layer, chosen, infos, key_new, value_new):
        block = np.fromiter((info.block_index for info in infos), np.int64)[:, None]
        slot = np.fromiter((info.length for info in infos), np.int64)[:, None]
        rows = (block * self.heads.size + self.heads) * self.kv.block_size + slot
        rows_t = torch.from_numpy(rows.ravel()).to(self.kv.device)
        chosen_t = torch.from_numpy(chosen).to(self.kv.device)
        self.kv.k_layers[layer].flatten(0, 2).index_copy_(0, rows_t, key_new[chosen_t].flatten(0, 1))
        self.kv.v_layers[layer].flatten(0, 2).index_copy_(0, rows_t, value_new[chosen_t].flatten(0, 1))
        for info in infos:
            info.length += 1
