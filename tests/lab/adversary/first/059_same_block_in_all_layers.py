"""lesson: 059
verdict: wrong
cause: books-wrong
shows: cpu
Allocates once per session, in layer 0, and enters the same block number in the tables of all layers, without taking it
from the other layers' pools: they still hold it for free.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def roll_over(self, sessions):
        for session in sessions:
            first = session.block_ids_per_layer[0]
            last = self.kv.info(first[-1]) if first else None
            if last is None or last.length == self.kv.block_size:
                block = self.kv.allocate_block(0, last.start + last.length if last else 0)
                for ids in session.block_ids_per_layer:
                    ids.append(block)

    def __call__(self, sessions, keys, values):
        self.roll_over(sessions)
        lengths = [self.kv.info(session.block_ids_per_layer[0][-1]).length for session in sessions]
        for layer in range(self.kv.num_layers):
            tables = [session.block_ids_per_layer[layer] for session in sessions]
            fast = [b for b, table in enumerate(tables) if self.kv.info(table[-1]).owners == 1]
            if fast:
                blocks = [self.kv.info(tables[b][-1]).block_index for b in fast]
                rows, blk, pos = index_tensor([fast, blocks, [lengths[b] for b in fast]], self.kv.device)
                self.kv.k_layers[layer][blk, :, pos] = keys[layer].index_select(0, rows)
                self.kv.v_layers[layer][blk, :, pos] = values[layer].index_select(0, rows)
            for b, table in enumerate(tables):
                if b in fast:
                    self.kv.info(table[-1]).length = lengths[b] + 1
                else:
                    self.kv.append_token(layer, table, keys[layer][b], values[layer][b])
