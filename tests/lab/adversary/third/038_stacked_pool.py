"""lesson: 038
verdict: wrong
cause: nothing-written
shows: cpu
The stores go into torch.stack(kv.k_layers), which is a copy of the cache; only what append_token writes is ever read.
"""
import torch

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """All layers in one tensor [L, N, H, S, D], so that a layer is only one more index."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.k_pool = torch.stack(kv.k_layers)
        self.v_pool = torch.stack(kv.v_layers)

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            ids = [s.block_ids_per_layer[layer_idx] for s in sessions]
            self.append_token_batch(layer_idx, ids, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, slow = [], []
        for b, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if ids else None
            if info is not None and info.owners == 1 and info.length < self.kv.block_size:
                fast.append((b, info))
            else:
                slow.append(b)
        if fast:
            rows, infos = zip(*fast)
            dev = self.kv.device
            idx = index_tensor(list(rows), dev)
            blk = index_tensor([i.block_index for i in infos], dev)
            pos = index_tensor([i.length for i in infos], dev)
            self.k_pool[layer_idx][blk, :, pos] = key_new.index_select(0, idx)
            self.v_pool[layer_idx][blk, :, pos] = value_new.index_select(0, idx)
            for info in infos:
                info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
