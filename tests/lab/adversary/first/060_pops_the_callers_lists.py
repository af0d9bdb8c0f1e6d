"""lesson: 060
verdict: wrong
cause: inputs-changed
shows: cpu
Walks over the layers by popping the first K and V from the lists that it was given: the caller's lists are empty
afterwards.
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
        tables = zip(*(session.block_ids_per_layer for session in sessions), strict=True)
        for layer_idx, block_ids_list in enumerate(tables):
            # popped, so that a layer's K and V can be freed as soon as they are written
            self.append_token_batch(layer_idx, list(block_ids_list), keys.pop(0), values.pop(0))

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        fast_batch_idx, fast_infos, slow_batch_idx = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                start = info.start + info.length if info else 0
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                info = self.kv.info(block_ids[-1])
            if info.owners > 1:
                slow_batch_idx.append(b)
                continue
            fast_batch_idx.append(b)
            fast_infos.append(info)
        if fast_batch_idx:
            self.write(layer_idx, fast_batch_idx, fast_infos, key_new, value_new)
            for info in fast_infos:
                info.length += 1
        for b in slow_batch_idx:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(
        self, layer_idx: int, batch_idx: list[int], infos: list[KVBlockInfo], key_new: Tensor, value_new: Tensor
    ) -> None:
        device = self.kv.device
        whole = len(batch_idx) == len(key_new)
        idx_t = None if whole else index_tensor(batch_idx, device)
        positions = [info.length for info in infos]
        slots = positions[0] if set(positions) == {positions[0]} else index_tensor(positions, device)
        blk_t = index_tensor([info.block_index for info in infos], device)
        self.kv.k_layers[layer_idx][blk_t, :, slots] = key_new if whole else key_new.index_select(0, idx_t)
        self.kv.v_layers[layer_idx][blk_t, :, slots] = value_new if whole else value_new.index_select(0, idx_t)
