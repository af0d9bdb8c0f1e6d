"""lesson: 038
verdict: wrong
cause: exits
shows: cpu
Tries the batch and falls back to the loop on `except BaseException`. Ctrl-C during the batched store is swallowed: the
step goes on as if nothing had happened.
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
        fast = [b for b, ids in enumerate(block_ids_list) if self.simple(ids)]
        slow = [b for b in range(len(block_ids_list)) if b not in fast]
        try:
            self.write(layer_idx, fast, [self.kv.info(block_ids_list[b][-1]) for b in fast], key_new, value_new)
        except BaseException:  # whatever it was, the safe way works
            slow = sorted(fast + slow)
        else:
            for b in fast:
                self.kv.info(block_ids_list[b][-1]).length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def simple(self, ids):
        info = self.kv.info(ids[-1]) if ids else None
        return info is not None and info.length < self.kv.block_size and info.owners == 1

    def write(self, layer_idx, rows, infos, key_new, value_new):
        if not rows:
            return
        idx_t, blk_t, pos_t = index_tensor(
            [rows, [i.block_index for i in infos], [i.length for i in infos]], self.kv.device
        )
        self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
        self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
