"""lesson: 038
verdict: wrong
cause: old-tokens-changed
shows: cpu
Pads the batch to a power of two with rows that point at block 0, slot 0: the first token of whoever has block 0 is overwritten.
"""

from rosecourse.kv.buffers import index_tensor


def padded(numbers, size):
    return numbers + [0] * (size - len(numbers))


class MyKVAppend:
    """The store always has 1, 2, 4, 8, ... rows, so that the allocator sees few different sizes."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast_batch_idx, fast_infos, slow_batch_idx = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size or info.owners > 1:
                slow_batch_idx.append(b)
                continue
            fast_batch_idx.append(b)
            fast_infos.append(info)
        if fast_batch_idx:
            size = 1 << (len(fast_batch_idx) - 1).bit_length()
            idx_t = index_tensor(padded(fast_batch_idx, size), self.kv.device)
            blk_t = index_tensor(padded([info.block_index for info in fast_infos], size), self.kv.device)
            pos_t = index_tensor(padded([info.length for info in fast_infos], size), self.kv.device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for info in fast_infos:
                info.length += 1
        for b in slow_batch_idx:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
