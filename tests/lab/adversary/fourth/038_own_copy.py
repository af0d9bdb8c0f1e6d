"""lesson: 038
verdict: wrong
cause: books-wrong
shows: cpu
Copies a shared block itself and forgets to take one owner from the original: the sibling's block stays shared for ever and is never freed.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """No append_token at all: after `prepare` every session has its own block with a free slot."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            tables = [session.block_ids_per_layer[layer_idx] for session in sessions]
            infos = [self.prepare(layer_idx, table) for table in tables]
            self.store(layer_idx, infos, keys[layer_idx], values[layer_idx])
            for info in infos:
                info.length += 1

    def prepare(self, layer_idx, table):
        kv = self.kv
        last = kv.info(table[-1]) if table else None
        if last is None or last.length == kv.block_size:
            start = 0 if last is None else last.start + last.length
            table.append(kv.allocate_block(layer_idx, start))
        elif last.owners > 1:
            mine = kv.allocate_block(layer_idx, last.start)
            new = kv.info(mine)
            for pool in (kv.k_layers[layer_idx], kv.v_layers[layer_idx]):
                pool[new.block_index, :, : last.length] = pool[last.block_index, :, : last.length]
            new.length = last.length
            table[-1] = mine
        return kv.info(table[-1])

    def store(self, layer_idx, infos, key_new, value_new):
        blocks = index_tensor([info.block_index for info in infos], self.kv.device)
        slots = index_tensor([info.length for info in infos], self.kv.device)
        self.kv.k_layers[layer_idx][blocks, :, slots] = key_new
        self.kv.v_layers[layer_idx][blocks, :, slots] = value_new
