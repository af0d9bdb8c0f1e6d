"""lesson: 059
verdict: wrong
cause: books-wrong
shows: cpu
Makes its own KVBlockInfo for the block that it begins, and counts the first token there. The manager's stays at length
0, so that the second token of the block goes over the first.
"""

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """Full blocks roll over in the scan."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        fast: list[tuple[int, KVBlockInfo]] = []
        copies: list[int] = []
        for b, block_ids in enumerate(block_ids_list):
            if not block_ids:
                info = self.begin_block(layer_idx, block_ids, 0)
            else:
                info = self.kv.info(block_ids[-1])
                if info.length == self.kv.block_size:
                    info = self.begin_block(layer_idx, block_ids, info.start + info.length)
            if info.owners == 1:
                fast.append((b, info))
            else:
                copies.append(b)
        if fast:
            self.write(layer_idx, [b for b, _ in fast], [info for _, info in fast], key_new, value_new)
        for _, info in fast:
            info.length += 1
        for b in copies:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def begin_block(self, layer_idx: int, block_ids: list[int], start: int) -> KVBlockInfo:
        block_id = self.kv.allocate_block(layer_idx, start)
        block_ids.append(block_id)
        return KVBlockInfo(layer=layer_idx, block_index=self.kv.block_index(block_id), start=start)

    def write(
        self, layer_idx: int, batch_idx: list[int], infos: list[KVBlockInfo], key_new: Tensor, value_new: Tensor
    ) -> None:
        device = self.kv.device
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        idx_t = index_tensor(batch_idx, device)
        blk_t = index_tensor([info.block_index for info in infos], device)
        pos_t = index_tensor([info.length for info in infos], device)
        k_layer[blk_t, :, pos_t] = key_new.index_select(0, idx_t)
        v_layer[blk_t, :, pos_t] = value_new.index_select(0, idx_t)
