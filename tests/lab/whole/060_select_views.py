# right
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        tables = [session.block_ids_per_layer for session in sessions]
        for layer_idx in range(self.kv.num_layers):
            lists = [table[layer_idx] for table in tables]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        ours = {"row": [], "block": [], "slot": []}
        infos, copied = ([], [])
        for row, block_ids in enumerate(block_ids_list):
            if not block_ids:
                block_ids.append(kv.allocate_block(layer_idx))
            info = kv.info(block_ids[-1])
            if info.length == kv.block_size:
                block_ids.append(kv.allocate_block(layer_idx, info.start + kv.block_size))
                info = kv.info(block_ids[-1])
            if info.owners > 1:
                copied.append(row)
                continue
            infos.append(info)
            for name, number in zip(ours, (row, info.block_index, info.length)):
                ours[name].append(number)
        if infos:
            blocks = index_tensor(ours["block"], kv.device)
            k, v = (key_new, value_new)
            if copied:
                rows = index_tensor(ours["row"], kv.device)
                k, v = (k.index_select(0, rows), v.index_select(0, rows))
            first, *others = ours["slot"]
            pairs = ((kv.k_layers[layer_idx], k), (kv.v_layers[layer_idx], v))
            if all((other == first for other in others)):
                for cache, new in pairs:
                    cache.select(2, first).index_copy_(0, blocks, new)
            else:
                slots = index_tensor(ours["slot"], kv.device)
                for cache, new in pairs:
                    cache.transpose(1, 2).index_put_((blocks, slots), new)
            for info in infos:
                info.length += 1
        for row in copied:
            kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])
