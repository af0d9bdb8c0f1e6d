# right
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.k_tokens = [layer.transpose(1, 2) for layer in kv.k_layers]
        self.v_tokens = [layer.transpose(1, 2) for layer in kv.v_layers]

    def __call__(self, sessions, keys, values):
        per_layer = zip(*(session.block_ids_per_layer for session in sessions), strict=True)
        for layer_idx, tables in enumerate(per_layer):
            self.append_token_batch(layer_idx, list(tables), keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        last = list(self.with_room(layer_idx, block_ids_list))
        alone = [b for b, info in enumerate(last) if info.owners == 1]
        shared = [b for b, info in enumerate(last) if info.owners > 1]
        if alone:
            where = [alone, [last[b].block_index for b in alone], [last[b].length for b in alone]]
            rows, *place = index_tensor(where, self.kv.device).unbind()
            self.k_tokens[layer_idx].index_put_(tuple(place), key_new.index_select(0, rows))
            self.v_tokens[layer_idx].index_put_(tuple(place), value_new.index_select(0, rows))
        for b in alone:
            last[b].length += 1
        for b in shared:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def with_room(self, layer_idx, tables):
        for table in tables:
            end = 0
            if table:
                last = self.kv.info(table[-1])
                if last.length < self.kv.block_size:
                    yield last
                    continue
                end = last.start + last.length
            table.append(self.kv.allocate_block(layer_idx, end))
            yield self.kv.info(table[-1])
