# wrong, which a CPU can show
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            tables = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, tables, keys[layer_idx], values[layer_idx])

    def next_block(self, layer_idx, ids):
        end = 0
        if ids:
            last = self.kv.info(ids[-1])
            end = last.start + last.length
        ids.append(self.kv.allocate_block(layer_idx, end))

    def is_full(self, ids):
        return not ids or self.kv.info(ids[-1]).length == self.kv.block_size

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, slow = ([], [])
        for b, ids in enumerate(block_ids_list):
            if self.is_full(ids):
                self.next_block(layer_idx, ids)
            (slow if self.kv.info(ids[-1]).owners > 1 else fast).append(b)
        if fast:
            infos = [self.kv.info(block_ids_list[b][-1]) for b in fast]
            idx_t = index_tensor(fast, self.kv.device)
            blk_t = index_tensor([info.block_index for info in infos], self.kv.device)
            pos_t = index_tensor([info.length for info in infos], self.kv.device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for info in infos:
                info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
        for ids in block_ids_list:
            if self.is_full(ids):
                self.next_block(layer_idx, ids)
