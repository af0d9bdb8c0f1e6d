"""lesson: 060
verdict: wrong
cause: books-wrong
shows: cpu
Counts the token in the scan, before it is known whether the block is shared. A shared block grows for its other
owner too, and its copy is one too long.
"""

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.kv.buffers import index_tensor
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """Put the new token's K and V into the cache."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        todo: list[tuple[int, KVBlockInfo, int]] = []
        shared: list[int] = []
        for b, block_ids in enumerate(block_ids_list):
            if not block_ids or self.kv.info(block_ids[-1]).length == self.kv.block_size:
                start = len(block_ids) * self.kv.block_size
                block_ids.append(self.kv.allocate_block(layer_idx, start))
            info = self.kv.info(block_ids[-1])
            slot = info.length
            info.length += 1
            if info.owners == 1:
                todo.append((b, info, slot))
            else:
                shared.append(b)
        if todo:
            self.write(layer_idx, todo, key_new, value_new)
        for b in shared:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(
        self, layer_idx: int, todo: list[tuple[int, KVBlockInfo, int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        device = self.kv.device
        blk_t = index_tensor([info.block_index for _, info, _ in todo], device)
        slots = [slot for _, _, slot in todo]
        where = slots[0] if len(set(slots)) == 1 else index_tensor(slots, device)
        if len(todo) < len(key_new):
            rows = index_tensor([b for b, _, _ in todo], device)
            key_new, value_new = key_new.index_select(0, rows), value_new.index_select(0, rows)
        self.kv.k_layers[layer_idx][blk_t, :, where] = key_new
        self.kv.v_layers[layer_idx][blk_t, :, where] = value_new
