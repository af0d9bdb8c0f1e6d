"""lesson: 038
verdict: wrong
cause: goal-missed
shows: cpu
Groups the batch by slot number and makes a store for each group. Sessions at the same slot share one; sessions of
different lengths have a store each, so that a layer makes up to B of them.
"""

from collections import defaultdict

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        groups, slow = defaultdict(list), []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size or info.owners > 1:
                slow.append(b)
            else:
                groups[info.length].append((b, info))
        for slot, group in groups.items():
            idx_t = index_tensor([b for b, _ in group], self.kv.device)
            blk_t = index_tensor([info.block_index for _, info in group], self.kv.device)
            self.kv.k_layers[layer_idx][blk_t, :, slot] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, slot] = value_new.index_select(0, idx_t)
            for _, info in group:
                info.length = slot + 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
