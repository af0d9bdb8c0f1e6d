# right
import numpy as np

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.bs = kv.block_size

    def __call__(self, sessions, keys, values):
        tables = [s.block_ids_per_layer for s in sessions]
        for layer, (k, v) in enumerate(zip(keys, values)):
            self.append_token_batch(layer, [t[layer] for t in tables], k, v)

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        infos = [kv.info(ids[-1]) if ids else None for ids in block_ids_list]
        table = np.array([(i.block_index, i.length, i.owners) if i else (-1, 0, 0) for i in infos], dtype=np.int64)
        table = table.reshape(-1, 3)
        easy = (table[:, 0] >= 0) & (table[:, 1] < self.bs) & (table[:, 2] == 1)
        rows = np.flatnonzero(easy)
        if rows.size:
            where = index_tensor([rows.tolist(), *table[rows, :2].T.tolist()], kv.device)
            row, block, slot = where.unbind()
            for cache, new in ((kv.k_layers[layer_idx], key_new), (kv.v_layers[layer_idx], value_new)):
                cache.transpose(1, 2)[block, slot] = new[row]
            for r in rows:
                infos[r].length += 1
        for r in np.flatnonzero(~easy):
            kv.append_token(layer_idx, block_ids_list[r], key_new[r], value_new[r])
