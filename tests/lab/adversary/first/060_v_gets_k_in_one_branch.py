"""lesson: 060
verdict: wrong
cause: k-v-swapped
shows: cpu
Four branches written out. In the one for a part of the batch at a constant position the V line was copied from the
K line: V receives the selected keys.
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
        dev = self.kv.device
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        whole = len(batch_idx) == key_new.shape[0]
        lengths = [info.length for info in infos]
        level = min(lengths) == max(lengths)
        blk = index_tensor([info.block_index for info in infos], dev)
        if whole and level:
            k_layer[blk, :, lengths[0]] = key_new
            v_layer[blk, :, lengths[0]] = value_new
        elif whole:
            pos = index_tensor(lengths, dev)
            k_layer[blk, :, pos] = key_new
            v_layer[blk, :, pos] = value_new
        elif level:
            idx = index_tensor(batch_idx, dev)
            k_layer[blk, :, lengths[0]] = key_new.index_select(0, idx)
            v_layer[blk, :, lengths[0]] = key_new.index_select(0, idx)
        else:
            idx, pos = index_tensor(batch_idx, dev), index_tensor(lengths, dev)
            k_layer[blk, :, pos] = key_new.index_select(0, idx)
            v_layer[blk, :, pos] = value_new.index_select(0, idx)
