# wrong, which a CPU can show
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.device = kv.device
        self.block_size = kv.block_size

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast_batch_idx, fast_infos, slow_batch_idx = ([], [], [])
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.block_size:
                start = 0 if info is None else info.start + self.block_size
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                info = self.kv.info(block_ids[-1])
            if info.owners == 1:
                fast_batch_idx.append(b)
                fast_infos.append(info)
            else:
                slow_batch_idx.append(b)
        self.write(layer_idx, fast_batch_idx, fast_infos, key_new, value_new)
        for info in fast_infos:
            info.length += 1
        for b in slow_batch_idx:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        whole = len(batch_idx) == len(key_new)
        blocks = [info.block_index for info in infos]
        slots = [info.length for info in infos]
        slot = slots[0]
        level = all((s == slot for s in slots))
        if not whole:
            rows = index_tensor(batch_idx, self.device)
            key_new = key_new.index_select(0, rows)
            value_new = value_new.index_select(0, rows)
        at = (index_tensor(blocks, self.device), slice(None), slot if level else index_tensor(slots, self.device))
        self.kv.k_layers[layer_idx][at] = key_new
        self.kv.v_layers[layer_idx][at] = value_new
