# wrong, which a CPU can show
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            self.append_token_batch(
                layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], keys[layer_idx], values[layer_idx]
            )

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv, fast, slow = (self.kv, {}, [])
        for b, ids in enumerate(block_ids_list):
            info = kv.info(ids[-1]) if ids else None
            if info is None or info.length == kv.block_size:
                ids.append(kv.allocate_block(layer_idx, info.start + info.length if info else 0))
                info = kv.info(ids[-1])
            if info.owners > 1:
                slow.append(b)
            else:
                fast[b] = info
        if fast:
            k, v = (key_new, value_new)
            if slow:
                chosen = index_tensor(list(fast), kv.device)
                v, k = (new.index_select(0, chosen) for new in (key_new, value_new))
            self.store(layer_idx, list(fast.values()), k, v)
        for b in slow:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def store(self, layer_idx, infos, k, v):
        blocks = index_tensor([i.block_index for i in infos], self.kv.device)
        slots = [i.length for i in infos]
        same = slots.count(slots[0]) == len(slots)
        at = slots[0] if same else index_tensor(slots, self.kv.device)
        self.kv.k_layers[layer_idx][blocks, :, at] = k
        self.kv.v_layers[layer_idx][blocks, :, at] = v
        for info in infos:
            info.length += 1
