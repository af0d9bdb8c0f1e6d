"""lesson: 038
verdict: wrong
cause: hangs
shows: cpu
Where a last block is shared, it waits until the other owner has let go. Nobody else runs meanwhile, and it waits for
ever.
"""

import time

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def exclusive(self, info):
        """Forks copy on write: wait until the sibling has its copy, then the block is ours."""
        while info.owners > 1:
            time.sleep(0.0005)
        return info

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            rows, infos = [], []
            for b, session in enumerate(sessions):
                ids = session.block_ids_per_layer[layer]
                if ids and self.kv.info(ids[-1]).length < self.kv.block_size:
                    rows.append(b)
                    infos.append(self.exclusive(self.kv.info(ids[-1])))
                else:
                    self.kv.append_token(layer, ids, keys[layer][b], values[layer][b])
            if rows:
                idx, blk, pos = index_tensor(
                    [rows, [i.block_index for i in infos], [i.length for i in infos]], self.kv.device
                )
                self.kv.k_layers[layer][blk, :, pos] = keys[layer][idx]
                self.kv.v_layers[layer][blk, :, pos] = values[layer][idx]
            for i in infos:
                i.length += 1
