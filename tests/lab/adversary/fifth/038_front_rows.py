"""lesson: 038
verdict: wrong
cause: wrong-session
shows: cpu
The store takes the first n rows of K and V, where n is the number of simple sessions, and not the rows of those sessions.
As soon as a session that is not simple stands before a simple one in the batch, the simple ones get their neighbours' K and V.
"""
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.device = kv.device

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            lists = [s.block_ids_per_layer[layer] for s in sessions]
            self.append_token_batch(layer, lists, keys[layer], values[layer])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, slow = [], []
        for b, ids in enumerate(block_ids_list):
            if len(ids) == 0:
                slow.append(b)
                continue
            info = self.kv.info(ids[-1])
            if info.length < self.kv.block_size and info.owners == 1:
                fast.append(info)
            else:
                slow.append(b)

        n = len(fast)
        if n > 0:
            blk = index_tensor([i.block_index for i in fast], self.device)
            pos = index_tensor([i.length for i in fast], self.device)
            self.kv.k_layers[layer_idx][blk, :, pos] = key_new[:n]
            self.kv.v_layers[layer_idx][blk, :, pos] = value_new[:n]
            for i in fast:
                i.length += 1

        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
