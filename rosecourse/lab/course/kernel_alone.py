"""The kernel with which the exercise of lesson 070 begins: a matrix product for few rows, and nothing around it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def product_kernel(
    x_ptr, w_ptr, out_ptr, rows,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out = x @ w.T, for x [rows, K], w [N, K], out [rows, N]: a program makes BM x BN numbers."""
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    in_rows, in_columns = (m < rows)[:, None], (n < N)[:, None]
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        inside = (k < K)[None, :]
        x = tl.load(x_ptr + m[:, None] * K + k[None, :], mask=in_rows & inside, other=0.0)
        w = tl.load(w_ptr + n[:, None] * K + k[None, :], mask=in_columns & inside, other=0.0)
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    tl.store(out_ptr + m[:, None] * N + n[None, :], acc, mask=in_rows & (n < N)[None, :])
