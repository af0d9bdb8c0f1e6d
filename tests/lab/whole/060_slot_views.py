# right
from itertools import groupby

from rosecourse.kv.buffers import index_tensor


def all_equal(numbers):
    groups = groupby(numbers)
    return next(groups, None) is not None and next(groups, None) is None


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.pools = [(k, v) for k, v in zip(kv.k_layers, kv.v_layers, strict=True)]

    def to_device(self, numbers):
        return index_tensor(numbers, self.kv.device)

    def open_block(self, layer, table):
        last = self.kv.info(table[-1]) if table else None
        if last is None:
            table.append(self.kv.allocate_block(layer))
        elif last.length == self.kv.block_size:
            table.append(self.kv.allocate_block(layer, last.start + last.length))
        else:
            return last
        return self.kv.info(table[-1])

    def __call__(self, sessions, keys, values):
        for layer, new in enumerate(zip(keys, values, strict=True)):
            tables = [s.block_ids_per_layer[layer] for s in sessions]
            opened = [self.open_block(layer, table) for table in tables]
            alone = [b for b, info in enumerate(opened) if info.owners == 1]
            crowd = [b for b, info in enumerate(opened) if info.owners != 1]
            if alone:
                self.store(layer, alone, [opened[b] for b in alone], new, whole=not crowd)
            for b in alone:
                opened[b].length += 1
            for b in crowd:
                self.kv.append_token(layer, tables[b], *(x[b] for x in new))

    def store(self, layer, rows, infos, new, whole):
        blocks = self.to_device([info.block_index for info in infos])
        if not whole:
            chosen = self.to_device(rows)
            new = [x.index_select(0, chosen) for x in new]
        slots = [info.length for info in infos]
        if all_equal(slots):
            for pool, rows_of_it in zip(self.pools[layer], new):
                pool.select(2, slots[0]).index_copy_(0, blocks, rows_of_it)
        else:
            where = (blocks, self.to_device(slots))
            for pool, rows_of_it in zip(self.pools[layer], new):
                pool.transpose(1, 2).index_put_(where, rows_of_it)
