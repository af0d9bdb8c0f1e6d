"""lesson: 038
verdict: wrong
cause: state-kept
shows: cpu
Remembers which blocks were found to have one owner, to save the question: after a fork the block is shared, and the
part still takes it for private.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.private = set()

    def mine(self, block_id, info):
        if info.length == 0 or (info.owners > 1 and block_id not in self.private):
            return False
        self.private.add(block_id)
        return True

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, infos, slow = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is not None and info.length < self.kv.block_size and self.mine(block_ids[-1], info):
                fast.append(b)
                infos.append(info)
            else:
                if info is not None:
                    self.private.discard(block_ids[-1])
                slow.append(b)
        if fast:
            idx_t = index_tensor(fast, self.kv.device)
            blk_t = index_tensor([info.block_index for info in infos], self.kv.device)
            pos_t = index_tensor([info.length for info in infos], self.kv.device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for info in infos:
                info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
