"""lesson: 060
verdict: right
cause: right
shows: cpu
Right: one strided view over the pools of all layers, in which a block's global id is its index; the layers are
slices of one allocation.
"""

from itertools import pairwise

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.k_pool, self.v_pool = self.pool(kv.k_layers), self.pool(kv.v_layers)

    @staticmethod
    def pool(layers):
        """All layers as one tensor [L * num_blocks, H, block_size, D]; a block's global id is its place there."""
        first = layers[0]
        size = (len(layers) * first.shape[0], *first.shape[1:])
        for one, two in pairwise(layers):
            assert two.data_ptr() - one.data_ptr() == first.numel() * first.element_size()
        return first.as_strided(size, first.stride())

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            ids = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, ids, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        for ids in block_ids_list:
            if not ids or kv.info(ids[-1]).length == kv.block_size:
                ids.append(kv.allocate_block(layer_idx, kv.block_size * len(ids)))
        last = [ids[-1] for ids in block_ids_list]
        shared = [b for b, block_id in enumerate(last) if kv.info(block_id).owners > 1]
        rows = [b for b in range(len(last)) if b not in shared]
        if rows:
            targets = index_tensor([last[b] for b in rows], kv.device)
            lengths = [kv.info(last[b]).length for b in rows]
            slot = lengths[0] if max(lengths) == min(lengths) else index_tensor(lengths, kv.device)
            chosen = index_tensor(rows, kv.device) if shared else None
            for pool, new in ((self.k_pool, key_new), (self.v_pool, value_new)):
                pool[targets, :, slot] = new if chosen is None else new.index_select(0, chosen)
            for b in rows:
                kv.info(last[b]).length += 1
        for b in shared:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
