"""The Triton kernel that writes the tokens of a step into memory of the host, without a copy engine's handover."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .compile import compiled

TILE = 256


@triton.jit(do_not_specialize=["size"], do_not_specialize_on_alignment=["tokens_ptr", "host_ptr"])
def _to_host_kernel(tokens_ptr, host_ptr, size, TILE: tl.constexpr):
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(host_ptr + i, tl.load(tokens_ptr + i, mask=i < size), mask=i < size)


class ToHost:
    """Copies by a kernel, compiled when this is made. What is not contiguous int64 on a GPU is copied as before."""

    def __init__(self, device: torch.device) -> None:
        self.launch = compiled(_to_host_kernel, (torch.int64, torch.int64, 0), (TILE,), device)

    def __call__(self, tokens: torch.Tensor, host: torch.Tensor) -> None:
        """Write tokens, int64 [B] on the device, to pinned memory, int64 [B]. The host does not wait."""
        if tokens.dtype != torch.int64 or not (tokens.is_cuda and tokens.is_contiguous()):
            host.copy_(tokens, non_blocking=True)
            return
        size = len(tokens)
        self.launch((triton.cdiv(size, TILE), 1, 1), tokens, host, size)
