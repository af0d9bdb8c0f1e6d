"""Kernels: paged attention in plain torch, which says what is right, fast on a CPU, and fast on a GPU, in Triton."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Protocol

import torch

from ..kv.pool import KVPool
from . import reference
from .reference import PromptAttention, ReferenceAttention
from .sparse_attention import AppendedSparseAttention, SparseAttention

TRITON_AVAILABLE = find_spec("triton") is not None
if TRITON_AVAILABLE:
    from .add_norm import add_norm
    from .appending_attention import AppendingAttention, EarlyAttention
    from .choose import choose
    from .compile import INTERPRETED
    from .dependent_launch import can_start_early
    from .fused import Folded, FusedLinears, Head, folded
    from .kv_append import kv_append_by_table, kv_append_triton, kv_append_triton_full_batch
    from .paged_attention import TritonAttention
    from .prompt_attention import TritonPromptAttention
    from .to_host import ToHost
else:
    INTERPRETED = False
    add_norm = AppendingAttention = EarlyAttention = choose = can_start_early = ToHost = None  # type: ignore[assignment, misc]
    TritonPromptAttention = None  # type: ignore[assignment, misc]
    Folded = FusedLinears = Head = folded = None  # type: ignore[assignment, misc]
    kv_append_by_table = kv_append_triton = kv_append_triton_full_batch = TritonAttention = None  # type: ignore[assignment, misc]


class PagedAttention(Protocol):
    """Attention of a decode step: planned once for the step, run once for each layer (FlashInfer's two calls)."""

    def plan(self, block_tables: torch.Tensor, context_lens: torch.Tensor, max_context_len: int) -> None:
        """block_tables: int [L, B, max_blocks]; the rest as in `reference.paged_attention_decode`."""

    def run(self, layer_idx: int, q: torch.Tensor, k_new: torch.Tensor, v_new: torch.Tensor) -> torch.Tensor:
        """Attention of one layer: q and the result [B, H, D], k_new and v_new [B, H_kv, D]."""


def paged_attention_for(kv: KVPool, num_heads: int) -> PagedAttention:
    """The implementation for the device and dtype of a cache, and for so many heads of q."""
    if kv.device.type == "cuda" and TRITON_AVAILABLE:
        return TritonAttention(kv)
    return SparseAttention(kv, num_heads) if _is_sparse(kv) else ReferenceAttention(kv)


def attention_after_append_for(kv: KVPool, num_heads: int) -> PagedAttention:
    """The same where K and V of the new token are in the cache when it runs."""
    return AppendedSparseAttention(kv, num_heads) if _is_sparse(kv) else paged_attention_for(kv, num_heads)


def _is_sparse(kv: KVPool) -> bool:
    return kv.device.type == "cpu" and kv.k_layers[0].dtype == torch.float32


def cached_attention_for(kv: KVPool, heads_per_kv_head: int) -> PromptAttention:
    """Attention of prompts in the cache, for its device."""
    kind = TritonPromptAttention if triton_runs_on(kv.device) else PromptAttention
    return kind(kv, heads_per_kv_head)


def add_norm_on(device: torch.device) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The fastest way on a device: `reference.add_norm`, or the same in one kernel."""
    return add_norm if device.type == "cuda" and TRITON_AVAILABLE else reference.add_norm


def appending_attention_for(kv: KVPool) -> AppendingAttention:
    """Attention that appends, for the device of a cache, where Triton runs: started early where that can be."""
    return EarlyAttention(kv) if can_start_early(kv.device) else AppendingAttention(kv)


def fused_linears_for(device: torch.device, dtype: torch.dtype) -> FusedLinears:
    """Small matrix products on a device where Triton runs: started early where that can be."""
    return FusedLinears(device, dtype, pdl=can_start_early(device))


def to_host_on(device: torch.device) -> Callable[[torch.Tensor, torch.Tensor], None] | None:
    """How tokens get from a device into pinned memory of the host, which does not wait; None is a tensor's own copy."""
    return ToHost(device) if device.type == "cuda" and TRITON_AVAILABLE else None


def triton_runs_on(device: torch.device) -> bool:
    """Whether Triton kernels can be launched: on CUDA, or where TRITON_INTERPRET=1 was set before Triton came."""
    return TRITON_AVAILABLE and (device.type == "cuda" or INTERPRETED)
