"""lesson: 059
verdict: right
cause: right
shows: both
Goes one step further than the lesson: shared blocks are copied in one store for all of them, before the tokens are
written, so that every session is in the batch and nothing is selected.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from rosecourse.kv.buffers import index_tensor
from rosecourse.lessons.l035_blocks import KVBlockManager


@dataclass
class Moves:
    """What one layer has to do in a step: copies (from, to) of block indices, then one token for each session."""

    sources: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)

    def run(self, kv: KVBlockManager, layer: int, news: tuple[Tensor, Tensor]) -> None:
        blocks, slots = index_tensor([self.blocks, self.slots], kv.device)
        pair = index_tensor([self.copies, self.sources], kv.device) if self.copies else None
        for cache, new in zip((kv.k_layers[layer], kv.v_layers[layer]), news, strict=True):
            if pair is not None:
                cache[pair[0]] = cache[pair[1]]  # the right side is a copy: read before anything is written
            cache[blocks, :, slots] = new


class MyKVAppend:
    def __init__(self, model, kv: KVBlockManager, config) -> None:
        self.kv = kv

    def __call__(self, sessions, keys, values) -> None:
        for layer, news in enumerate(zip(keys, values, strict=True)):
            moves = Moves()
            for session in sessions:
                self.plan(layer, session.block_ids_per_layer[layer], moves)
            moves.run(self.kv, layer, news)

    def plan(self, layer: int, ids: list[int], moves: Moves) -> None:
        last = self.kv.info(ids[-1]) if ids else None
        if last is None or last.length == self.kv.block_size:
            ids.append(self.kv.allocate_block(layer, last.start + last.length if last else 0))
        elif last.owners > 1:
            ids[-1] = self.kv.allocate_block(layer, last.start)
            last.owners -= 1
            moves.sources.append(last.block_index)
            moves.copies.append(self.kv.block_index(ids[-1]))
            self.kv.info(ids[-1]).length = last.length
        info = self.kv.info(ids[-1])
        moves.blocks.append(info.block_index)
        moves.slots.append(info.length)
        info.length += 1
