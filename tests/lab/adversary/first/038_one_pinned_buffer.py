"""lesson: 038
verdict: wrong
cause: buffer-reused
shows: disclosed
All layers and steps use one pinned buffer for their indices, copied without waiting: on CUDA the host writes the next
layer's numbers while the copy for this layer may still be queued. On a CPU nothing is copied asynchronously.
"""

import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        cuda = kv.device.type == "cuda"
        self.pinned = torch.empty(config.max_batch_size, 3, dtype=torch.int64, pin_memory=cuda)
        self.numbers = self.pinned.numpy()

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        written, slow = [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size or info.owners > 1:
                slow.append(b)
                continue
            self.numbers[len(written)] = b, info.block_index, info.length
            written.append(info)
        if written:
            idx_t, blk_t, pos_t = self.pinned[: len(written)].to(self.kv.device, non_blocking=True).unbind(1)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
        for info in written:
            info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
