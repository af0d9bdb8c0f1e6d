"""lesson: 060
verdict: wrong
cause: cow-missed
shows: cpu
Whether a block is shared is asked of `cached`, which says that the prefix cache knows the block, and not of `owners`. The last block
of a fork is not cached, so it is never copied, and both sessions write into the same slot of it.
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

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        together: dict[int, KVBlockInfo] = {}  # row of the batch -> the block that it goes to
        by_copy: list[int] = []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                start = info.start + info.length if info else 0
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                together[b] = self.kv.info(block_ids[-1])
            elif info.cached:  # not ours alone: a copy
                by_copy.append(b)
            else:
                together[b] = info
        filled = [(info, info.length + 1) for info in together.values()]
        if together:
            self.write(layer_idx, list(together), list(together.values()), key_new, value_new)
        for info, length in filled:
            info.length = length
        for b in by_copy:
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
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        blk_t = index_tensor([info.block_index for info in infos], device)
        positions = [info.length for info in infos]
        same = min(positions) == max(positions)
        slots = positions[0] if same else index_tensor(positions, device)
        if len(batch_idx) == len(key_new):
            k_layer[blk_t, :, slots] = key_new
            v_layer[blk_t, :, slots] = value_new
        else:
            idx_t = index_tensor(batch_idx, device)
            k_layer[blk_t, :, slots] = key_new.index_select(0, idx_t)
            v_layer[blk_t, :, slots] = value_new.index_select(0, idx_t)
