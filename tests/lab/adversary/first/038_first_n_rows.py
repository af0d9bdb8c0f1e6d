"""lesson: 038
verdict: wrong
cause: wrong-session
shows: cpu
Takes the first n rows of the new keys instead of the rows of the n simple sessions: in a mixed batch they shift.
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
        fast, slow = [], []
        for b, block_ids in enumerate(block_ids_list):
            if block_ids:
                info = self.kv.info(block_ids[-1])
                if info.length != self.kv.block_size and info.owners == 1:
                    fast.append(info)
                    continue
            slow.append(b)
        n = len(fast)
        if n > 0:
            blk = index_tensor([f.block_index for f in fast], self.kv.device)
            pos = index_tensor([f.length for f in fast], self.kv.device)
            self.kv.k_layers[layer_idx][blk, :, pos] = key_new[:n]
            self.kv.v_layers[layer_idx][blk, :, pos] = value_new[:n]
            for f in fast:
                f.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
