"""lesson: 060
verdict: wrong
cause: not-own-work
shows: cpu
The scan is its own, but the write, which the lesson is about, is done by the course's part of this lesson.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

import rosecourse as rc
from rosecourse.lessons import l035_blocks
from rosecourse.models.shape import Model


class MyKVAppend:
    """Sorts the batch into those that can be written together and those that have to be copied."""

    def __init__(self, model: Model, kv: l035_blocks.KVBlockManager, config: rc.EngineConfig) -> None:
        self.kv = kv
        self._writer = rc.lesson("060").after.kv_append(model, kv, config)

    def __call__(self, sessions: Sequence[rc.InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        kv = self.kv
        together: dict[int, l035_blocks.KVBlockInfo] = {}
        for b, block_ids in enumerate(block_ids_list):
            last = kv.info(block_ids[-1]) if block_ids else None
            if last is None or last.length == kv.block_size:
                block_ids.append(kv.allocate_block(layer_idx, last.start + last.length if last else 0))
                last = kv.info(block_ids[-1])
            if last.owners == 1:
                together[b] = last
        if together:
            self._writer.write(layer_idx, [*together], [*together.values()], key_new, value_new)
            for info in together.values():
                info.length += 1
        for b in range(len(block_ids_list)):
            if b not in together:
                kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
