"""lesson: 038
verdict: right
cause: right
shows: cpu
New blocks are begun in the scan, so that only copies are left to `append_token`; heads are a third index of `index_put_`.
"""

import torch

from rosecourse.kv.buffers import index_tensor


def _with_room(kv, layer_idx, ids):
    """The description of the block that takes the next token; a new block if there is none with a free slot."""
    start = 0
    if ids:
        info = kv.info(ids[-1])
        if info.length < kv.block_size:
            return info
        start = info.start + kv.block_size
    ids.append(kv.allocate_block(layer_idx, start))
    return kv.info(ids[-1])


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.heads = torch.arange(model.shape.num_kv_heads, device=kv.device)[None]

    def __call__(self, sessions, keys, values):
        tables = [session.block_ids_per_layer for session in sessions]
        for layer_idx, block_ids_list in enumerate(zip(*tables, strict=True)):
            self.append_token_batch(layer_idx, list(block_ids_list), keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        found = [_with_room(kv, layer_idx, ids) for ids in block_ids_list]
        shared = [b for b, info in enumerate(found) if info.owners > 1]
        alone = {b: info for b, info in enumerate(found) if info.owners == 1}
        if alone:
            numbers = [(b, info.block_index, info.length) for b, info in alone.items()]
            row, block, slot = index_tensor(numbers, kv.device).unbind(1)
            at = block[:, None], self.heads, slot[:, None]  # [n, H] together
            kv.k_layers[layer_idx].index_put_(at, key_new.index_select(0, row))
            kv.v_layers[layer_idx].index_put_(at, value_new.index_select(0, row))
            for info in alone.values():
                info.length += 1
        for b in shared:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
