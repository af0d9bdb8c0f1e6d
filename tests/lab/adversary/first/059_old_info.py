"""lesson: 059
verdict: wrong
cause: wrong-block
shows: cpu
Allocates the new block and goes on with the `info` of the old one: slot 0 of the full block is overwritten, and the new
block only gets its count.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        rows, blocks, slots, counted, slow = [], [], [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = kv.info(block_ids[-1]) if block_ids else None
            position = info.start + info.length if info else 0
            if info is None or info.length == kv.block_size:
                block_ids.append(kv.allocate_block(layer_idx, position))
                info = info or kv.info(block_ids[-1])
            elif info.owners > 1:
                slow.append(b)
                continue
            rows.append(b)
            blocks.append(info.block_index)
            slots.append(position % kv.block_size)
            counted.append(kv.info(block_ids[-1]))
        if rows:
            idx_t, blk_t, pos_t = index_tensor([rows, blocks, slots], kv.device)
            kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for info in counted:
                info.length += 1
        for b in slow:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
