"""lesson: 038
verdict: wrong
cause: raises
shows: cpu
Has no guard for an empty batch: in a step in which nobody is simple, stacking the rows of no session raises.
"""

import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        ks, vs, infos, slow = [], [], [], []
        for ids, k, v in zip(block_ids_list, key_new, value_new, strict=True):
            info = self.kv.info(ids[-1]) if ids else None
            if info is None or info.length == self.kv.block_size or info.owners > 1:
                slow.append((ids, k, v))
                continue
            ks.append(k)
            vs.append(v)
            infos.append(info)
        blk = torch.tensor([i.block_index for i in infos], device=self.kv.device)
        pos = torch.tensor([i.length for i in infos], device=self.kv.device)
        self.kv.k_layers[layer_idx][blk, :, pos] = torch.stack(ks)
        self.kv.v_layers[layer_idx][blk, :, pos] = torch.stack(vs)
        for info in infos:
            info.length += 1
        for ids, k, v in slow:
            self.kv.append_token(layer_idx, ids, k, v)
