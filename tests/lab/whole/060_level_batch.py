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
        infos = [self.last_block(layer_idx, block_ids) for block_ids in block_ids_list]
        if len({info.length for info in infos}) == 1:
            self.append_level(layer_idx, infos, key_new, value_new)
        else:
            self.append_mixed(layer_idx, infos, block_ids_list, key_new, value_new)

    def last_block(self, layer_idx, block_ids):
        info = self.kv.info(block_ids[-1]) if block_ids else None
        if info is not None and info.length < self.kv.block_size:
            return info
        block_ids.append(self.kv.allocate_block(layer_idx, info.start + info.length if info else 0))
        return self.kv.info(block_ids[-1])

    def append_level(self, layer_idx, infos, key_new, value_new):
        slot = infos[0].length
        blocks = index_tensor([info.block_index for info in infos], self.kv.device)
        self.kv.k_layers[layer_idx][blocks, :, slot] = key_new
        self.kv.v_layers[layer_idx][blocks, :, slot] = value_new
        for info in infos:
            info.length = slot + 1

    def append_mixed(self, layer_idx, infos, block_ids_list, key_new, value_new):
        device = self.kv.device
        own = [b for b, info in enumerate(infos) if info.owners == 1]
        shared = [b for b, info in enumerate(infos) if info.owners > 1]
        if own:
            blocks = index_tensor([infos[b].block_index for b in own], device)
            lengths = [infos[b].length for b in own]
            slots = lengths[0] if len(set(lengths)) == 1 else index_tensor(lengths, device)
            k, v = (key_new, value_new)
            if shared:
                rows = index_tensor(own, device)
                k, v = (k.index_select(0, rows), v.index_select(0, rows))
            self.kv.k_layers[layer_idx][blocks, :, slots] = k
            self.kv.v_layers[layer_idx][blocks, :, slots] = v
            for b in own:
                infos[b].length += 1
        for b in shared:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
