# wrong, which a CPU can show
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        stores = []
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            fast, slow = self.part(lists)
            for b in slow:
                self.kv.append_token(layer_idx, lists[b], keys[layer_idx][b], values[layer_idx][b])
            if fast:
                where = self.where(fast)
                k, v = (keys[layer_idx], values[layer_idx])
                stores.append(lambda where=where, k=k, v=v: self.store(layer_idx, where, k, v))
                for _, info in fast:
                    info.length += 1
        for store in stores:
            store()

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, slow = self.part(block_ids_list)
        if fast:
            self.store(layer_idx, self.where(fast), key_new, value_new)
            for _, info in fast:
                info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def part(self, lists):
        fast, slow = ([], [])
        for b, ids in enumerate(lists):
            info = self.kv.info(ids[-1]) if ids else None
            if info and info.length < self.kv.block_size and (info.owners == 1):
                fast.append((b, info))
            else:
                slow.append(b)
        return (fast, slow)

    def where(self, fast):
        columns = [[b, info.block_index, info.length] for b, info in fast]
        return index_tensor(columns, self.kv.device).unbind(1)

    def store(self, layer_idx, where, k, v):
        rows, blocks, slots = where
        self.kv.k_layers[layer_idx][blocks, :, slots] = k[rows]
        self.kv.v_layers[layer_idx][blocks, :, slots] = v[rows]
