"""lesson: 060
verdict: right
cause: right
shows: cpu
Rows that stand side by side are a slice, which is no copy: the whole batch is only the longest such slice. Rows with
gaps between them are selected. The position is a number or a tensor, decided in a closure.
"""

from rosecourse.kv.buffers import index_tensor


def rows_of(batch_idx, device):
    """How to take these rows out of a tensor: a function."""
    first, behind = batch_idx[0], batch_idx[-1] + 1
    if behind - first == len(batch_idx):  # they ascend: no gaps
        return lambda new: new[first:behind]
    idx_t = index_tensor(batch_idx, device)
    return lambda new: new.index_select(0, idx_t)


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        tables = [session.block_ids_per_layer for session in sessions]
        for layer_idx in range(self.kv.num_layers):
            lists = [table[layer_idx] for table in tables]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        ready, shared = {}, []
        for b, ids in enumerate(block_ids_list):
            info = self.last_block(layer_idx, ids)
            if info.owners > 1:
                shared.append(b)
            else:
                ready[b] = info
        if ready:
            self.write(layer_idx, list(ready), list(ready.values()), key_new, value_new)
        for info in ready.values():
            info.length += 1
        for b in shared:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def last_block(self, layer_idx, ids):
        start = 0
        if ids:
            info = self.kv.info(ids[-1])
            if info.length < self.kv.block_size:
                return info
            start = info.start + info.length
        ids.append(self.kv.allocate_block(layer_idx, start))
        return self.kv.info(ids[-1])

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        device = self.kv.device
        take = rows_of(batch_idx, device)
        lengths = [info.length for info in infos]
        slot = lengths[0] if lengths == lengths[:1] * len(lengths) else index_tensor(lengths, device)
        blocks = index_tensor([info.block_index for info in infos], device)
        self.kv.k_layers[layer_idx][blocks, :, slot] = take(key_new)
        self.kv.v_layers[layer_idx][blocks, :, slot] = take(value_new)
