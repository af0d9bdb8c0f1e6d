"""lesson: 038
verdict: wrong
cause: state-kept
shows: cpu
Remembers each block id's index in a dictionary of the module: the next engine, with a pool of another size, gets the indices of the first.
"""

from rosecourse.kv.buffers import index_tensor

_INDEX_OF: dict[int, int] = {}  # a block never moves, so its place has to be asked for only once


def index_of(kv, block_id):
    index = _INDEX_OF.get(block_id)
    if index is None:
        index = _INDEX_OF[block_id] = kv.block_index(block_id)
    return index


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.full = kv.block_size

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            self.one_layer(layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], keys, values)

    def one_layer(self, layer_idx, tables, keys, values):
        keys, values = keys[layer_idx], values[layer_idx]
        simple, special = {}, []
        for b, table in enumerate(tables):
            info = self.kv.info(table[-1]) if table else None
            if info is None or info.owners > 1 or info.length == self.full:
                special.append(b)
            else:
                simple[b] = info
        if simple:
            rows = index_tensor(list(simple), self.kv.device)
            blocks = index_tensor([index_of(self.kv, tables[b][-1]) for b in simple], self.kv.device)
            slots = index_tensor([info.length for info in simple.values()], self.kv.device)
            self.kv.k_layers[layer_idx][blocks, :, slots] = keys.index_select(0, rows)
            self.kv.v_layers[layer_idx][blocks, :, slots] = values.index_select(0, rows)
            for info in simple.values():
                info.length += 1
        for b in special:
            self.kv.append_token(layer_idx, tables[b], keys[b], values[b])
