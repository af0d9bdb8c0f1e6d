"""lesson: 059
verdict: wrong
cause: goal-missed
shows: cpu
`append_token` is not called for a full block any more, but its work is done here under another name: each session that
begins a block is written alone, with two stores of its own, so the boundary step is still a loop over the batch.
"""

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """A full block rolls over in the scan; its first token goes straight into slot 0."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        batch_idx, infos, copies = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                start = info.start + info.length if info else 0
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                new = self.kv.info(block_ids[-1])
                k_layer[new.block_index, :, 0] = key_new[b]
                v_layer[new.block_index, :, 0] = value_new[b]
                new.length = 1
            elif info.owners > 1:
                copies.append(b)
            else:
                batch_idx.append(b)
                infos.append(info)
        if batch_idx:
            idx_t = index_tensor(batch_idx, self.kv.device)
            blk_t = index_tensor([info.block_index for info in infos], self.kv.device)
            pos_t = index_tensor([info.length for info in infos], self.kv.device)
            k_layer[blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            v_layer[blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for info in infos:
                info.length += 1
        for b in copies:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
