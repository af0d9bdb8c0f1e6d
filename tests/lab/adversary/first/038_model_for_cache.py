"""lesson: 038
verdict: wrong
cause: interface
shows: cpu
The constructor takes `(kv, model, config)`: the engine passes the model first, and the part keeps it as its cache.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, kv, model, config):
        self.kv = kv
        self.block_size = config.block_size

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, infos, slow = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.block_size or info.owners > 1:
                slow.append(b)
            else:
                fast.append(b)
                infos.append(info)
        if fast:
            idx_t = index_tensor(fast, self.kv.device)
            blk_t = index_tensor([info.block_index for info in infos], self.kv.device)
            pos_t = index_tensor([info.length for info in infos], self.kv.device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for info in infos:
                info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
