"""lesson: 060
verdict: wrong
cause: cow-partial
shows: cpu
Shared blocks are copied by the part itself, with cache[new, :length] = cache[old, :length]. The second dimension is that of the heads: only the
first `length` heads are copied, so the copy lacks heads as long as the block holds fewer tokens than there are heads.
"""
from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """Copies are made in the scan, so that the batch is whole in every step and never has
    to be selected from."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(
        self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]
    ) -> None:
        """keys, values: for each layer [B, H, D]."""
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        infos = [self.place(layer_idx, block_ids) for block_ids in block_ids_list]
        self.write(layer_idx, infos, key_new, value_new)
        for info in infos:
            info.length += 1

    def place(self, layer_idx: int, block_ids: list[int]) -> KVBlockInfo:
        """The session's own block, in which there is room for its next token."""
        if not block_ids:
            block_ids.append(self.kv.allocate_block(layer_idx, 0))
            return self.kv.info(block_ids[-1])
        info = self.kv.info(block_ids[-1])
        if info.length == self.kv.block_size:
            block_ids.append(self.kv.allocate_block(layer_idx, info.start + info.length))
        elif info.owners > 1:
            block_ids[-1] = self.private_copy(layer_idx, info)
        return self.kv.info(block_ids[-1])

    def private_copy(self, layer_idx: int, old: KVBlockInfo) -> int:
        copy_id = self.kv.allocate_block(layer_idx, old.start)
        new = self.kv.info(copy_id)
        for cache in (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]):
            cache[new.block_index, : old.length] = cache[old.block_index, : old.length]
        new.length = old.length
        old.owners -= 1
        return copy_id

    def write(
        self, layer_idx: int, infos: list[KVBlockInfo], key_new: Tensor, value_new: Tensor
    ) -> None:
        device = self.kv.device
        blk_t = index_tensor([info.block_index for info in infos], device)
        positions = [info.length for info in infos]
        if len(set(positions)) == 1:
            slots = positions[0]
        else:
            slots = index_tensor(positions, device)
        self.kv.k_layers[layer_idx][blk_t, :, slots] = key_new
        self.kv.v_layers[layer_idx][blk_t, :, slots] = value_new
