"""lesson: 059
verdict: wrong
cause: state-kept
shows: cpu
Counts down, for each row of the batch, the steps to its next rollover, and looks at the block only when the count is at
zero. When another session takes the row, its blocks are full at another time.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.steps_left = [[0] * config.max_batch_size for _ in range(kv.num_layers)]

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def begin_if_full(self, layer_idx, b, block_ids):
        left = self.steps_left[layer_idx]
        if left[b] == 0:
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                block_ids.append(self.kv.allocate_block(layer_idx, info.start + info.length if info else 0))
            left[b] = self.kv.block_size - self.kv.info(block_ids[-1]).length
        left[b] -= 1
        return self.kv.info(block_ids[-1])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        infos = [self.begin_if_full(layer_idx, b, block_ids) for b, block_ids in enumerate(block_ids_list)]
        fast = [b for b, info in enumerate(infos) if info.owners == 1]
        slow = [b for b, info in enumerate(infos) if info.owners > 1]
        if fast:
            numbers = [fast, [infos[b].block_index for b in fast], [infos[b].length for b in fast]]
            idx_t, blk_t, pos_t = index_tensor(numbers, self.kv.device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
        for b in fast:
            infos[b].length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
