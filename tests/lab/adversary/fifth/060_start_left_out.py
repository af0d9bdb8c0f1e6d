"""lesson: 060
verdict: wrong
cause: books-wrong
shows: cpu
A new block is taken without its start, so that it says it begins at position 0, whichever block of the session it is. K and V and the tokens are
right, the books (start, and the length of the session) are not.
"""
from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """Put the new token's K and V into the cache."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(
        self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]
    ) -> None:
        """keys, values: for each layer [B, H, D]."""
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def next_block(self, layer_idx: int, block_ids: list[int]) -> KVBlockInfo:
        """The block that the next token of a list goes to; a new one if the last is full."""
        if block_ids:
            info = self.kv.info(block_ids[-1])
            if info.length < self.kv.block_size:
                return info
        new_id = self.kv.allocate_block(layer_idx)
        block_ids.append(new_id)
        return self.kv.info(new_id)

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        infos = [self.next_block(layer_idx, block_ids) for block_ids in block_ids_list]
        fast = [b for b, info in enumerate(infos) if info.owners == 1]
        slow = [b for b, info in enumerate(infos) if info.owners > 1]
        if fast:
            of_fast = [infos[b] for b in fast]
            self.write(layer_idx, fast, of_fast, key_new, value_new)
            for info in of_fast:
                info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(
        self,
        layer_idx: int,
        batch_idx: list[int],
        infos: list[KVBlockInfo],
        key_new: Tensor,
        value_new: Tensor,
    ) -> None:
        device = self.kv.device
        if len(batch_idx) != len(key_new):
            idx_t = index_tensor(batch_idx, device)
            key_new, value_new = key_new.index_select(0, idx_t), value_new.index_select(0, idx_t)
        blk_t = index_tensor([info.block_index for info in infos], device)
        positions = {info.length for info in infos}
        if len(positions) == 1:
            slots = positions.pop()
        else:
            slots = index_tensor([info.length for info in infos], device)
        self.kv.k_layers[layer_idx][blk_t, :, slots] = key_new
        self.kv.v_layers[layer_idx][blk_t, :, slots] = value_new
