"""The kernel with which the exercise of lesson 071 begins: it waits before it does anything."""

from __future__ import annotations

import triton
import triton.language as tl

from ..checking.early_start import start_next, wait


@triton.jit
def linear_add_kernel(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """x += h @ w + bias, with h [rows, K], w [K, N]: a program for each tile [BM, BN] of x."""
    wait()
    start_next()
    tile_m, tile_n = tl.program_id(0), tl.program_id(1)
    if tile_m * BM >= rows:  # the grid is that of the largest batch
        return
    m, n, k = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN), tl.arange(0, BK)
    in_rows, in_columns = (m < rows)[:, None], (n < N)[None, :]
    h_at, w_at = h_ptr + m[:, None] * K + k[None, :], w_ptr + k[:, None] * N + n[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for begin in range(0, K, BK):
        inside = begin + k < K
        h = tl.load(h_at + begin, mask=in_rows & inside[None, :], other=0.0)
        w = tl.load(w_at + begin * N, mask=inside[:, None] & in_columns, other=0.0)
        acc = tl.dot(h, w, acc, input_precision="ieee")
    bias = tl.load(bias_ptr + n, mask=n < N, other=0.0)
    at = x_ptr + m[:, None] * N + n[None, :]
    x = tl.load(at, mask=in_rows & in_columns, other=0.0)
    x = x.to(tl.float32) + acc + bias[None, :]
    tl.store(at, x.to(x_ptr.dtype.element_ty), mask=in_rows & in_columns)
