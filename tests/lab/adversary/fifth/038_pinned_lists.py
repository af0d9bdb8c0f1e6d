"""lesson: 038
verdict: wrong
cause: buffer-reused
shows: gpu
All index lists go through one pinned buffer, one after the other, in copies that nobody waits for (non_blocking, no event).
While the device is still busy with the forward, the host writes the next list, and the next layer's, over one that has not been read. On a CPU the copy is done at once.
"""
import numpy as np
import torch


class MyKVAppend:
    """Index tensors without a new allocation of pinned memory for each of them."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.pinned = torch.zeros(
            config.max_batch_size, dtype=torch.int64, pin_memory=kv.device.type == "cuda"
        )
        self.numbers = self.pinned.numpy()  # the same memory, quick to write

    def upload(self, numbers):
        n = len(numbers)
        self.numbers[:n] = np.fromiter(numbers, dtype=np.int64, count=n)
        on_device = torch.empty(n, dtype=torch.int64, device=self.kv.device)
        on_device.copy_(self.pinned[:n], non_blocking=True)
        return on_device

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        rows, infos, slow = [], [], []
        for b, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if ids else None
            if info and info.length < self.kv.block_size and info.owners == 1:
                rows.append(b)
                infos.append(info)
            else:
                slow.append(b)
        if rows:
            idx_t = self.upload(rows)
            blk_t = self.upload([info.block_index for info in infos])
            pos_t = self.upload([info.length for info in infos])
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for info in infos:
                info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
