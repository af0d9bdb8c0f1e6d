"""lesson: 060
verdict: wrong
cause: values-changed
shows: cpu
With differing positions the rows are brought from [n, H, D] to [H, n, D] by `reshape`, which does not exchange the two
dimensions: the heads of different sessions are mixed. A batch of one, and a constant position, are right.
"""

import torch

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.k_by_head = [layer.transpose(0, 1) for layer in kv.k_layers]  # [H, num_blocks, block_size, D], views
        self.v_by_head = [layer.transpose(0, 1) for layer in kv.v_layers]

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        todo, later = [], []
        for b, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if ids else None
            if info is None or info.length == self.kv.block_size:
                ids.append(self.kv.allocate_block(layer_idx, info.start + info.length if info else 0))
                info = self.kv.info(ids[-1])
            if info.owners == 1:
                todo.append((b, info))
            else:
                later.append(b)
        if todo:
            batch_idx, infos = zip(*todo)
            self.write(layer_idx, list(batch_idx), infos, key_new, value_new)
            for info in infos:
                info.length += 1
        for b in later:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        n, heads, dim = len(batch_idx), *key_new.shape[1:]
        if n != len(key_new):
            idx_t = index_tensor(batch_idx, self.kv.device)
            key_new, value_new = (torch.index_select(new, 0, idx_t) for new in (key_new, value_new))
        blk_t = index_tensor([info.block_index for info in infos], self.kv.device)
        slots = {info.length for info in infos}
        if len(slots) == 1:
            slot = slots.pop()
            self.kv.k_layers[layer_idx][blk_t, :, slot] = key_new
            self.kv.v_layers[layer_idx][blk_t, :, slot] = value_new
            return
        pos_t = index_tensor([info.length for info in infos], self.kv.device)
        # heads in front: then the two indices stand side by side, and nothing is permuted in the store
        self.k_by_head[layer_idx][:, blk_t, pos_t] = key_new.reshape(heads, n, dim)
        self.v_by_head[layer_idx][:, blk_t, pos_t] = value_new.reshape(heads, n, dim)
