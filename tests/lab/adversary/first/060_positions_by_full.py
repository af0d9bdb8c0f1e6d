"""lesson: 060
verdict: wrong
cause: goal-missed
shows: cpu
The list of equal positions is gone, but torch.full makes the same tensor of one number B times, and the stores are
told by it. The selection is by torch.arange where the batch is whole.
"""

import torch

from rosecourse.kv.buffers import index_tensor


def rows_of(batch_idx, n, device):
    """Row numbers without a Python list where they are 0, 1, 2, ..."""
    if len(batch_idx) == n:
        return torch.arange(n, device=device)
    return index_tensor(batch_idx, device)


def slots_of(lengths, device):
    if all(length == lengths[0] for length in lengths):
        return torch.full((len(lengths),), lengths[0], dtype=torch.long, device=device)
    return index_tensor(lengths, device)


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            tables = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, tables, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv, fast, slow = self.kv, {}, []
        for b, block_ids in enumerate(block_ids_list):
            info = kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == kv.block_size:
                block_ids.append(kv.allocate_block(layer_idx, info.start + info.length if info else 0))
                info = kv.info(block_ids[-1])
            if info.owners > 1:
                slow.append(b)
            else:
                fast[b] = info
        if fast:
            idx = rows_of(list(fast), len(key_new), kv.device)
            at = slots_of([info.length for info in fast.values()], kv.device)
            blk = index_tensor([info.block_index for info in fast.values()], kv.device)
            kv.k_layers[layer_idx][blk, :, at] = key_new.index_select(0, idx)
            kv.v_layers[layer_idx][blk, :, at] = value_new.index_select(0, idx)
        for info in fast.values():
            info.length += 1
        for b in slow:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
