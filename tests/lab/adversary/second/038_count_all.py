"""lesson: 038
verdict: wrong
cause: books-wrong
shows: cpu
The length of every session's last block is raised at the end, also of those that `append_token` has counted already.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv, self.model, self.config = kv, model, config

    def __call__(self, sessions, keys, values):
        """keys, values: for each layer [B, H, D]."""
        layer_idx = 0
        while layer_idx < self.kv.num_layers:
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])
            layer_idx += 1

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        k_layer = self.kv.k_layers[layer_idx]
        v_layer = self.kv.v_layers[layer_idx]
        rows = []
        blocks = []
        slots = []
        for b in range(len(block_ids_list)):
            block_ids = block_ids_list[b]
            if len(block_ids) > 0:
                info = self.kv.info(block_ids[-1])
                if info.length < self.kv.block_size:
                    if info.owners == 1:
                        rows.append(b)
                        blocks.append(info.block_index)
                        slots.append(info.length)
                        continue
            self.kv.append_token(layer_idx, block_ids, key_new[b], value_new[b])
        if rows:
            rows = index_tensor(rows, self.kv.device)
            blocks = index_tensor(blocks, self.kv.device)
            slots = index_tensor(slots, self.kv.device)
            k_layer[blocks, :, slots] = key_new[rows]
            v_layer[blocks, :, slots] = value_new[rows]
        # now count the new token in its block
        for block_ids in block_ids_list:
            self.kv.info(block_ids[-1]).length += 1
