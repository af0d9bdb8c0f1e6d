"""lesson: 059
verdict: right
cause: right
shows: cpu
A generator yields a seat for every row that may be written together and puts the others on a waiting list on the way; a single upload of three columns, one store each for K and V.
"""
from typing import NamedTuple

import torch

from rosecourse.kv.buffers import index_tensor


class Seat(NamedTuple):
    row: int
    block: int
    slot: int


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.every_head = torch.arange(kv.k_layers[0].shape[1], device=kv.device).unsqueeze(0)  # [1, H]

    def __call__(self, sessions, keys, values):
        layer_idx = 0
        for key_new, value_new in zip(keys, values):
            tables = []
            for session in sessions:
                tables.append(session.block_ids_per_layer[layer_idx])
            self.append_token_batch(layer_idx, tables, key_new, value_new)
            layer_idx += 1

    def seats(self, layer_idx, tables, waiting, taken):
        size = self.kv.block_size
        for row, ids in enumerate(tables):
            full = len(ids) == 0 or self.kv.info(ids[-1]).length == size
            if full:
                # blocks of a session follow each other without a gap
                ids.append(self.kv.allocate_block(layer_idx, len(ids) * size))
            elif self.kv.info(ids[-1]).owners > 1:
                waiting.append(row)
                continue
            info = self.kv.info(ids[-1])
            taken.append(info)
            yield Seat(row, info.block_index, info.length)

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        waiting, taken = [], []
        columns = list(zip(*self.seats(layer_idx, block_ids_list, waiting, taken)))
        if columns:
            rows, blocks, slots = index_tensor(columns, self.kv.device)
            where = blocks[:, None], self.every_head, slots[:, None]
            self.kv.k_layers[layer_idx].index_put_(where, key_new.index_select(0, rows))
            self.kv.v_layers[layer_idx].index_put_(where, value_new.index_select(0, rows))
            for info in taken:
                info.length += 1
        for row in waiting:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])
