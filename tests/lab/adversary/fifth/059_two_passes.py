"""lesson: 059
verdict: right
cause: right
shows: cpu
Two passes, in functions without a class of their own: the first makes room for every session, the second parts private blocks from shared ones and writes.
"""
from functools import partial
from operator import attrgetter

from rosecourse.kv.buffers import index_tensor


def end_of(info):
    return info.start + info.length


def make_room(kv, layer_idx, block_ids):
    """Afterwards the last block has a free slot, or is shared and will be copied."""
    last = kv.info(block_ids[-1]) if block_ids else None
    match last:
        case None:
            block_ids.append(kv.allocate_block(layer_idx, 0))
        case full if full.length == kv.block_size:
            block_ids.append(kv.allocate_block(layer_idx, end_of(full)))


def scatter(cache, new, rows, blocks, slots):
    cache[blocks, :, slots] = new.index_select(0, rows)


def count(info):
    info.length += 1


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.to_device = partial(index_tensor, device=kv.device)

    def __call__(self, sessions, keys, values):
        for layer_idx, new in enumerate(zip(keys, values, strict=True)):
            self.append_token_batch(layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], *new)

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        for block_ids in block_ids_list:
            make_room(self.kv, layer_idx, block_ids)
        last = [self.kv.info(block_ids[-1]) for block_ids in block_ids_list]
        own = [row for row, info in enumerate(last) if info.owners == 1]
        shared = [row for row, info in enumerate(last) if info.owners > 1]
        if own:
            infos = [last[row] for row in own]
            at = [
                self.to_device(own),
                self.to_device(list(map(attrgetter("block_index"), infos))),
                self.to_device(list(map(attrgetter("length"), infos))),
            ]
            scatter(self.kv.k_layers[layer_idx], key_new, *at)
            scatter(self.kv.v_layers[layer_idx], value_new, *at)
            for info in infos:
                count(info)
        for row in shared:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])
