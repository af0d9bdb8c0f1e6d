# right
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        for ids in block_ids_list:
            self.make_room(layer_idx, ids)
        lasts = [self.kv.info(ids[-1]) for ids in block_ids_list]
        mine = [b for b, last in enumerate(lasts) if last.owners == 1]
        shared = [b for b, last in enumerate(lasts) if last.owners != 1]
        if mine:
            self.write(layer_idx, mine, [lasts[b] for b in mine], key_new, value_new)
        for b in shared:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def make_room(self, layer_idx, ids):
        start = 0
        if ids:
            last = self.kv.info(ids[-1])
            if last.length < self.kv.block_size:
                return
            start = last.start + self.kv.block_size
        ids.append(self.kv.allocate_block(layer_idx, start))

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        device = self.kv.device
        rows = index_tensor(batch_idx, device)
        blocks = index_tensor([info.block_index for info in infos], device)
        slots = index_tensor([info.length for info in infos], device)
        self.kv.k_layers[layer_idx][blocks, :, slots] = key_new.index_select(0, rows)
        self.kv.v_layers[layer_idx][blocks, :, slots] = value_new.index_select(0, rows)
        for info in infos:
            info.length += 1
