"""lesson: 038
verdict: wrong
cause: size-limit
shows: cpu
"A block holds 64 tokens" is a constant of the module: right for block size 64, and for any other one a full block goes
into the batch.
"""

from rosecourse.kv.buffers import index_tensor

BLOCK_SIZE = 64


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        batch, infos = [], []
        alone = []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info and info.owners == 1 and info.length < BLOCK_SIZE:
                batch.append(b)
                infos.append(info)
            else:
                alone.append(b)
        if batch:
            device = self.kv.device
            idx_t = index_tensor(batch, device)
            blk_t = index_tensor([info.block_index for info in infos], device)
            pos_t = index_tensor([info.length for info in infos], device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for info in infos:
                info.length += 1
        for b in alone:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
