"""lesson: 038
verdict: wrong
cause: goal-missed
shows: cpu
One store for K and one for V for each different slot: with mixed lengths that is a store for nearly every session.
"""
from collections import defaultdict

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [s.block_ids_per_layer[layer_idx] for s in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        k_layer, v_layer = kv.k_layers[layer_idx], kv.v_layers[layer_idx]
        at_slot = defaultdict(list)  # slot -> [(row, block)]
        special = []
        for b, ids in enumerate(block_ids_list):
            info = kv.info(ids[-1]) if ids else None
            if info and info.length < kv.block_size and info.owners == 1:
                at_slot[info.length].append((b, info))
            else:
                special.append(b)
        for slot, members in at_slot.items():
            rows = index_tensor([b for b, _ in members], kv.device)
            blocks = index_tensor([info.block_index for _, info in members], kv.device)
            k_layer[blocks, :, slot] = key_new[rows]
            v_layer[blocks, :, slot] = value_new[rows]
            for _, info in members:
                info.length += 1
        for b in special:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
