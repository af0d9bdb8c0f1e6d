"""lesson: 038
verdict: right
cause: right
shows: cpu
The manager's public write_tokens does the two stores; one tensor carries rows, blocks and slots.
"""
from functools import partial
from operator import attrgetter

from rosecourse.kv.buffers import index_tensor

_place = attrgetter("block_index", "length")


def _is_simple(kv, ids):
    if not ids:
        return False
    last = kv.info(ids[-1])
    return last.owners < 2 and last.length != kv.block_size


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv, self.is_simple = kv, partial(_is_simple, kv)

    def __call__(self, sessions, keys, values):
        for l in range(self.kv.num_layers):
            self.append_token_batch(l, [s.block_ids_per_layer[l] for s in sessions], keys[l], values[l])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        simple = [self.is_simple(ids) for ids in block_ids_list]
        infos = [kv.info(ids[-1]) for ids, yes in zip(block_ids_list, simple) if yes]
        if all(simple):
            blocks, slots = index_tensor(list(zip(*map(_place, infos))), kv.device)
            kv.write_tokens(layer_idx, blocks, slots, key_new, value_new)
        elif infos:
            rows = [b for b, yes in enumerate(simple) if yes]
            rows, blocks, slots = index_tensor([rows, *zip(*map(_place, infos))], kv.device)
            kv.write_tokens(layer_idx, blocks, slots, key_new[rows], value_new[rows])
        for info in infos:
            info.length += 1
        for b in (b for b, yes in enumerate(simple) if not yes):
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
