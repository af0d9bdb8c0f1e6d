"""lesson: 059
verdict: wrong
cause: books-wrong
shows: cpu
Builds a new list, `block_ids = block_ids + [new]`, instead of appending to the session's own: the token is written into
a block that no session knows, and that nobody will ever free.
"""

import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            self.layer(layer, [session.block_ids_per_layer[layer] for session in sessions], keys[layer], values[layer])

    def with_room(self, layer, block_ids):
        """The list with a block at its end that has a free slot."""
        if not block_ids:
            return [self.kv.allocate_block(layer)]
        last = self.kv.info(block_ids[-1])
        if last.length == self.kv.block_size:
            return [*block_ids, self.kv.allocate_block(layer, last.start + last.length)]
        return block_ids

    def layer(self, layer, tables, k, v):
        tables = [self.with_room(layer, table) for table in tables]
        infos = [self.kv.info(table[-1]) for table in tables]
        fast = [b for b, info in enumerate(infos) if info.owners == 1]
        if fast:
            rows = torch.tensor(fast, device=self.kv.device)
            blocks = torch.tensor([infos[b].block_index for b in fast], device=self.kv.device)
            slots = torch.tensor([infos[b].length for b in fast], device=self.kv.device)
            self.kv.k_layers[layer][blocks, :, slots] = k[rows]
            self.kv.v_layers[layer][blocks, :, slots] = v[rows]
        for b in fast:
            infos[b].length += 1
        for b in set(range(len(tables))) - set(fast):
            self.kv.append_token(layer, tables[b], k[b], v[b])
