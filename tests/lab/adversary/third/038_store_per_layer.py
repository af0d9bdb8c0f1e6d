"""lesson: 038
verdict: wrong
cause: wrong-layer
shows: cpu
The functions that store are made in a loop and look up k and v when they are called: all of them write the last layer.
"""
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.stores = []
        for k, v in zip(kv.k_layers, kv.v_layers):

            def store(blk, pos, key, value):
                k[blk, :, pos] = key
                v[blk, :, pos] = value

            self.stores.append(store)

    def __call__(self, sessions, keys, values):
        for layer_idx, store in enumerate(self.stores):
            self._layer(layer_idx, store, [s.block_ids_per_layer[layer_idx] for s in sessions], keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        self._layer(layer_idx, self.stores[layer_idx], block_ids_list, key_new, value_new)

    def _simple(self, ids):
        if not ids:
            return None
        info = self.kv.info(ids[-1])
        return info if info.length < self.kv.block_size and info.owners == 1 else None

    def _layer(self, layer_idx, store, lists, key_new, value_new):
        infos = [self._simple(ids) for ids in lists]
        fast = [b for b, info in enumerate(infos) if info]
        if fast:
            triples = [(b, infos[b].block_index, infos[b].length) for b in fast]
            idx, blk, pos = index_tensor(triples, self.kv.device).T
            store(blk, pos, key_new[idx], value_new[idx])
            for b in fast:
                infos[b].length += 1
        for b, info in enumerate(infos):
            if info is None:
                self.kv.append_token(layer_idx, lists[b], key_new[b], value_new[b])
