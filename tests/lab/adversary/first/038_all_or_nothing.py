"""lesson: 038
verdict: wrong
cause: goal-missed
shows: cpu
Batches only if every session is simple. As soon as one of them begins a block or has a shared one, the whole batch
goes through `append_token`.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            tables = [session.block_ids_per_layer[layer] for session in sessions]
            if all(map(self.simple, tables)):
                self.together(layer, [self.kv.info(table[-1]) for table in tables], keys[layer], values[layer])
            else:
                for table, key, value in zip(tables, keys[layer], values[layer], strict=True):
                    self.kv.append_token(layer, table, key, value)

    def simple(self, table):
        if not table:
            return False
        info = self.kv.info(table[-1])
        return info.owners == 1 and info.length < self.kv.block_size

    def together(self, layer, infos, key_new, value_new):
        blk_t, pos_t = index_tensor([[i.block_index for i in infos], [i.length for i in infos]], self.kv.device)
        self.kv.k_layers[layer][blk_t, :, pos_t] = key_new
        self.kv.v_layers[layer][blk_t, :, pos_t] = value_new
        for info in infos:
            info.length += 1
