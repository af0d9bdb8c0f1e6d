"""lesson: 038
verdict: right
cause: right
shows: cpu
Addresses of all numbers are computed on the device from two short lists, and one `scatter_` a cache puts them there.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


def addresses(blocks: Tensor, slots: Tensor, offsets: Tensor, block_elements: int, dim: int) -> Tensor:
    """int64 [n * H * D]: where each number of the new rows lies in a flat layer."""
    return ((blocks * block_elements + slots * dim)[:, None] + offsets).reshape(-1)


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        heads, self.dim = model.shape.num_kv_heads, model.shape.head_dim
        head = torch.arange(heads, device=kv.device)[:, None] * (kv.block_size * self.dim)
        self.offsets = (head + torch.arange(self.dim, device=kv.device)).flatten()  # [H * D], within a block, slot 0
        self.block_elements = heads * kv.block_size * self.dim

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def is_special(self, block_ids: list[int]) -> bool:
        if not block_ids:
            return True
        info = self.kv.info(block_ids[-1])
        return info.owners > 1 or info.length == self.kv.block_size

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        special = [self.is_special(block_ids) for block_ids in block_ids_list]
        fast = [b for b, yes in enumerate(special) if not yes]
        infos: list[KVBlockInfo] = [self.kv.info(block_ids_list[b][-1]) for b in fast]
        if infos:
            rows = index_tensor(fast, self.kv.device)
            blocks = index_tensor([info.block_index for info in infos], self.kv.device)
            slots = index_tensor([info.length for info in infos], self.kv.device)
            where = addresses(blocks, slots, self.offsets, self.block_elements, self.dim)
            self.kv.k_layers[layer_idx].view(-1).scatter_(0, where, key_new[rows].flatten())
            self.kv.v_layers[layer_idx].view(-1).scatter_(0, where, value_new[rows].flatten())
        for info in infos:
            info.length += 1
        for b, yes in enumerate(special):
            if yes:
                self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
