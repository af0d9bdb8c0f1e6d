"""lesson: 038
verdict: wrong
cause: inputs-changed
shows: cpu
Pops each layer's K and V off the caller's lists to let the memory go early: after the call both lists are empty.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        layer_idx = 0
        while keys:
            k, v = keys.pop(0), values.pop(0)  # not needed any more once they are in the cache
            self.append_token_batch(layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], k, v)
            layer_idx += 1

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, infos, slow = [], [], []
        for b, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if ids else None
            if info is None or info.length == self.kv.block_size or info.owners > 1:
                slow.append(b)
            else:
                fast.append(b)
                infos.append(info)
        if fast:
            rows = index_tensor(fast, self.kv.device)
            where = (
                index_tensor([i.block_index for i in infos], self.kv.device),
                slice(None),
                index_tensor([i.length for i in infos], self.kv.device),
            )
            self.kv.k_layers[layer_idx][where] = key_new.index_select(0, rows)
            self.kv.v_layers[layer_idx][where] = value_new.index_select(0, rows)
        for i in infos:
            i.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
