"""A KV append of one's own, in one file, for people who prefer an editor to a notebook.

    rosecourse lab examples/my_kv_append.py:MyKVAppend

checks it, and measures it against the course's. Copy the file and change it: nothing is subclassed, and nothing is used
that is not public. This one is written in another way than the course's. The cache of a layer, [num_blocks, H,
block_size, D], is seen as one long list of rows [num_blocks * H * block_size, D], and each new token is told its rows
by one list of numbers, the *slots*, as in vLLM. Then there is no question of a constant position.
"""

from collections.abc import Sequence

import torch

from rosecourse import EngineConfig, InferenceSession
from rosecourse.kv.buffers import index_tensor
from rosecourse.lab import check
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.models.shape import Model


class MyKVAppend:
    """Appends one token to every session, in every layer; an engine builds it once."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.k_rows = [k_layer.flatten(0, 2) for k_layer in kv.k_layers]  # views: they share the cache's memory
        self.v_rows = [v_layer.flatten(0, 2) for v_layer in kv.v_layers]
        # From the row of head 0 to those of all heads: a head's rows of a block lie block_size apart.
        self.heads = torch.arange(model.shape.num_kv_heads, device=kv.device) * kv.block_size
        self.rows_of_a_block = model.shape.num_kv_heads * kv.block_size

    def __call__(
        self, sessions: Sequence[InferenceSession], keys: list[torch.Tensor], values: list[torch.Tensor]
    ) -> None:
        """keys, values: for each layer [B, H, D], one row for each session."""
        for layer_idx in range(self.kv.num_layers):
            tables = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, tables, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, tables: list[list[int]], key_new: torch.Tensor, value_new: torch.Tensor
    ) -> None:
        """One layer: tables are the sessions' lists of block ids; key_new, value_new: [B, H, D]."""
        for table in tables:
            self.make_room(layer_idx, table)
        last = [self.kv.info(table[-1]) for table in tables]
        shared = [b for b, info in enumerate(last) if info.owners > 1]  # a block of several owners is copied first
        alone = [b for b, info in enumerate(last) if info.owners == 1]
        if alone:
            slots = [last[b].block_index * self.rows_of_a_block + last[b].length for b in alone]
            if shared:
                chosen = index_tensor(alone, self.kv.device)
                self.store(layer_idx, slots, key_new[chosen], value_new[chosen])
            else:
                self.store(layer_idx, slots, key_new, value_new)
        for b in alone:
            last[b].length += 1
        for b in shared:
            self.kv.append_token(layer_idx, tables[b], key_new[b], value_new[b])

    def make_room(self, layer_idx: int, table: list[int]) -> None:
        """Begin a new block if there is none, or if the last one is full, which may be shared and stays as it is."""
        last = self.kv.info(table[-1]) if table else None
        if last is None or last.length == self.kv.block_size:
            start = last.start + last.length if last else 0
            table.append(self.kv.allocate_block(layer_idx, start))

    def store(self, layer_idx: int, slots: list[int], keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write keys and values [n, H, D]; slots: for each of the n the row of its head 0."""
        rows = index_tensor(slots, self.kv.device)[:, None] + self.heads  # [n, H]
        self.k_rows[layer_idx][rows] = keys
        self.v_rows[layer_idx][rows] = values


if __name__ == "__main__":
    print(check(MyKVAppend, "060"))
