"""The Triton kernel that ends a greedy step: one program per row finds the most probable token and advances the row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .compile import compiled

TILE = 8192  # logits that a program reads at a time
WARPS = 16  # of a program: there are only as many programs as rows


@triton.jit(do_not_specialize_on_alignment=["live_ptr", "tokens_ptr", "token_ids_ptr", "lens_ptr"])
def _choose_kernel(
    logits_ptr, live_ptr, tokens_ptr, token_ids_ptr, lens_ptr,
    STRIDE: tl.constexpr, READ: tl.constexpr, V: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    v = tl.arange(0, TILE)
    largest = tl.full((TILE,), float("-inf"), tl.float32)  # of the numbers v, v + TILE, v + 2 * TILE ...
    where = tl.zeros((TILE,), tl.int32)
    for start in range(0, V, TILE):
        logits = tl.load(logits_ptr + b * STRIDE + start + v, mask=start + v < READ, other=0.0).to(tl.float32)
        logits = tl.where(start + v < V, logits, float("-inf"))
        logits = tl.where(logits == logits, logits, float("inf"))  # NaN is no number to choose by, nor is +inf
        larger = logits > largest
        largest = tl.where(larger, logits, largest)
        where = tl.where(larger, start + v, where)
    best = tl.max(largest, axis=0)
    token = tl.min(tl.where(largest == best, where, V), axis=0).to(tl.int64)  # the first of equals
    finite = (best > float("-inf")) & (best < float("inf"))
    tl.store(tokens_ptr + b, tl.where(finite, token, -1))
    tl.store(token_ids_ptr + b, tl.where(finite, token, 0))
    tl.store(lens_ptr + b, tl.load(lens_ptr + b) + tl.load(live_ptr + b))


def choose(logits: Tensor, live: Tensor, token_ids: Tensor, context_lens: Tensor) -> Tensor:
    """The most probable token of each row, int64 [B], or -1 where `sampling.argmax` finds none, too.

    logits: [B, V], rows any stride apart. token_ids, int64 [B], becomes these tokens, and 0 for -1; live is added to
    context_lens, both int64 [B].
    """
    tokens = torch.empty_like(token_ids)
    tensors = (logits, live, tokens, token_ids, context_lens)
    dtypes = tuple([tensor.dtype for tensor in tensors])
    aligned = logits.data_ptr() % 16 == 0
    V = logits.shape[1]
    constants = (logits.stride(0), _read(logits), V, min(TILE, triton.next_power_of_2(V)))
    launch = compiled(_choose_kernel, dtypes, constants, logits.device, WARPS, aligned=aligned)
    launch((len(logits), 1, 1), *tensors)
    return tokens


def _read(logits: Tensor) -> int:
    """How many numbers of a row are read. Of a padded vocabulary some more than there are: so reads can be wide."""
    B, V = logits.shape
    stride, wide = logits.stride(0), -(-V // 16) * 16
    end = logits.storage_offset() + (B - 1) * stride + wide
    held = logits.untyped_storage().nbytes() // logits.itemsize
    return wide if wide <= stride and end <= held else V
