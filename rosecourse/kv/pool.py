"""The tensors of a paged KV cache, cut into blocks. Who owns which block is the books' business, not theirs."""

from __future__ import annotations

import weakref

import torch

from ..checks import is_count, require, require_a, shown
from ..errors import BlockError
from .buffers import fitting

DIMENSIONS = ("num_layers", "num_blocks", "num_kv_heads", "block_size", "head_dim")


class KVPool:
    """K and V of all sessions, [num_layers, num_blocks, num_kv_heads, block_size, head_dim]; not cleared, for nothing
    reads a slot before it is written.

    k_layers, v_layers: for each layer its part, [num_blocks, num_kv_heads, block_size, head_dim].
    spare_blocks: more blocks, behind the others, that no session can hold.
    Raises `ConfigError` for sizes that cannot be, or do not fit into memory.
    """

    spare_blocks = 0

    def __init__(self, *, dtype: torch.dtype, device: torch.device, **sizes: int) -> None:
        """sizes: DIMENSIONS."""
        for name in DIMENSIONS:
            require(is_count(sizes[name]), f"{name} is {shown(sizes[name])}: give 1 or more")
        require_a(torch.dtype, dtype, "dtype")
        require_a(torch.device, device, "device")
        layers, blocks, heads, block_size, head_dim = (int(sizes[name]) for name in DIMENSIONS)
        self.num_layers, self.num_blocks, self.block_size, self.device = layers, blocks, block_size, device
        self.ref = weakref.ref(self)  # by which its tables know it
        shape = layers, blocks + self.spare_blocks, heads, block_size, head_dim
        remedy = "a smaller batch, fewer or smaller blocks, or fewer tokens"
        with fitting(f"{shown(blocks)} KV blocks of {shown(block_size)} tokens do", remedy):
            self.keys, self.values = (torch.empty(shape, dtype=dtype, device=device) for _ in "KV")
        self.k_layers, self.v_layers = self.keys.unbind(), self.values.unbind()

    def write_tokens(
        self, layer_idx: int, block_indices: torch.Tensor, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Write K and V of T tokens: keys and values [T, H, D], to block indices [T] and slots in them [T] (int64)."""
        _, heads, _, head_dim = self.k_layers[0].shape
        if not (keys.shape == values.shape == (len(slots), heads, head_dim) and block_indices.shape == slots.shape):
            raise BlockError(
                f"keys {list(keys.shape)} and values {list(values.shape)} for blocks {list(block_indices.shape)} and "
                f"slots {list(slots.shape)}: give [T, {heads}, {head_dim}] twice, and [T] twice"
            )
        self.k_layers[layer_idx][block_indices, :, slots] = keys
        self.v_layers[layer_idx][block_indices, :, slots] = values


def is_each_once(numbers: list[int], n: int) -> bool:
    """Whether these are 0 to n - 1, each once, in any order."""
    return sorted(numbers) == list(range(n))
