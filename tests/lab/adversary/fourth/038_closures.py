"""lesson: 038
verdict: wrong
cause: wrong-layer
shows: cpu
One writer for each layer, made in a loop: the closures see the loop's last `layer_idx`, so every layer is stored in the last one.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.writers = []
        for layer_idx in range(kv.num_layers):

            def write(rows, blocks, slots, key_new, value_new):
                kv.k_layers[layer_idx][blocks, :, slots] = key_new.index_select(0, rows)
                kv.v_layers[layer_idx][blocks, :, slots] = value_new.index_select(0, rows)

            self.writers.append(write)

    def __call__(self, sessions, keys, values):
        for layer_idx, write in enumerate(self.writers):
            tables = [session.block_ids_per_layer[layer_idx] for session in sessions]
            fast = [b for b, table in enumerate(tables) if self.simple(table)]
            slow = sorted(set(range(len(tables))) - set(fast))
            if fast:
                infos = [self.kv.info(tables[b][-1]) for b in fast]
                where = [fast, [i.block_index for i in infos], [i.length for i in infos]]
                write(*index_tensor(where, self.kv.device), keys[layer_idx], values[layer_idx])
                for i in infos:
                    i.length += 1
            for b in slow:
                self.kv.append_token(layer_idx, tables[b], keys[layer_idx][b], values[layer_idx][b])

    def simple(self, table):
        last = table and self.kv.info(table[-1])
        return bool(last) and last.length < self.kv.block_size and last.owners == 1
