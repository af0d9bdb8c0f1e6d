# wrong, which a CPU can show
from collections import Counter

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            self.append_token_batch(
                layer_idx,
                [session.block_ids_per_layer[layer_idx] for session in sessions],
                keys[layer_idx],
                values[layer_idx],
            )

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        users = Counter((ids[-1] for ids in block_ids_list if ids))
        rows, blocks, slots, one_by_one = ([], [], [], [])
        for b, ids in enumerate(block_ids_list):
            if ids and users[ids[-1]] == 1 and (kv.info(ids[-1]).length < kv.block_size):
                rows.append(b)
                blocks.append(kv.info(ids[-1]).block_index)
                slots.append(kv.info(ids[-1]).length)
            else:
                one_by_one.append(b)
        if rows:
            r, n, p = (index_tensor(x, kv.device) for x in (rows, blocks, slots))
            kv.k_layers[layer_idx][n, :, p] = key_new[r]
            kv.v_layers[layer_idx][n, :, p] = value_new[r]
            for b in rows:
                kv.info(block_ids_list[b][-1]).length += 1
        for b in one_by_one:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
