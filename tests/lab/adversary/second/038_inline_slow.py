"""lesson: 038
verdict: right
cause: right
shows: cpu
Special sessions are appended in the scan itself, so that the last owner of a shared block still joins the batch.
"""

from functools import partial

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.full = kv.block_size
        self.ints = partial(index_tensor, device=kv.device)

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            tables = [s.block_ids_per_layer[layer_idx] for s in sessions]
            self.append_token_batch(layer_idx, tables, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        todo = []
        for b, ids in enumerate(block_ids_list):
            last = ids and self.kv.info(ids[-1])
            if last and last.length < self.full and last.owners == 1:
                todo.append((b, last))
            else:
                self.kv.append_token(layer_idx, ids, key_new[b], value_new[b])
        if not todo:
            return
        picked, blocks, slots = self.ints([[b, i.block_index, i.length] for b, i in todo]).T
        # heads last but one: [num_blocks, block_size, H, D], a view
        by_slot = [cache[layer_idx].permute(0, 2, 1, 3) for cache in (self.kv.k_layers, self.kv.v_layers)]
        by_slot[0][blocks, slots] = key_new[picked]
        by_slot[1][blocks, slots] = value_new[picked]
        for _, info in todo:
            info.length += 1
