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
        infos = [self.writable(layer_idx, block_ids) for block_ids in block_ids_list]
        positions = [info.length for info in infos]
        blk_t = index_tensor([info.block_index for info in infos], self.kv.device)
        level = min(positions) == max(positions)
        slots = positions[0] if level else index_tensor(positions, self.kv.device)
        self.kv.k_layers[layer_idx][blk_t, :, slots] = key_new
        self.kv.v_layers[layer_idx][blk_t, :, slots] = value_new
        for info in infos:
            info.length += 1

    def writable(self, layer_idx, block_ids):
        info = self.kv.info(block_ids[-1]) if block_ids else None
        if info is None or info.length == self.kv.block_size:
            start = info.start + info.length if info else 0
            block_ids.append(self.kv.allocate_block(layer_idx, start))
        elif info.owners > 1:
            block_ids[-1] = self.private_copy(layer_idx, info)
        return self.kv.info(block_ids[-1])

    def private_copy(self, layer_idx, old):
        copy_id = self.kv.allocate_block(layer_idx, old.start)
        new = self.kv.info(copy_id)
        cache = self.kv.k_layers[layer_idx]
        cache[new.block_index, :, : old.length] = cache[old.block_index, :, : old.length]
        new.length = old.length
        old.owners -= 1
        return copy_id
