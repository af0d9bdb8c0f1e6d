"""lesson: 060
verdict: right
cause: right
shows: cpu
Terse; a single index tensor says block and slot at once: the number of the slot in the layer, which for head h is a row of the layer seen as
rows of D. There are never positions to send, constant or not.
"""
from collections.abc import Sequence

import torch
from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession



class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv, self.S = kv, kv.block_size
        _, self.H, _, self.D = kv.k_layers[0].shape
        self.heads = torch.arange(self.H, device=kv.device) * self.S  # from one head to the next

    def __call__(
        self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]
    ) -> None:
        for l in range(self.kv.num_layers):
            ids = [s.block_ids_per_layer[l] for s in sessions]
            self.append_token_batch(l, ids, keys[l], values[l])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        kv, S = self.kv, self.S
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
            rows = index_tensor(first, kv.device)[:, None] + self.heads  # [B, H]
            k, v = key_new, value_new
            if rest:
                idx = index_tensor(own, kv.device)
                k, v = k.index_select(0, idx), v.index_select(0, idx)
            kv.k_layers[layer_idx].view(-1, self.D)[rows] = k
            kv.v_layers[layer_idx].view(-1, self.D)[rows] = v
            for b in own:
                last[b].length += 1
        for b in rest:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
