# wrong, which a CPU can show
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast_batch_idx, fast_infos, slow_batch_idx = ([], [], [])
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                start = info.start + info.length if info else 0
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                info = self.kv.info(block_ids[-1])
            if info.owners > 1:
                slow_batch_idx.append(b)
                continue
            fast_batch_idx.append(b)
            fast_infos.append(info)
        if fast_batch_idx:
            self.write(layer_idx, fast_batch_idx, fast_infos, key_new, value_new)
            for info in fast_infos:
                info.length += 1
        for b in slow_batch_idx:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        device = self.kv.device
        k_layer, v_layer = (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
        blocks = index_tensor([info.block_index for info in infos], device)
        if len(batch_idx) < len(key_new):
            chosen = index_tensor(batch_idx, device)
            key_new = key_new.index_select(0, chosen)
            value_new = value_new.index_select(0, chosen)
        if infos[0].length == infos[-1].length:
            slots = infos[0].length
        else:
            slots = index_tensor([info.length for info in infos], device)
        k_layer[blocks, :, slots] = key_new
        v_layer[blocks, :, slots] = value_new
