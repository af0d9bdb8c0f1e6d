"""lesson: 059
verdict: wrong
cause: cow-partial
shows: cpu
The part copies shared blocks itself, all of a layer in one operation, but only as many slots as the shortest of them has filled.
If two shared blocks of different lengths are copied in one step, the longer one's copy lacks its last tokens.
"""
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """Neither new blocks nor copies leave the batch."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        targets, copies = [], []
        for block_ids in block_ids_list:
            info = kv.info(block_ids[-1]) if block_ids else None
            if info is None:
                block_ids.append(kv.allocate_block(layer_idx, 0))
            elif info.length == kv.block_size:
                block_ids.append(kv.allocate_block(layer_idx, info.start + kv.block_size))
            elif info.owners > 1:
                block_ids[-1] = kv.allocate_block(layer_idx, info.start)
                new = kv.info(block_ids[-1])
                new.length = info.length
                info.owners -= 1
                copies.append((info.block_index, new.block_index, info.length))
            targets.append(kv.info(block_ids[-1]))
        if copies:
            self.copy(layer_idx, *zip(*copies))
        self.write(layer_idx, targets, key_new, value_new)

    def copy(self, layer_idx, sources, destinations, lengths):
        src = index_tensor(list(sources), self.kv.device)
        dst = index_tensor(list(destinations), self.kv.device)
        filled = min(lengths)
        for cache in (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]):
            cache[dst, :, :filled] = cache[src, :, :filled]

    def write(self, layer_idx, targets, key_new, value_new):
        blocks = index_tensor([info.block_index for info in targets], self.kv.device)
        slots = index_tensor([info.length for info in targets], self.kv.device)
        self.kv.k_layers[layer_idx][blocks, :, slots] = key_new
        self.kv.v_layers[layer_idx][blocks, :, slots] = value_new
        for info in targets:
            info.length += 1
