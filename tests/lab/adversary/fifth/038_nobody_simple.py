"""lesson: 038
verdict: wrong
cause: raises
shows: cpu
The indexed store is made even if no session of the batch is simple. An empty Python list becomes a tensor of floats, which is no index.
So the step in which all sessions begin a block (or all share one) raises an IndexError.
"""
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:

    def __init__(self, model, kv, config):
        self.kv = kv
        self.index = lambda numbers: index_tensor(list(numbers), kv.device)

    def __call__(self, sessions, keys, values):
        for l, (k, v) in enumerate(zip(keys, values, strict=True)):
            self.append_token_batch(l, [s.block_ids_per_layer[l] for s in sessions], k, v)

    def simple(self, ids):
        if not ids:
            return False
        info = self.kv.info(ids[-1])
        return info.owners == 1 and info.length < self.kv.block_size

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        verdicts = list(map(self.simple, block_ids_list))
        rows = [b for b, yes in enumerate(verdicts) if yes]
        infos = [self.kv.info(block_ids_list[b][-1]) for b in rows]

        blk, pos = self.index(i.block_index for i in infos), self.index(i.length for i in infos)
        for cache, new in ((self.kv.k_layers, key_new), (self.kv.v_layers, value_new)):
            cache[layer_idx][blk, :, pos] = new[rows]
        for i in infos:
            i.length += 1

        for b, yes in enumerate(verdicts):
            if not yes:
                self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
