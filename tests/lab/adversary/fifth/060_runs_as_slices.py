"""lesson: 060
verdict: right
cause: right
shows: cpu
Where the written rows of the batch lie side by side, they are taken as a slice, which is a view; only a batch with gaps is selected from.
"""
from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """A selection is only made where the rows have gaps between them."""

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
        """Append one token to each of B sessions in one layer; key_new, value_new: [B, H, D]."""
        fast_batch_idx, fast_infos, slow_batch_idx = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                # A full block is never written again: it need
                # not be copied, even if others own it too.
                start = info.start + info.length if info else 0
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                info = self.kv.info(block_ids[-1])
            if info.owners > 1:
                slow_batch_idx.append(b)  # a copy
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
        self,
        layer_idx: int,
        batch_idx: list[int],
        infos: list[KVBlockInfo],
        key_new: Tensor,
        value_new: Tensor,
    ) -> None:
        device = self.kv.device
        first, last = batch_idx[0], batch_idx[-1]
        if last - first + 1 == len(batch_idx):  # ascending, so without a gap; the whole batch too
            keys, values = key_new[first : last + 1], value_new[first : last + 1]
        else:
            rows = index_tensor(batch_idx, device)
            keys, values = key_new[rows], value_new[rows]
        blocks = index_tensor([info.block_index for info in infos], device)
        slots = [info.length for info in infos]
        if min(slots) == max(slots):
            self.kv.k_layers[layer_idx].select(2, slots[0]).index_copy_(0, blocks, keys)
            self.kv.v_layers[layer_idx].select(2, slots[0]).index_copy_(0, blocks, values)
        else:
            at = (blocks, index_tensor(slots, device))
            self.kv.k_layers[layer_idx].transpose(1, 2)[at] = keys
            self.kv.v_layers[layer_idx].transpose(1, 2)[at] = values
