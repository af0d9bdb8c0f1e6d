"""lesson: 038
verdict: wrong
cause: old-tokens-changed
shows: cpu
Rewrites whole blocks through a mask of slots, which is `<= slot`, as in a causal mask: all earlier slots get the new token too.
"""

import torch

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """The last blocks are taken as [n, H, block_size, D], the new token is put in with `where`, and they go back."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.slots = torch.arange(kv.block_size, device=kv.device)

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        infos = [self.kv.info(ids[-1]) if ids else None for ids in block_ids_list]
        free = [i is not None and i.length < self.kv.block_size and i.owners < 2 for i in infos]
        fast = [b for b, yes in enumerate(free) if yes]
        if fast:
            idx_t = index_tensor(fast, self.kv.device)
            blk_t = index_tensor([infos[b].block_index for b in fast], self.kv.device)
            pos_t = index_tensor([infos[b].length for b in fast], self.kv.device)
            mask = (self.slots <= pos_t[:, None])[:, None, :, None]  # [n, 1, block_size, 1]
            for cache, new in ((self.kv.k_layers, key_new), (self.kv.v_layers, value_new)):
                layer = cache[layer_idx]
                layer[blk_t] = torch.where(mask, new[idx_t].unsqueeze(2), layer[blk_t])
            for b in fast:
                infos[b].length += 1
        for b, yes in enumerate(free):
            if not yes:
                self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
