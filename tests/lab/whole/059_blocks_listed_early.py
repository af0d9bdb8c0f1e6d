# wrong, which a CPU can show
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
        for ids in block_ids_list:
            if not ids:
                ids.append(kv.allocate_block(layer_idx))
        where = [kv.block_index(ids[-1]) for ids in block_ids_list]
        batch, slow = ([], [])
        for b, ids in enumerate(block_ids_list):
            info = kv.info(ids[-1])
            if info.length == kv.block_size:
                ids.append(kv.allocate_block(layer_idx, info.start + info.length))
                info = kv.info(ids[-1])
            if info.owners > 1:
                slow.append(b)
            else:
                batch.append((b, where[b], info))
        if batch:
            idx_t = index_tensor([b for b, _, _ in batch], kv.device)
            blk_t = index_tensor([block for _, block, _ in batch], kv.device)
            pos_t = index_tensor([info.length for _, _, info in batch], kv.device)
            kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for _, _, info in batch:
                info.length += 1
        for b in slow:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
