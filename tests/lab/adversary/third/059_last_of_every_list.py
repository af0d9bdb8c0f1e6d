"""lesson: 059
verdict: wrong
cause: raises
shows: cpu
The scan was rewritten as comprehensions over each list's last block; a session that has no block yet was forgotten, so
an empty list raises IndexError, where it should get its first block.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv, self.info = kv, kv.info

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [s.block_ids_per_layer[layer_idx] for s in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        size = self.kv.block_size
        full = [ids for ids in block_ids_list if self.info(ids[-1]).length == size]
        for ids in full:
            ids.append(self.kv.allocate_block(layer_idx, self.info(ids[-1]).start + size))
        infos = [self.info(ids[-1]) for ids in block_ids_list]
        mine = [b for b, info in enumerate(infos) if info.owners == 1]
        ours = [b for b, info in enumerate(infos) if info.owners > 1]
        if mine:
            self.write(layer_idx, mine, [infos[b] for b in mine], key_new, value_new)
        for b in ours:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        lists = batch_idx, [i.block_index for i in infos], [i.length for i in infos]
        idx_t, blk_t, pos_t = index_tensor(lists, self.kv.device)
        for cache, new in ((self.kv.k_layers, key_new), (self.kv.v_layers, value_new)):
            cache[layer_idx][blk_t, :, pos_t] = new.index_select(0, idx_t)
        for info in infos:
            info.length += 1
