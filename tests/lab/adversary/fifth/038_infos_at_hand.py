"""lesson: 038
verdict: wrong
cause: state-kept
shows: cpu
The part keeps the KVBlockInfo of every block id that it has seen, to look it up but once.
When a block is freed and given out again its id is the same and its info another object: the old one's length and slot are used, and its length is raised.
"""
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """Looks each block up only once."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.known = {}  # block id -> its info

    def info(self, block_id):
        try:
            return self.known[block_id]
        except KeyError:
            found = self.known[block_id] = self.kv.info(block_id)
            return found

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            ids = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, ids, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        size = self.kv.block_size
        rows, infos, others = [], [], []
        for row, block_ids in enumerate(block_ids_list):
            if block_ids:
                info = self.info(block_ids[-1])
                if info.length < size and info.owners < 2:
                    rows.append(row)
                    infos.append(info)
                    continue
            others.append(row)

        if rows:
            idx_t = index_tensor(rows, self.kv.device)
            blk_t = index_tensor([info.block_index for info in infos], self.kv.device)
            pos_t = index_tensor([info.length for info in infos], self.kv.device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for info in infos:
                info.length += 1

        for row in others:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])
