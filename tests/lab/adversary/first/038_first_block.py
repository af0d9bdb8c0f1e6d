"""lesson: 038
verdict: wrong
cause: wrong-block
shows: cpu
Looks at the last block to decide, and writes to the first one of the list: right until a session has two blocks.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv

        def simple(ids):
            return bool(ids) and kv.info(ids[-1]).length < kv.block_size and kv.info(ids[-1]).owners == 1

        fast = [b for b, ids in enumerate(block_ids_list) if simple(ids)]
        slow = [b for b, ids in enumerate(block_ids_list) if not simple(ids)]
        if fast:
            lists = [block_ids_list[b] for b in fast]
            idx_t = index_tensor(fast, kv.device)
            blk_t = index_tensor([kv.block_index(ids[0]) for ids in lists], kv.device)
            pos_t = index_tensor([kv.info(ids[-1]).length for ids in lists], kv.device)
            kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for ids in lists:
                kv.info(ids[-1]).length += 1
        for b in slow:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
