# wrong, which a CPU can show
from rosecourse.kv.buffers import index_tensor


def split(pairs, test):
    yes, no = ([], [])
    for pair in pairs:
        (yes if test(pair[1]) else no).append(pair)
    return (yes, no)


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [s.block_ids_per_layer[layer_idx] for s in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def is_full(self, block_ids):
        return not block_ids or self.kv.info(block_ids[-1]).length == self.kv.block_size

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        for block_ids in filter(self.is_full, block_ids_list):
            block_ids.append(self.kv.allocate_block(layer_idx))
        last = [(b, self.kv.info(block_ids[-1])) for b, block_ids in enumerate(block_ids_list)]
        mine, shared = split(last, lambda info: info.owners == 1)
        if mine:
            self.write(layer_idx, mine, key_new, value_new)
        for b, _ in shared:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, mine, key_new, value_new):
        as_index = lambda numbers: index_tensor(list(numbers), self.kv.device)
        slots = [info.length for _, info in mine]
        where = slots[0] if all((slot == slots[0] for slot in slots)) else as_index(slots)
        blocks = as_index((info.block_index for _, info in mine))
        if len(mine) != len(key_new):
            rows = as_index((b for b, _ in mine))
            key_new, value_new = (key_new.index_select(0, rows), value_new.index_select(0, rows))
        self.kv.k_layers[layer_idx][blocks, :, where] = key_new
        self.kv.v_layers[layer_idx][blocks, :, where] = value_new
        for _, info in mine:
            info.length += 1
