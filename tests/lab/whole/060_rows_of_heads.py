# right
import torch

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv, self.S = (kv, kv.block_size)
        _, self.H, _, self.D = kv.k_layers[0].shape
        self.heads = torch.arange(self.H, device=kv.device) * self.S

    def __call__(self, sessions, keys, values):
        for l in range(self.kv.num_layers):
            ids = [s.block_ids_per_layer[l] for s in sessions]
            self.append_token_batch(l, ids, keys[l], values[l])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv, S = (self.kv, self.S)
        for ids in block_ids_list:
            n = kv.info(ids[-1]).length if ids else S
            if n == S:
                start = kv.info(ids[-1]).start + S if ids else 0
                ids.append(kv.allocate_block(layer_idx, start))
        last = [kv.info(ids[-1]) for ids in block_ids_list]
        own = [b for b, i in enumerate(last) if i.owners == 1]
        rest = [b for b, i in enumerate(last) if i.owners > 1]
        if own:
            first = [last[b].block_index * self.H * S + last[b].length for b in own]
            rows = index_tensor(first, kv.device)[:, None] + self.heads
            k, v = (key_new, value_new)
            if rest:
                idx = index_tensor(own, kv.device)
                k, v = (k.index_select(0, idx), v.index_select(0, idx))
            kv.k_layers[layer_idx].view(-1, self.D)[rows] = k
            kv.v_layers[layer_idx].view(-1, self.D)[rows] = v
            for b in own:
                last[b].length += 1
        for b in rest:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
