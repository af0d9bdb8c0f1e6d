"""lesson: 038
verdict: wrong
cause: wrong-session
shows: cpu
The sessions that go to `append_token` are numbered anew by `enumerate`, so they get the K and V of the batch's first rows.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            tables = [s.block_ids_per_layer[layer_idx] for s in sessions]
            self.append_token_batch(layer_idx, tables, keys[layer_idx], values[layer_idx])

    def is_simple(self, table):
        if not table:
            return False
        last = self.kv.info(table[-1])
        return last.owners == 1 and last.length < self.kv.block_size

    def append_token_batch(self, layer_idx, tables, key_new, value_new):
        simple = [b for b, t in enumerate(tables) if self.is_simple(t)]
        rest = [t for t in tables if not self.is_simple(t)]
        if simple:
            infos = [self.kv.info(tables[b][-1]) for b in simple]
            rows = index_tensor(simple, self.kv.device)
            blocks = index_tensor([i.block_index for i in infos], self.kv.device)
            slots = index_tensor([i.length for i in infos], self.kv.device)
            self.kv.k_layers[layer_idx][blocks, :, slots] = key_new[rows]
            self.kv.v_layers[layer_idx][blocks, :, slots] = value_new[rows]
            for i in infos:
                i.length += 1
        for b, table in enumerate(rest):
            self.kv.append_token(layer_idx, table, key_new[b], value_new[b])
