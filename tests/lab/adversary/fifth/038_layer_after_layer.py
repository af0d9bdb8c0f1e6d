"""lesson: 038
verdict: wrong
cause: inputs-changed
shows: cpu
The call takes the layers' K and V off the two lists that it is given, with pop(0), so that they can be given back to memory early.
The cache is right, but the caller's lists keys and values are empty afterwards.
"""
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        layer_idx = 0
        while keys:
            # a layer's rows are not needed any more once they are in the cache
            key_new, value_new = keys.pop(0), values.pop(0)
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, key_new, value_new)
            layer_idx += 1

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        simple = []
        special = []
        b = 0
        while b < len(block_ids_list):
            block_ids = block_ids_list[b]
            if not block_ids:
                special.append(b)
            else:
                info = self.kv.info(block_ids[-1])
                if info.length == self.kv.block_size or info.owners > 1:
                    special.append(b)
                else:
                    simple.append((b, info))
            b += 1

        if simple:
            which = index_tensor([b for b, _ in simple], self.kv.device)
            block = index_tensor([info.block_index for _, info in simple], self.kv.device)
            slot = index_tensor([info.length for _, info in simple], self.kv.device)
            self.kv.k_layers[layer_idx][block, :, slot] = key_new.index_select(0, which)
            self.kv.v_layers[layer_idx][block, :, slot] = value_new.index_select(0, which)
            for _, info in simple:
                info.length = info.length + 1

        for b in special:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
