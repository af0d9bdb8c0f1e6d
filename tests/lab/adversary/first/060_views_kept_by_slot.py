"""lesson: 060
verdict: wrong
cause: wrong-layer
shows: cpu
Keeps the views of a slot, `layer[:, :, slot]`, in a dictionary, and forgets that the layer belongs to the key. The
first layer's views serve all layers.
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
        self.at_slot: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

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
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        blk_t = index_tensor([info.block_index for info in infos], self.kv.device)
        if len(batch_idx) != len(key_new):
            idx_t = index_tensor(batch_idx, self.kv.device)
            key_new, value_new = key_new.index_select(0, idx_t), value_new.index_select(0, idx_t)
        first = infos[0].length
        if any(info.length != first for info in infos):
            pos_t = index_tensor([info.length for info in infos], self.kv.device)
            k_layer[blk_t, :, pos_t], v_layer[blk_t, :, pos_t] = key_new, value_new
            return
        if first not in self.at_slot:
            self.at_slot[first] = k_layer[:, :, first], v_layer[:, :, first]
        k_slot, v_slot = self.at_slot[first]
        k_slot[blk_t] = key_new
        v_slot[blk_t] = value_new
