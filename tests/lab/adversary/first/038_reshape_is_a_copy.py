"""lesson: 038
verdict: wrong
cause: nothing-written
shows: cpu
Turns a layer to [blocks, slots, heads, dims] and flattens it with `reshape`, which copies: the scatter fills the copy.
"""

import numpy as np
import torch
from torch import Tensor

from rosecourse.lessons.l035_blocks import KVBlockManager


def token_rows(cache: Tensor) -> Tensor:
    """A layer as a list of tokens [num_blocks * block_size, H * D]."""
    n, h, s, d = cache.shape
    return cache.transpose(1, 2).reshape(n * s, h * d)


class MyKVAppend:
    def __init__(self, model, kv: KVBlockManager, config):
        self.kv = kv
        self.bs = kv.block_size

    def __call__(self, sessions, keys, values):
        for l_idx, (k, v) in enumerate(zip(keys, values, strict=True)):
            lists = [s.block_ids_per_layer[l_idx] for s in sessions]
            infos = [self.kv.info(x[-1]) if x else None for x in lists]
            fast = np.array([i is not None and i.length < self.bs and i.owners == 1 for i in infos])
            (sel,) = np.nonzero(fast)
            if len(sel):
                slot_map = torch.as_tensor(
                    np.array([infos[b].block_index * self.bs + infos[b].length for b in sel]), device=self.kv.device
                )
                rows = torch.as_tensor(sel, device=self.kv.device)
                token_rows(self.kv.k_layers[l_idx]).index_copy_(0, slot_map, k[rows].flatten(1))
                token_rows(self.kv.v_layers[l_idx]).index_copy_(0, slot_map, v[rows].flatten(1))
                for b in sel:
                    infos[b].length += 1
            for b in np.nonzero(~fast)[0]:
                self.kv.append_token(l_idx, lists[b], k[b], v[b])
