"""lesson: 038
verdict: wrong
cause: goal-missed
shows: cpu
Right, but makes one pair of stores for each different slot: sessions of different lengths are written one by one again.
"""

from collections import defaultdict

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """Sessions that write to the same slot are written together."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        by_slot = defaultdict(list)
        slow = []
        for b, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if ids else None
            if info is None or info.owners > 1 or info.length == self.kv.block_size:
                slow.append(b)
            else:
                by_slot[info.length].append((b, info))
        for slot, members in by_slot.items():
            rows = index_tensor([b for b, _ in members], self.kv.device)
            blocks = index_tensor([info.block_index for _, info in members], self.kv.device)
            self.kv.k_layers[layer_idx][blocks, :, slot] = key_new[rows]
            self.kv.v_layers[layer_idx][blocks, :, slot] = value_new[rows]
            for _, info in members:
                info.length = slot + 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
