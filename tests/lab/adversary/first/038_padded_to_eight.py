"""lesson: 038
verdict: wrong
cause: old-tokens-changed
shows: cpu
Pads the batch to a multiple of eight for "stable shapes". The padding writes row 0 to block 0, slot 0, where a
session's first token lies.
"""

import torch
import torch.nn.functional as F

from rosecourse.lessons.l035_blocks import KVBlockManager


def pad(numbers: list[int], device) -> torch.Tensor:
    t = torch.tensor(numbers, device=device)
    return F.pad(t, (0, -len(numbers) % 8))


class MyKVAppend:
    def __init__(self, model, kv: KVBlockManager, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, lists, key_new, value_new):
        kv, rows, infos, slow = self.kv, [], [], []
        for b, ids in enumerate(lists):
            info = kv.info(ids[-1]) if ids else None
            if info is None or info.length == kv.block_size or info.owners > 1:
                slow.append(b)
            else:
                rows.append(b)
                infos.append(info)
        if rows:
            idx = pad(rows, kv.device)
            blk = pad([i.block_index for i in infos], kv.device)
            pos = pad([i.length for i in infos], kv.device)
            kv.k_layers[layer_idx][blk, :, pos] = key_new[idx]
            kv.v_layers[layer_idx][blk, :, pos] = value_new[idx]
            for i in infos:
                i.length += 1
        for b in slow:
            kv.append_token(layer_idx, lists[b], key_new[b], value_new[b])
