"""lesson: 059
verdict: wrong
cause: old-tokens-changed
shows: cpu
A session that begins a block is to get a clean one, but the block that is set to zero is the full one (info still describes it), not the new one.
All tokens of the full block are lost, for all of its owners.
"""
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """Rolls over in the scan. A block that begins is cleared first."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            self.append_token_batch(
                layer, [s.block_ids_per_layer[layer] for s in sessions], keys[layer], values[layer]
            )

    def begin_block(self, layer, block_ids):
        info = self.kv.info(block_ids[-1]) if block_ids else None
        if info is None:
            block_ids.append(self.kv.allocate_block(layer, 0))
        elif info.length == self.kv.block_size:
            block_ids.append(self.kv.allocate_block(layer, info.start + info.length))
            # nothing of an earlier session may be left behind the first token
            self.kv.k_layers[layer][info.block_index].zero_()
            self.kv.v_layers[layer][info.block_index].zero_()
        return self.kv.info(block_ids[-1])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        last = [self.begin_block(layer_idx, block_ids) for block_ids in block_ids_list]
        private = [b for b, info in enumerate(last) if info.owners == 1]
        shared = [b for b, info in enumerate(last) if info.owners != 1]
        if private:
            rows = index_tensor(private, self.kv.device)
            where = (
                index_tensor([last[b].block_index for b in private], self.kv.device),
                slice(None),
                index_tensor([last[b].length for b in private], self.kv.device),
            )
            self.kv.k_layers[layer_idx][where] = key_new.index_select(0, rows)
            self.kv.v_layers[layer_idx][where] = value_new.index_select(0, rows)
            for b in private:
                last[b].length += 1
        for b in shared:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
