"""The Triton kernel that writes the tokens of a step into memory of the host, which a GPU reaches over its bus.

A copy by a copy engine takes the same few bytes, and a handover from the processors to the engine and back.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from .compile import compiled
from .launch import Launch

TILE = 256


@triton.jit(do_not_specialize=["size"], do_not_specialize_on_alignment=["tokens_ptr", "host_ptr"])
def _to_host_kernel(tokens_ptr, host_ptr, size, TILE: tl.constexpr):
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(host_ptr + i, tl.load(tokens_ptr + i, mask=i < size), mask=i < size)


@cache
def _launch(device: torch.device) -> Launch:
    """A binary belongs to one device."""
    return compiled(_to_host_kernel, [torch.int64, torch.int64, 0], TILE=TILE)


class ToHost:
    """Copies by a kernel, which is compiled when this is made, and not when the first tokens come.

    The kernel reads int64 that lie one after another on a GPU; whatever else a part may have made is copied as before.
    """

    def __init__(self, device: torch.device) -> None:
        self.launch = _launch(device)

    def __call__(self, tokens: torch.Tensor, host: torch.Tensor) -> None:
        """Write tokens, int64 [B] on the device, to pinned memory, int64 [B]. The host does not wait."""
        if tokens.dtype != torch.int64 or not (tokens.is_cuda and tokens.is_contiguous()):
            host.copy_(tokens, non_blocking=True)
            return
        size = len(tokens)
        self.launch((triton.cdiv(size, TILE), 1, 1), tokens, host, size)
