"""lesson: 059
verdict: wrong
cause: hangs
shows: cpu
Waits until the layer's list of free blocks is not empty. Blocks that only the prefix cache holds are not in that list;
`allocate_block` would evict one, but the part never asks.
"""

import time

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def new_block(self, layer, start):
        while not self.kv.free_blocks(layer):
            time.sleep(0.001)  # somebody is going to finish
        return self.kv.allocate_block(layer, start)

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            rows, infos, copies = [], [], []
            for b, s in enumerate(sessions):
                ids = s.block_ids_per_layer[layer]
                if not ids:
                    ids.append(self.new_block(layer, 0))
                elif self.kv.info(ids[-1]).length == self.kv.block_size:
                    ids.append(self.new_block(layer, self.kv.info(ids[-1]).start + self.kv.block_size))
                if self.kv.info(ids[-1]).owners == 1:
                    rows.append(b)
                    infos.append(self.kv.info(ids[-1]))
                else:
                    copies.append((ids, keys[layer][b], values[layer][b]))
            if rows:
                blk, pos, idx = index_tensor(
                    [[i.block_index for i in infos], [i.length for i in infos], rows], self.kv.device
                )
                self.kv.k_layers[layer][blk, :, pos] = keys[layer][idx]
                self.kv.v_layers[layer][blk, :, pos] = values[layer][idx]
            for i in infos:
                i.length += 1
            for copy in copies:
                self.kv.append_token(layer, *copy)
