"""lesson: 038
verdict: wrong
cause: cow-partial
shows: cpu
Makes the private copy of a shared block itself, so that the session can stay in the batch, and copies only K: the
positions before the fork have no V in the copy.
"""

import torch

from rosecourse.lessons.l035_blocks import KVBlockManager


class MyKVAppend:
    """Nobody is left for append_token but sessions that begin a block."""

    def __init__(self, model, kv: KVBlockManager, config):
        self.kv = kv

    def unshare(self, layer, block_ids):
        old = self.kv.info(block_ids[-1])
        block_ids[-1] = self.kv.allocate_block(layer, old.start)
        new = self.kv.info(block_ids[-1])
        cache = self.kv.k_layers[layer]
        cache[new.block_index, :, : old.length].copy_(cache[old.block_index, :, : old.length])
        new.length = old.length
        old.owners -= 1

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            tables = [session.block_ids_per_layer[layer] for session in sessions]
            rows, infos = [], []
            for b, table in enumerate(tables):
                if not table or self.kv.info(table[-1]).length == self.kv.block_size:
                    self.kv.append_token(layer, table, keys[layer][b], values[layer][b])
                    continue
                if self.kv.info(table[-1]).owners > 1:
                    self.unshare(layer, table)
                rows.append(b)
                infos.append(self.kv.info(table[-1]))
            if rows:
                at = torch.tensor([[i.block_index for i in infos], [i.length for i in infos], rows])
                blocks, slots, rows_t = at.to(self.kv.device)
                self.kv.k_layers[layer][blocks, :, slots] = keys[layer][rows_t]
                self.kv.v_layers[layer][blocks, :, slots] = values[layer][rows_t]
            for info in infos:
                info.length += 1
