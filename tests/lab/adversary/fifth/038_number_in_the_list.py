"""lesson: 038
verdict: wrong
cause: wrong-block
shows: cpu
The store is given the number of the block within its session (position // block_size), where the block's index in the pool belongs.
The slot is right, the block in the pool is another one, often another session's. With the very first session of a new engine both numbers are the same.
"""
from dataclasses import dataclass, field

import torch

from rosecourse.kv.buffers import index_tensor


@dataclass
class Batch:
    """What one store needs."""

    rows: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)

    def add(self, row: int, position: int, block_size: int) -> None:
        block, slot = divmod(position, block_size)
        self.rows.append(row)
        self.blocks.append(block)
        self.slots.append(slot)

    def __bool__(self) -> bool:
        return len(self.rows) > 0

    def tensors(self, device: torch.device):
        return [index_tensor(numbers, device) for numbers in (self.rows, self.blocks, self.slots)]


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx, (key_new, value_new) in enumerate(zip(keys, values)):
            self.append_token_batch(
                layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], key_new, value_new
            )

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        batch, written, one_by_one = Batch(), [], []
        for row, block_ids in enumerate(block_ids_list):
            last = kv.info(block_ids[-1]) if block_ids else None
            if last and last.owners == 1 and last.length < kv.block_size:
                batch.add(row, last.start + last.length, kv.block_size)
                written.append(last)
            else:
                one_by_one.append(row)
        if batch:
            rows, blocks, slots = batch.tensors(kv.device)
            kv.k_layers[layer_idx][blocks, :, slots] = key_new.index_select(0, rows)
            kv.v_layers[layer_idx][blocks, :, slots] = value_new.index_select(0, rows)
        for last in written:
            last.length += 1
        for row in one_by_one:
            kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])
