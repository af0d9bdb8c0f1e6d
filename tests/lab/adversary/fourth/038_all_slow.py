"""lesson: 038
verdict: wrong
cause: raises
shows: cpu
No guard for a layer without a simple session: an empty list becomes a float tensor, which `index_select` refuses (all roll over in one step).
"""

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for i in range(self.kv.num_layers):
            self.append_token_batch(i, [s.block_ids_per_layer[i] for s in sessions], keys[i], values[i])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        last: list[KVBlockInfo | None] = [self.kv.info(ids[-1]) if ids else None for ids in block_ids_list]
        simple = [x is not None and x.length < self.kv.block_size and x.owners < 2 for x in last]
        batch = [b for b, yes in enumerate(simple) if yes]

        idx = index_tensor(batch, self.kv.device)
        blk = index_tensor([last[b].block_index for b in batch], self.kv.device)
        pos = index_tensor([last[b].length for b in batch], self.kv.device)
        self.kv.k_layers[layer_idx][blk, :, pos] = key_new.index_select(0, idx)
        self.kv.v_layers[layer_idx][blk, :, pos] = value_new.index_select(0, idx)
        for b in batch:
            last[b].length += 1

        for b, yes in enumerate(simple):
            if not yes:
                self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
