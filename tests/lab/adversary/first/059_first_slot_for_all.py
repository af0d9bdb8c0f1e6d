"""lesson: 059
verdict: wrong
cause: wrong-slot
shows: cpu
If the first session of the batch has just rolled over, all of them are taken to be at slot 0, as in a run of equal
prompts; sessions inside a block then overwrite their slot 0.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            infos, rows, shared = [], [], []
            for b, session in enumerate(sessions):
                info = self.last_block(layer, session.block_ids_per_layer[layer])
                if info.owners > 1:
                    shared.append(b)
                else:
                    rows.append(b)
                    infos.append(info)
            if rows:
                self.write(layer, rows, infos, keys[layer], values[layer])
            for b in shared:
                ids = sessions[b].block_ids_per_layer[layer]
                self.kv.append_token(layer, ids, keys[layer][b], values[layer][b])

    def last_block(self, layer, ids):
        info = self.kv.info(ids[-1]) if ids else None
        if info is None or info.length == self.kv.block_size:
            ids.append(self.kv.allocate_block(layer, info.start + info.length if info else 0))
            info = self.kv.info(ids[-1])
        return info

    def write(self, layer, rows, infos, key_new, value_new):
        idx, blk = index_tensor([rows, [i.block_index for i in infos]], self.kv.device)
        rolled_over = infos[0].length == 0
        slots = 0 if rolled_over else index_tensor([i.length for i in infos], self.kv.device)
        self.kv.k_layers[layer][blk, :, slots] = key_new[idx]
        self.kv.v_layers[layer][blk, :, slots] = value_new[idx]
        for i in infos:
            i.length += 1
