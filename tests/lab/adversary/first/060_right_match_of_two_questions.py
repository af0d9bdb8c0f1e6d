"""lesson: 060
verdict: right
cause: right
shows: cpu
Right: the four combinations as the cases of a match statement, with compress and partial in place of loops.
"""

from functools import partial
from itertools import compress
from operator import attrgetter, not_

from rosecourse.kv.buffers import index_tensor

length_of, block_of = attrgetter("length"), attrgetter("block_index")


def stored(cache, blocks, slots, rows):
    cache[blocks, :, slots] = rows


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.tensor = partial(index_tensor, device=kv.device)

    def __call__(self, sessions, keys, values):
        for layer, tables in enumerate(zip(*(s.block_ids_per_layer for s in sessions), strict=True)):
            self.append_token_batch(layer, tables, keys[layer], values[layer])

    def last(self, layer, table):
        info = self.kv.info(table[-1]) if table else None
        if info is not None and info.length != self.kv.block_size:
            return info
        table.append(self.kv.allocate_block(layer, info.start + info.length if info else 0))
        return self.kv.info(table[-1])

    def append_token_batch(self, layer, tables, key_new, value_new):
        infos = [self.last(layer, table) for table in tables]
        free = [info.owners == 1 for info in infos]
        busy = list(map(not_, free))
        if any(free):
            self.store(layer, list(compress(range(len(free)), free)), list(compress(infos, free)), key_new, value_new)
        for b in compress(range(len(tables)), busy):
            self.kv.append_token(layer, tables[b], key_new[b], value_new[b])

    def store(self, layer, rows, infos, key_new, value_new):
        lengths, blocks = list(map(length_of, infos)), self.tensor(list(map(block_of, infos)))
        put_k, put_v = (partial(stored, c[layer], blocks) for c in (self.kv.k_layers, self.kv.v_layers))
        match len(rows) == len(key_new), len(set(lengths)) == 1:
            case True, True:
                put_k(lengths[0], key_new)
                put_v(lengths[0], value_new)
            case True, False:
                slots = self.tensor(lengths)
                put_k(slots, key_new)
                put_v(slots, value_new)
            case False, level:
                chosen, slots = self.tensor(rows), lengths[0] if level else self.tensor(lengths)
                put_k(slots, key_new.index_select(0, chosen))
                put_v(slots, value_new.index_select(0, chosen))
        for info in infos:
            info.length += 1
