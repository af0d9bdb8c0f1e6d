"""lesson: 038
verdict: wrong
cause: values-changed
shows: cpu
The rows go through a staging tensor that is made once, always in float16: a float32 cache gets rounded K and V.
"""

from __future__ import annotations

import torch

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """One store per cache; the rows to be stored are collected in a tensor that lives as long as the engine."""

    def __init__(self, model, kv, config):
        self.kv = kv
        heads, dim = model.shape.num_kv_heads, model.shape.head_dim
        # [2, max_batch, H, D]: 0 is K, 1 is V
        self.stage = torch.zeros(2, config.max_batch_size, heads, dim, dtype=torch.float16, device=kv.device)

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            tables = [s.block_ids_per_layer[layer_idx] for s in sessions]
            self.append_token_batch(layer_idx, tables, keys[layer_idx], values[layer_idx])

    def _has_room(self, ids: list[int]) -> bool:
        if len(ids) == 0:
            return False
        info = self.kv.info(ids[-1])
        return info.length != self.kv.block_size and info.owners == 1

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        simple = [b for b, ids in enumerate(block_ids_list) if self._has_room(ids)]
        rest = [b for b, ids in enumerate(block_ids_list) if not self._has_room(ids)]
        if simple:
            infos = [self.kv.info(block_ids_list[b][-1]) for b in simple]
            where = index_tensor(simple, self.kv.device)
            n = len(simple)
            k_src, v_src = self.stage[0, :n], self.stage[1, :n]
            k_src.copy_(key_new.index_select(0, where))
            v_src.copy_(value_new.index_select(0, where))
            blk_t = index_tensor([info.block_index for info in infos], self.kv.device)
            pos_t = index_tensor([info.length for info in infos], self.kv.device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = k_src.to(self.kv.k_layers[layer_idx].dtype)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = v_src.to(self.kv.v_layers[layer_idx].dtype)
            for info in infos:
                info.length += 1
        for b in rest:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
