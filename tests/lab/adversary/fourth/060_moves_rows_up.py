"""lesson: 060
verdict: wrong
cause: inputs-changed
shows: cpu
Where part of the batch is written, it moves these rows to the front of key_new and value_new, in place, to save the
selection's memory. The rows that need a copy are appended before, so that the cache is right; the caller's tensors are
not what they were.
"""

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """Nothing is allocated for K and V: what is to be written is brought together where it lies."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        """keys, values: for each layer [B, H, D]."""
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        fast_batch_idx, fast_infos = [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                start = info.start + info.length if info else 0
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                info = self.kv.info(block_ids[-1])
            if info.owners > 1:
                self.kv.append_token(layer_idx, block_ids, key_new[b], value_new[b])  # before the rows move
                continue
            fast_batch_idx.append(b)
            fast_infos.append(info)
        if fast_batch_idx:
            self.write(layer_idx, fast_batch_idx, fast_infos, key_new, value_new)
            for info in fast_infos:
                info.length += 1

    def write(
        self, layer_idx: int, batch_idx: list[int], infos: list[KVBlockInfo], key_new: Tensor, value_new: Tensor
    ) -> None:
        for to, b in enumerate(batch_idx):
            if to != b:  # ascending: nothing is overwritten that is still needed
                key_new[to] = key_new[b]
                value_new[to] = value_new[b]
        n = len(batch_idx)
        positions = {info.length for info in infos}
        blk_t = index_tensor([info.block_index for info in infos], self.kv.device)
        slots = (
            positions.pop()
            if len(positions) == 1
            else index_tensor([info.length for info in infos], self.kv.device)
        )
        self.kv.k_layers[layer_idx][blk_t, :, slots] = key_new[:n]
        self.kv.v_layers[layer_idx][blk_t, :, slots] = value_new[:n]
