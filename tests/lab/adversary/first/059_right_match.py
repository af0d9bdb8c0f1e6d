"""lesson: 059
verdict: right
cause: right
shows: both
Functional: a generator of (row, info) with a `match` on the last block; rollovers are yielded with the others, and
copies are left to `append_token` afterwards. `index_put_` on views [N, S, H, D].
"""

from __future__ import annotations

from operator import itemgetter

import torch

from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager


def writable(kv: KVBlockManager, layer: int, ids: list[int]) -> KVBlockInfo | None:
    """The block for a list's next token, begun if need be; None if it must be copied first."""
    match [kv.info(block_id) for block_id in ids[-1:]]:
        case []:
            start = 0
        case [KVBlockInfo(start=begin, length=length)] if length == kv.block_size:
            start = begin + length
        case [KVBlockInfo(owners=1) as info]:
            return info
        case _:
            return None
    ids.append(kv.allocate_block(layer, start))
    return kv.info(ids[-1])


class MyKVAppend:
    def __init__(self, model, kv: KVBlockManager, config) -> None:
        self.kv = kv

    def __call__(self, sessions, keys, values) -> None:
        for layer in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer] for session in sessions]
            found = [(b, writable(self.kv, layer, ids)) for b, ids in enumerate(lists)]
            batch = [(b, info) for b, info in found if info is not None]
            if batch:
                at = torch.tensor([(b, info.block_index, info.length) for b, info in batch]).to(self.kv.device)
                rows, *where = at.T
                self.kv.k_layers[layer].transpose(1, 2).index_put_(where, keys[layer][rows])
                self.kv.v_layers[layer].transpose(1, 2).index_put_(where, values[layer][rows])
            for info in map(itemgetter(1), batch):
                info.length += 1
            for b in (b for b, info in found if info is None):
                self.kv.append_token(layer, lists[b], keys[layer][b], values[layer][b])
