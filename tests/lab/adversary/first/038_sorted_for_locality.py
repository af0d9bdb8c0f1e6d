"""lesson: 038
verdict: wrong
cause: wrong-session
shows: cpu
Sorts the targets by block "for coalesced writes", and leaves the rows of the new keys in the order of the batch.
"""

from __future__ import annotations

from operator import attrgetter

import torch


class MyKVAppend:
    def __init__(self, model, kv, config) -> None:
        self.kv = kv
        self.full = kv.block_size

    def __call__(self, sessions, keys, values) -> None:
        for layer_idx in range(self.kv.num_layers):
            tables = [s.block_ids_per_layer[layer_idx] for s in sessions]
            self.one_layer(layer_idx, tables, keys[layer_idx], values[layer_idx])

    def one_layer(self, layer_idx: int, tables: list[list[int]], k: torch.Tensor, v: torch.Tensor) -> None:
        last = {b: self.kv.info(t[-1]) for b, t in enumerate(tables) if t}
        fast = {b: i for b, i in last.items() if i.length < self.full and i.owners < 2}
        targets = sorted(fast.values(), key=attrgetter("block_index"))
        if targets:
            where = torch.tensor([(i.block_index, i.length) for i in targets], device=self.kv.device)
            rows = torch.tensor(list(fast), device=self.kv.device)
            blk, pos = where.unbind(1)
            self.kv.k_layers[layer_idx][blk, :, pos] = k[rows]
            self.kv.v_layers[layer_idx][blk, :, pos] = v[rows]
            for i in targets:
                i.length += 1
        for b, table in enumerate(tables):
            if b not in fast:
                self.kv.append_token(layer_idx, table, k[b], v[b])
