"""lesson: 038
verdict: right
cause: right
shows: both
Writes all layers with one `index_put_` for K and one for V. The layers are views of one pool, so `as_strided` gives the
pool back.
"""

import torch

from rosecourse.kv.buffers import index_tensor


def pool_of(layers):
    """The tensor [L, N, H, S, D] that these layers are slices of."""
    first = layers[0]
    step = layers[1].storage_offset() - first.storage_offset() if len(layers) > 1 else first.numel()
    assert all(layer.storage_offset() == first.storage_offset() + n * step for n, layer in enumerate(layers))
    return first.as_strided((len(layers), *first.shape), (step, *first.stride()))


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.k_tokens = pool_of(kv.k_layers).transpose(2, 3)  # [L, N, S, H, D]
        self.v_tokens = pool_of(kv.v_layers).transpose(2, 3)

    def __call__(self, sessions, keys, values):
        kv = self.kv
        into, slow = [], []
        for layer in range(kv.num_layers):
            for b, session in enumerate(sessions):
                ids = session.block_ids_per_layer[layer]
                info = kv.info(ids[-1]) if ids else None
                if info is None or info.length == kv.block_size or info.owners > 1:
                    slow.append((layer, b, ids))
                else:
                    into.append((layer, b, info.block_index, info.length))
                    info.length += 1
        if into:
            layers, rows, blocks, slots = index_tensor(into, kv.device).unbind(1)
            where = (layers, blocks, slots)
            self.k_tokens.index_put_(where, torch.stack(keys)[layers, rows])
            self.v_tokens.index_put_(where, torch.stack(values)[layers, rows])
        for layer, b, ids in slow:
            kv.append_token(layer, ids, keys[layer][b], values[layer][b])
