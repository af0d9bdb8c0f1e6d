"""lesson: 059
verdict: wrong
cause: books-wrong
shows: cpu
`start` of a new block is given as the number of blocks before it, where the position of its first token is meant.
"""

from torch import Tensor

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx, (k, v) in enumerate(zip(keys, values, strict=True)):
            self.append_token_batch(layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], k, v)

    def append_token_batch(self, layer_idx, block_ids_list, key_new: Tensor, value_new: Tensor):
        kv, fast, slow = self.kv, {}, []
        for b, block_ids in enumerate(block_ids_list):
            if not block_ids or kv.info(block_ids[-1]).length == kv.block_size:
                block_ids.append(kv.allocate_block(layer_idx, start=len(block_ids)))
            info = kv.info(block_ids[-1])
            if info.owners == 1:
                fast[b] = info
            else:
                slow.append(b)
        if fast:
            self.write(layer_idx, list(fast), list(fast.values()), key_new, value_new)
        for info in fast.values():
            info.length += 1
        for b in slow:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        idx, blk, pos = index_tensor(
            [batch_idx, [i.block_index for i in infos], [i.length for i in infos]], self.kv.device
        ).unbind()
        for cache, new in ((self.kv.k_layers[layer_idx], key_new), (self.kv.v_layers[layer_idx], value_new)):
            cache[blk, :, pos] = new[idx]
