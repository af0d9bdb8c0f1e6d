"""lesson: 060
verdict: wrong
cause: cow-partial
shows: cpu
Copies shared blocks itself, all in one go, and copies as many slots as the shortest of them holds. Where the shared
blocks are filled to different lengths, the longer ones lose their last tokens.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """With the copies made first, every batch is whole."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            tables = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, tables, keys[layer_idx], values[layer_idx])

    def part_ways(self, layer_idx, tables):
        """Give each session that shares its last block a copy of it; the last owner keeps the original."""
        old, new = [], []
        for ids in tables:
            info = self.kv.info(ids[-1])
            if info.owners > 1:
                info.owners -= 1
                ids[-1] = self.kv.allocate_block(layer_idx, info.start)
                copy = self.kv.info(ids[-1])
                copy.length = info.length
                old.append(info)
                new.append(copy)
        if old:
            filled = min(info.length for info in old)
            source = index_tensor([info.block_index for info in old], self.kv.device)
            target = index_tensor([info.block_index for info in new], self.kv.device)
            for cache in (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]):
                cache[target, :, :filled] = cache[source, :, :filled]

    def append_token_batch(self, layer_idx, tables, key_new, value_new):
        kv = self.kv
        for ids in tables:
            if not ids or kv.info(ids[-1]).length == kv.block_size:
                ids.append(kv.allocate_block(layer_idx, len(ids) * kv.block_size))
        self.part_ways(layer_idx, tables)
        infos = [kv.info(ids[-1]) for ids in tables]
        blocks = index_tensor([info.block_index for info in infos], kv.device)
        lengths = [info.length for info in infos]
        slot = lengths[0] if len(set(lengths)) == 1 else index_tensor(lengths, kv.device)
        kv.k_layers[layer_idx][blocks, :, slot] = key_new
        kv.v_layers[layer_idx][blocks, :, slot] = value_new
        for info in infos:
            info.length += 1
