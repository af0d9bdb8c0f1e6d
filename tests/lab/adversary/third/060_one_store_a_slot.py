"""lesson: 060
verdict: wrong
cause: half-written
shows: cpu
Groups the batch by slot, so that each group gets along with a number, but a session that comes to a slot replaces those
who are there: of each group only the last row is written, while all blocks count one token more.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """{slot: rows}: whoever writes to one slot is written with one store and a plain number."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        infos, slow = {}, []
        for b, ids in enumerate(block_ids_list):
            info = kv.info(ids[-1]) if ids else None
            if info is None or info.length == kv.block_size:
                ids.append(kv.allocate_block(layer_idx, info.start + info.length if info else 0))
                info = kv.info(ids[-1])
            if info.owners > 1:
                slow.append(b)
            else:
                infos[b] = info
        if len(infos) == len(key_new) and len({info.length for info in infos.values()}) == 1:
            blocks = index_tensor([info.block_index for info in infos.values()], kv.device)
            self.store(layer_idx, blocks, infos[0].length, key_new, value_new)
        else:
            groups = {info.length: [b] for b, info in infos.items()}
            for slot, rows in groups.items():
                rows_t, blocks = index_tensor([rows, [infos[b].block_index for b in rows]], kv.device)
                self.store(layer_idx, blocks, slot, key_new[rows_t], value_new[rows_t])
        for info in infos.values():
            info.length += 1
        for b in slow:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def store(self, layer_idx, blocks, slot, keys, values):
        self.kv.k_layers[layer_idx][blocks, :, slot] = keys
        self.kv.v_layers[layer_idx][blocks, :, slot] = values
