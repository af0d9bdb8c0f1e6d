"""lesson: 060
verdict: wrong
cause: goal-missed
shows: cpu
Asks for the owners before it asks whether the block is full. A full block that two sessions own goes the slow way,
so that the batch is not whole at a boundary and both selections are made again, for nothing: no block has to be
copied.
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
        fast: list[tuple[int, KVBlockInfo]] = []
        slow: list[int] = []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is not None and info.owners > 1:
                slow.append(b)
                continue
            if info is None or info.length == self.kv.block_size:
                start = 0 if info is None else info.start + info.length
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                info = self.kv.info(block_ids[-1])
            fast.append((b, info))
        if fast:
            self.write(layer_idx, fast, key_new, value_new)
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx: int, fast: list[tuple[int, KVBlockInfo]], key_new: Tensor, value_new: Tensor) -> None:
        device = self.kv.device
        rows, infos = zip(*fast, strict=True)
        if len(rows) != len(key_new):
            rows_t = index_tensor(rows, device)
            key_new, value_new = key_new.index_select(0, rows_t), value_new.index_select(0, rows_t)
        lengths = {info.length for info in infos}
        slot = lengths.pop() if len(lengths) == 1 else index_tensor([info.length for info in infos], device)
        blk_t = index_tensor([info.block_index for info in infos], device)
        self.kv.k_layers[layer_idx][blk_t, :, slot] = key_new
        self.kv.v_layers[layer_idx][blk_t, :, slot] = value_new
        for info in infos:
            info.length += 1
