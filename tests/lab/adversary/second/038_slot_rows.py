"""lesson: 038
verdict: right
cause: right
shows: cpu
A layer is one long list of rows, and one `index_copy_` for K and one for V fills those of all simple sessions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from rosecourse.kv.buffers import index_tensor


class Simple(NamedTuple):
    row: int
    info: object


class Rows:
    """A layer's cache [num_blocks, H, block_size, D] as rows [num_blocks * H * block_size, D]."""

    def __init__(self, cache: torch.Tensor) -> None:
        _, self.heads, self.slots, self.dim = cache.shape
        self.rows = cache.view(-1, self.dim)

    def put(self, head0: torch.Tensor, new: torch.Tensor) -> None:
        every = head0[:, None] + torch.arange(self.heads, device=head0.device) * self.slots
        self.rows.index_copy_(0, every.flatten(), new.reshape(-1, self.dim))

    def head0(self, info) -> int:
        return info.block_index * self.heads * self.slots + info.length


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.layers = [(Rows(k), Rows(v)) for k, v in zip(kv.k_layers, kv.v_layers, strict=True)]

    def __call__(self, sessions, keys, values):
        for layer_idx, (k, v) in enumerate(zip(keys, values, strict=True)):
            self.append_token_batch(layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], k, v)

    def simple(self, block_ids_list):
        for row, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if ids else None
            if info is not None and info.owners == 1 and info.length < self.kv.block_size:
                yield Simple(row, info)

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        simple = list(self.simple(block_ids_list))
        rest = set(range(len(block_ids_list))).difference(one.row for one in simple)
        if simple:
            k_rows, v_rows = self.layers[layer_idx]
            row_t, head0_t = index_tensor(
                [[one.row for one in simple], [k_rows.head0(one.info) for one in simple]], self.kv.device
            )
            k_rows.put(head0_t, key_new[row_t])
            v_rows.put(head0_t, value_new[row_t])
            for one in simple:
                one.info.length += 1
        for row in sorted(rest):
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])
