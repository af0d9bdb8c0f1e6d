"""lesson: 059
verdict: wrong
cause: books-wrong
shows: cpu
The new block's start is the length of the full block, without that block's own start. For a session's second block that is right, from the third on every block says that it begins at block_size.
The tokens are right, the description of the blocks is not.
"""
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        batch_idx = []
        infos = []
        copies = []
        for b, block_ids in enumerate(block_ids_list):
            if block_ids:
                info = kv.info(block_ids[-1])
                if info.length == kv.block_size:
                    block_ids.append(kv.allocate_block(layer_idx, info.length))
                    info = kv.info(block_ids[-1])
            else:
                block_ids.append(kv.allocate_block(layer_idx))
                info = kv.info(block_ids[-1])

            if info.owners > 1:
                copies.append(b)
            else:
                batch_idx.append(b)
                infos.append(info)

        if batch_idx:
            idx_t = index_tensor(batch_idx, kv.device)
            blk_t = index_tensor([info.block_index for info in infos], kv.device)
            pos_t = index_tensor([info.length for info in infos], kv.device)
            kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for info in infos:
                info.length += 1

        for b in copies:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
