"""lesson: 038
verdict: wrong
cause: half-written
shows: cpu
Writes the batch in chunks of eight rows and drops the remainder when the batch is no multiple of eight; the dropped
rows are counted all the same.
"""

import torch

CHUNK = 8


class MyKVAppend:
    """Chunks keep the index tensors the same size, which is friendlier to the allocator."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, slow = [], []
        for b, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if ids else None
            if info is None or info.length == self.kv.block_size or info.owners > 1:
                slow.append(b)
            else:
                fast.append((b, info))
        step = min(CHUNK, len(fast)) or 1
        for first in range(0, len(fast) - step + 1, step):
            chunk = fast[first : first + step]
            idx = torch.tensor([b for b, _ in chunk], device=self.kv.device)
            blk = torch.tensor([i.block_index for _, i in chunk], device=self.kv.device)
            pos = torch.tensor([i.length for _, i in chunk], device=self.kv.device)
            self.kv.k_layers[layer_idx][blk, :, pos] = key_new[idx]
            self.kv.v_layers[layer_idx][blk, :, pos] = value_new[idx]
        for _, info in fast:
            info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
