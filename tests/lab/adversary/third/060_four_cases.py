"""lesson: 060
verdict: right
cause: right
shows: cpu
The four combinations as a `match`: at one slot the layer is first narrowed by `select`, a view, and `index_copy_` puts
the rows to their blocks; else the slot stands beside the block in a transposed view.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rosecourse import EngineConfig, InferenceSession
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model


def put(cache: Tensor, blocks: Tensor, slots: int | Tensor, rows: Tensor) -> None:
    """rows [n, H, D] into blocks [n] of a layer [num_blocks, H, block_size, D]."""
    if isinstance(slots, int):
        cache.select(2, slots).index_copy_(0, blocks, rows)
    else:
        cache.transpose(1, 2).index_put_((blocks, slots), rows)


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        infos = [self.with_room(layer_idx, ids) for ids in block_ids_list]
        together = {b: info for b, info in enumerate(infos) if info.owners == 1}
        if together:
            self.write(layer_idx, together, key_new, value_new)
        for b in range(len(infos)):
            if b not in together:
                self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def with_room(self, layer_idx: int, ids: list[int]) -> KVBlockInfo:
        if not ids:
            ids.append(self.kv.allocate_block(layer_idx))
        elif (last := self.kv.info(ids[-1])).length == self.kv.block_size:
            ids.append(self.kv.allocate_block(layer_idx, last.start + last.length))
        return self.kv.info(ids[-1])

    def write(self, layer_idx: int, together: dict[int, KVBlockInfo], key_new: Tensor, value_new: Tensor) -> None:
        device, infos = self.kv.device, list(together.values())
        positions = [info.length for info in infos]
        blocks = index_tensor([info.block_index for info in infos], device)
        slots: int | Tensor = positions[0]
        match len(together) == len(key_new), positions.count(positions[0]) == len(positions):
            case True, True:
                pass
            case True, False:
                slots = index_tensor(positions, device)
            case False, True:
                chosen = index_tensor(list(together), device)
                key_new, value_new = key_new.index_select(0, chosen), value_new.index_select(0, chosen)
            case False, False:
                chosen, slots = index_tensor([list(together), positions], device)
                key_new, value_new = key_new.index_select(0, chosen), value_new.index_select(0, chosen)
        put(self.kv.k_layers[layer_idx], blocks, slots, key_new)
        put(self.kv.v_layers[layer_idx], blocks, slots, value_new)
        for info in infos:
            info.length += 1
