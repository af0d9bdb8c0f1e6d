"""Paged attention: a plain torch reference, which says what is right, and a Triton kernel, which is fast on a GPU."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Protocol

import torch

from . import reference

TRITON_AVAILABLE = find_spec("triton") is not None
if TRITON_AVAILABLE:
    from . import paged_attention


class PagedAttention(Protocol):
    """Attention of one decode step in one layer; the signature that all implementations share."""

    def __call__(
        self,
        q: torch.Tensor,
        k_layer: torch.Tensor,
        v_layer: torch.Tensor,
        block_table: torch.Tensor,
        context_lens: torch.Tensor,
        max_context_len: int,
        k_new: torch.Tensor,
        v_new: torch.Tensor,
    ) -> torch.Tensor: ...


def paged_attention_for(device: torch.device) -> PagedAttention:
    """The implementation for a device: chosen once, when an engine is built."""
    if device.type == "cuda" and TRITON_AVAILABLE:
        return paged_attention.paged_attention_decode
    return reference.paged_attention_decode
