"""lesson: 059
verdict: wrong
cause: goal-missed
shows: cpu
Begins the block in the scan, and then still leaves the session to `append_token`, because a new block "is a special
case". At a boundary of equal sessions the whole batch goes one by one.
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
        fast_batch_idx, fast_infos, slow_batch_idx = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            end = 0
            if block_ids:
                info = self.kv.info(block_ids[-1])
                end = info.start + info.length
            if end % self.kv.block_size == 0:
                block_ids.append(self.kv.allocate_block(layer_idx, end))
                info = self.kv.info(block_ids[-1])
            if info.length == 0 or info.owners > 1:
                slow_batch_idx.append(b)
            else:
                fast_batch_idx.append(b)
                fast_infos.append(info)
        if fast_batch_idx:
            self.write(layer_idx, fast_batch_idx, fast_infos, key_new, value_new)
        for b in slow_batch_idx:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        idx_t = index_tensor(batch_idx, self.kv.device)
        blk_t = index_tensor([info.block_index for info in infos], self.kv.device)
        pos_t = index_tensor([info.length for info in infos], self.kv.device)
        self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
        self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
        for info in infos:
            info.length += 1
