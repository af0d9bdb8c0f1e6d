"""lesson: 038
verdict: wrong
cause: wrong-layer
shows: cpu
One store function a layer is made in a loop, and all of them close over the same variable: every layer is stored into the last.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.stores = []
        for k_layer, v_layer in zip(kv.k_layers, kv.v_layers, strict=True):

            def store(blocks, slots, k, v):
                k_layer[blocks, :, slots] = k
                v_layer[blocks, :, slots] = v

            self.stores.append(store)

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        rows, infos = [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.owners > 1 or info.length == self.kv.block_size:
                self.kv.append_token(layer_idx, block_ids, key_new[b], value_new[b])
            else:
                rows.append(b)
                infos.append(info)
        if not rows:
            return
        picked = index_tensor(rows, self.kv.device)
        self.stores[layer_idx](
            index_tensor([info.block_index for info in infos], self.kv.device),
            index_tensor([info.length for info in infos], self.kv.device),
            key_new.index_select(0, picked),
            value_new.index_select(0, picked),
        )
        for info in infos:
            info.length += 1
