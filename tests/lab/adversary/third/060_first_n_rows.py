"""lesson: 060
verdict: wrong
cause: wrong-session
shows: cpu
"The batch is in order", so the selection is replaced by the slice `key_new[:n]`: where a session before the last one
takes the slow path, those behind it get the K and V of the session before them.
"""

from itertools import pairwise

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, slow = [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                block_ids.append(self.kv.allocate_block(layer_idx, info.start + info.length if info else 0))
                info = self.kv.info(block_ids[-1])
            (slow if info.owners > 1 else fast).append((b, info))
        if fast:
            self.write(layer_idx, [info for _, info in fast], key_new, value_new)
            for _, info in fast:
                info.length += 1
        for b, _ in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, infos, key_new, value_new):
        n = len(infos)
        blocks = index_tensor([info.block_index for info in infos], self.kv.device)
        positions = [info.length for info in infos]
        level = all(a == b for a, b in pairwise(positions))
        where = blocks, slice(None), positions[0] if level else index_tensor(positions, self.kv.device)
        # batch_idx ascends, so there is nothing to select: a slice is a view and copies nothing
        self.kv.k_layers[layer_idx][where] = key_new[:n]
        self.kv.v_layers[layer_idx][where] = value_new[:n]
