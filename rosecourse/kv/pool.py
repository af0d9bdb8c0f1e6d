"""The tensors of a paged KV cache, cut into blocks. Who owns which block is the books' business, not theirs."""

from __future__ import annotations

import weakref

import torch

from ..checks import is_count, require, require_a, shown
from ..errors import BlockError
from .buffers import kv_pool

DIMENSIONS = ("num_layers", "num_blocks", "num_kv_heads", "block_size", "head_dim")


class KVPool:
    """K and V of all sessions, [num_layers, num_blocks, num_kv_heads, block_size, head_dim]; not cleared.

    k_layers, v_layers: for each layer its part, [num_blocks, num_kv_heads, block_size, head_dim].
    spare_blocks: more blocks, behind the others, that no session can hold.
    """

    spare_blocks = 0

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        sizes = (num_layers, num_blocks, num_kv_heads, block_size, head_dim)
        for name, size in zip(DIMENSIONS, sizes, strict=True):
            require(is_count(size), f"{name} is {shown(size)}: give 1 or more")
        require_a(torch.dtype, dtype, "dtype")
        require_a(torch.device, device, "device")
        self.num_layers, self.num_blocks, self.block_size = int(num_layers), int(num_blocks), int(block_size)
        self.device = device
        self.ref = weakref.ref(self)  # by which its tables know it
        self.keys, self.values = kv_pool(tuple(map(int, sizes)), dtype, device, self.spare_blocks)
        self.k_layers, self.v_layers = self.keys.unbind(), self.values.unbind()

    def write_tokens(
        self, layer_idx: int, block_indices: torch.Tensor, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Write K and V of T tokens: keys and values [T, H, D], to block indices [T] and slots in them [T] (int64)."""
        pool = self.k_layers[0].shape  # [num_blocks, H, block_size, D]
        well = keys.shape == values.shape == (len(slots), pool[1], pool[3]) and block_indices.shape == slots.shape
        if not well:
            raise BlockError(
                f"keys {list(keys.shape)} and values {list(values.shape)} for blocks {list(block_indices.shape)} and "
                f"slots {list(slots.shape)}: give [T, {pool[1]}, {pool[3]}] twice, and [T] twice"
            )
        self.k_layers[layer_idx][block_indices, :, slots] = keys
        self.v_layers[layer_idx][block_indices, :, slots] = values


def is_each_once(numbers: list[int], n: int) -> bool:
    """Whether these are 0 to n - 1, each once, in any order."""
    return len(numbers) == len(set(numbers)) == n and (not n or (min(numbers) >= 0 and max(numbers) < n))
