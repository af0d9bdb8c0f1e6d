"""lesson: 038
verdict: wrong
cause: state-kept
shows: cpu
Keeps the gathered rows of K and V by (layer, selected rows) "because index_select is expensive": while the same
rows are selected, the first step's K and V are written again and again.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.sources = {}

    def source(self, layer, rows, key_new, value_new):
        name = (layer, tuple(rows))
        if name not in self.sources:
            if len(self.sources) > 256:
                self.sources.clear()
            idx = index_tensor(rows, self.kv.device)
            self.sources[name] = key_new.index_select(0, idx), value_new.index_select(0, idx)
        return self.sources[name]

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        rows, infos, slow = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size or info.owners > 1:
                slow.append(b)
                continue
            rows.append(b)
            infos.append(info)
        if rows:
            k, v = self.source(layer_idx, rows, key_new, value_new)
            blk_t, pos_t = index_tensor([[i.block_index for i in infos], [i.length for i in infos]], self.kv.device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = k
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = v
        for i in infos:
            i.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
