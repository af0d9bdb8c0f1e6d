"""lesson: 059
verdict: wrong
cause: books-wrong
shows: cpu
The start of a new block is worked out from the length of the list after the new block is in it: every block that is
begun says that it starts one block later than it does. Nothing that computes tokens reads it.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx, (key_new, value_new) in enumerate(zip(keys, values)):
            self.append_token_batch(
                layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], key_new, value_new
            )

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        alone, shared = {}, []
        for b, block_ids in enumerate(block_ids_list):
            if not block_ids or kv.info(block_ids[-1]).length >= kv.block_size:
                block_ids.append(kv.allocate_block(layer_idx))
                # all blocks before this one are full
                kv.info(block_ids[-1]).start = len(block_ids) * kv.block_size
            info = kv.info(block_ids[-1])
            if info.owners == 1:
                alone[b] = info
            else:
                shared.append(b)
        if alone:
            rows = index_tensor(list(alone), kv.device)
            where = (
                index_tensor([info.block_index for info in alone.values()], kv.device),
                slice(None),
                index_tensor([info.length for info in alone.values()], kv.device),
            )
            kv.k_layers[layer_idx][where] = key_new[rows]
            kv.v_layers[layer_idx][where] = value_new[rows]
            for info in alone.values():
                info.length += 1
        for b in shared:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
