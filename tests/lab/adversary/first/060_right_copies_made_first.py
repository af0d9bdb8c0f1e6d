"""lesson: 060
verdict: right
cause: right
shows: cpu
Right: shared blocks are copied first, by its own hand and block by block, so that every batch is whole and nothing
is ever selected.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """A session that shares its last block gets a copy of it before anything is written: no batch has a hole."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            tables = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, tables, keys[layer_idx], values[layer_idx])

    def room(self, layer_idx, ids):
        if not ids or self.kv.info(ids[-1]).length == self.kv.block_size:
            ids.append(self.kv.allocate_block(layer_idx, len(ids) * self.kv.block_size))

    def unshare(self, layer_idx, ids):
        old = self.kv.info(ids[-1])
        if old.owners == 1:  # perhaps because the others have left it a moment ago
            return
        copy_id = self.kv.allocate_block(layer_idx, old.start)
        copy = self.kv.info(copy_id)
        for cache in (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]):
            filled = cache.narrow(2, 0, old.length)
            filled[copy.block_index].copy_(filled[old.block_index])
        copy.length = old.length
        old.owners -= 1
        ids[-1] = copy_id

    def append_token_batch(self, layer_idx, tables, key_new, value_new):
        for ids in tables:
            self.room(layer_idx, ids)
        for ids in tables:
            self.unshare(layer_idx, ids)
        infos = [self.kv.info(ids[-1]) for ids in tables]
        blocks = index_tensor([info.block_index for info in infos], self.kv.device)
        slot, *others = [info.length for info in infos]
        if any(other != slot for other in others):
            slot = index_tensor([slot, *others], self.kv.device)
        self.kv.k_layers[layer_idx][blocks, :, slot] = key_new
        self.kv.v_layers[layer_idx][blocks, :, slot] = value_new
        for info in infos:
            info.length += 1
