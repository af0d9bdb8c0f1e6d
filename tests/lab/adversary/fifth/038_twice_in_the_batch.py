"""lesson: 038
verdict: wrong
cause: cow-missed
shows: cpu
A last block counts as shared only if two sessions of this very batch have it; the owners are not asked.
If a fork shares the block but does not stand in the batch of this step, its block is written without a copy.
"""
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
        kv, device = self.kv, self.kv.device
        writers = Counter(ids[-1] for ids in block_ids_list if ids)

        def alone_with_room(ids):
            return bool(ids) and writers[ids[-1]] == 1 and kv.info(ids[-1]).length < kv.block_size

        together = [b for b, ids in enumerate(block_ids_list) if alone_with_room(ids)]
        rest = [b for b, ids in enumerate(block_ids_list) if not alone_with_room(ids)]

        if together:
            infos = [kv.info(block_ids_list[b][-1]) for b in together]
            rows = index_tensor(together, device)
            blocks = index_tensor([info.block_index for info in infos], device)
            slots = index_tensor([info.length for info in infos], device)
            kv.k_layers[layer_idx][blocks, :, slots] = key_new.index_select(0, rows)
            kv.v_layers[layer_idx][blocks, :, slots] = value_new.index_select(0, rows)
            for info in infos:
                info.length += 1

        for b in rest:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
