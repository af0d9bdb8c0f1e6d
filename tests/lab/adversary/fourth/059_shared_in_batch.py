"""lesson: 059
verdict: wrong
cause: cow-missed
shows: cpu
Takes a last block for shared if two sessions of the batch have it. When only one of its owners takes part in the step,
it writes into the block that the others, which wait, go on reading.
"""

from collections import Counter

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx, (key_new, value_new) in enumerate(zip(keys, values)):
            tables = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, tables, key_new, value_new)

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        for ids in block_ids_list:
            self.roll_over(layer_idx, ids)
        # a block can only be spoilt by two that write into it
        writers = Counter(ids[-1] for ids in block_ids_list)
        together = [b for b, ids in enumerate(block_ids_list) if writers[ids[-1]] == 1]
        if together:
            infos = [self.kv.info(block_ids_list[b][-1]) for b in together]
            rows, blocks, slots = index_tensor(
                [together, [info.block_index for info in infos], [info.length for info in infos]], self.kv.device
            )
            self.kv.k_layers[layer_idx][blocks, :, slots] = key_new[rows]
            self.kv.v_layers[layer_idx][blocks, :, slots] = value_new[rows]
            for info in infos:
                info.length += 1
        for b, ids in enumerate(block_ids_list):
            if b not in together:
                self.kv.append_token(layer_idx, ids, key_new[b], value_new[b])

    def roll_over(self, layer_idx, ids):
        if not ids:
            ids.append(self.kv.allocate_block(layer_idx))
            return
        last = self.kv.info(ids[-1])
        if last.length == self.kv.block_size:
            ids.append(self.kv.allocate_block(layer_idx, last.start + last.length))
