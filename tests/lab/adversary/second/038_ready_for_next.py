"""lesson: 038
verdict: wrong
cause: rollover-missed
shows: cpu
Begins the next block as soon as one has become full, a step too early: it may never be needed, and the pool may have none.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """So that no step finds a full block, a block that has just been filled is followed by a fresh one at once."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.size = kv.block_size

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, slow = self.split(block_ids_list)
        if fast:
            idx_t, blk_t, pos_t = index_tensor([list(column) for column in zip(*fast)], self.kv.device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for b, _, _ in fast:
                self.kv.info(block_ids_list[b][-1]).length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
        for block_ids in block_ids_list:
            info = self.kv.info(block_ids[-1])
            if info.length == self.size:  # full now: prepare the next step
                block_ids.append(self.kv.allocate_block(layer_idx, info.start + self.size))

    def split(self, block_ids_list):
        """(row, block, slot) of the simple ones, and the rows of the others."""
        fast, slow = [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.size or info.owners > 1:
                slow.append(b)
            else:
                fast.append((b, info.block_index, info.length))
        return fast, slow
