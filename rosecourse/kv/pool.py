"""The tensors of a paged KV cache, cut into blocks. Who owns which block is the books' business, not theirs."""

from __future__ import annotations

import weakref

import torch

from ..checks import shown
from .buffers import fitting


class KVPool:
    """K and V, [num_layers, num_blocks, num_kv_heads, block_size, head_dim]; not cleared. k_layers, v_layers: by layer.

    spare_blocks: more blocks that no session can hold. Raises `ConfigError` for sizes that do not fit into memory.
    """

    spare_blocks = 0

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        num_kv_heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_layers, self.num_blocks, self.block_size, self.device = num_layers, num_blocks, block_size, device
        self.ref = weakref.ref(self)  # by which its tables know it
        shape = num_layers, num_blocks + self.spare_blocks, num_kv_heads, block_size, head_dim
        remedy = "a smaller batch, fewer or smaller blocks, or fewer tokens"
        with fitting(f"{shown(num_blocks)} KV blocks of {shown(block_size)} tokens do", remedy):
            self.keys, self.values = (torch.empty(shape, dtype=dtype, device=device) for _ in "KV")
        self.k_layers, self.v_layers = self.keys.unbind(), self.values.unbind()

    def write_tokens(
        self, layer_idx: int, block_indices: torch.Tensor, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Write K and V of T tokens, [T, H, D] each, to block indices [T] and slots in them [T], int64."""
        self.k_layers[layer_idx][block_indices, :, slots] = keys
        self.v_layers[layer_idx][block_indices, :, slots] = values


def is_each_once(numbers: list[int], n: int) -> bool:
    """Whether these are 0 to n - 1, each once, in any order."""
    return sorted(numbers) == list(range(n))
