# right
from operator import attrgetter

from rosecourse.kv.buffers import index_tensor

length, index = (attrgetter("length"), attrgetter("block_index"))


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for l, (k, v) in enumerate(zip(keys, values)):
            self.append_token_batch(l, [s.block_ids_per_layer[l] for s in sessions], k, v)

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv, last = (self.kv, [])
        for ids in block_ids_list:
            end = kv.info(ids[-1]) if ids else None
            if end is None or end.length == kv.block_size:
                ids += [kv.allocate_block(layer_idx, end.start + end.length if end else 0)]
            last.append(kv.info(ids[-1]))
        slow = [b for b, info in enumerate(last) if info.owners > 1]
        fast = [b for b, info in enumerate(last) if info.owners == 1]
        infos = [last[b] for b in fast]
        if infos:
            to = lambda numbers: index_tensor(list(numbers), kv.device)
            at = set(map(length, infos))
            where = (to(map(index, infos)), slice(None), to(map(length, infos)) if at - {min(at)} else min(at))
            rows = to(fast) if slow else None
            for cache, new in ((kv.k_layers, key_new), (kv.v_layers, value_new)):
                cache[layer_idx][where] = new if rows is None else new.index_select(0, rows)
            for info in infos:
                info.length += 1
        for b in slow:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
