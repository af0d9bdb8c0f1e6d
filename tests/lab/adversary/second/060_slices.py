"""lesson: 060
verdict: right
cause: right
shows: cpu
Rows in one run are a slice, not a selection; a constant slot is a view, into which `index_copy_` puts the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


@dataclass(slots=True)
class Together:
    """The sessions that are written together: their rows of the batch and their last blocks."""

    rows: list[int] = field(default_factory=list)
    blocks: list[KVBlockInfo] = field(default_factory=list)

    @property
    def one_run(self) -> bool:
        """Whether the rows follow one another: they ascend, so that the first and the last one tell."""
        return self.rows[-1] - self.rows[0] == len(self.rows) - 1

    @property
    def slot(self) -> int | None:
        """The slot at which all of them stand, or None."""
        first, *others = self.blocks
        return None if any(block.length != first.length for block in others) else first.length


class MyKVAppend:
    """Puts the new token's K and V into the cache, with no index tensor but those that say something."""

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
        """Append one token to each of B sessions in one layer; key_new, value_new: [B, H, D]."""
        together, alone = Together(), []
        for row, block_ids in enumerate(block_ids_list):
            block = self.last_block(layer_idx, block_ids)
            if block.owners > 1:
                alone.append(row)
            else:
                together.rows.append(row)
                together.blocks.append(block)
        if together.rows:
            self.write(layer_idx, together, key_new, value_new)
        for block in together.blocks:
            block.length += 1
        for row in alone:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])

    def last_block(self, layer_idx: int, block_ids: list[int]) -> KVBlockInfo:
        """The block with the next slot, begun here if need be; it may be shared."""
        if not block_ids:
            block_ids.append(self.kv.allocate_block(layer_idx))
        block = self.kv.info(block_ids[-1])
        if block.length == self.kv.block_size:
            block_ids.append(self.kv.allocate_block(layer_idx, block.start + block.length))
            block = self.kv.info(block_ids[-1])
        return block

    def write(self, layer_idx: int, together: Together, key_new: Tensor, value_new: Tensor) -> None:
        device, slot = self.kv.device, together.slot
        if together.one_run:
            run = slice(together.rows[0], together.rows[-1] + 1)
            key_new, value_new = key_new[run], value_new[run]
        else:
            rows = index_tensor(together.rows, device)
            key_new, value_new = key_new.index_select(0, rows), value_new.index_select(0, rows)
        blocks = index_tensor([block.block_index for block in together.blocks], device)
        if slot is not None:
            self.kv.k_layers[layer_idx].select(2, slot).index_copy_(0, blocks, key_new)
            self.kv.v_layers[layer_idx].select(2, slot).index_copy_(0, blocks, value_new)
        else:
            slots = index_tensor([block.length for block in together.blocks], device)
            self.kv.write_tokens(layer_idx, blocks, slots, key_new, value_new)
