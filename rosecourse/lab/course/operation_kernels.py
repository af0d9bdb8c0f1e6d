"""The kernels with which the exercises of lessons 070 and 071 begin and end. Without Triton this file is only read."""

from __future__ import annotations

import triton
import triton.language as tl

from ..checking.early_start import start_next, wait

# -- lesson 070 -------------------------------------------------------------------------------------------------------


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


@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    x_ptr, w_ptr, bias_ptr, colsum_ptr, old_ptr, out_ptr, rows, eps,
    N: tl.constexpr, K: tl.constexpr, K2: tl.constexpr,
    NORM: tl.constexpr, GELU: tl.constexpr, ADD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out = x @ w.T + bias, with a norm of x, folded into w, and GELU or `old` behind it if wanted."""
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    in_rows, in_columns = m < rows, n < N
    if NORM:
        c = tl.arange(0, K2)
        in_row = (c < K)[None, :]
        row = tl.load(x_ptr + m[:, None] * K + c[None, :], mask=in_rows[:, None] & in_row, other=0.0).to(tl.float32)
        mean = tl.sum(row, axis=1) / K
        centred = tl.where(in_row, row - mean[:, None], 0.0)
        std = tl.sqrt(tl.sum(centred * centred, axis=1) / K + eps)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        inside = (k < K)[None, :]
        x = tl.load(x_ptr + m[:, None] * K + k[None, :], mask=in_rows[:, None] & inside, other=0.0)
        w = tl.load(w_ptr + n[:, None] * K + k[None, :], mask=in_columns[:, None] & inside, other=0.0)
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    if NORM:
        colsum = tl.load(colsum_ptr + n, mask=in_columns, other=0.0)
        acc = (acc - mean[:, None] * colsum[None, :]) / std[:, None]
    acc += tl.load(bias_ptr + n, mask=in_columns, other=0.0)[None, :]
    if GELU:  # x / 2 (1 + tanh(inner)), as x * sigmoid(2 inner)
        acc = acc / (1.0 + tl.exp(-1.5957691216057308 * (acc + 0.044715 * acc * acc * acc)))
    at, inside = m[:, None] * N + n[None, :], in_rows[:, None] & in_columns[None, :]
    if ADD:
        acc += tl.load(old_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, acc, mask=inside)


@triton.jit
def embed_kernel(token_ids_ptr, positions_ptr, wte_ptr, wpe_ptr, x_ptr, C: tl.constexpr, C2: tl.constexpr):
    """x = wte[token] + wpe[position]: a program makes one row."""
    b, c = tl.program_id(0), tl.arange(0, C2)
    token, position = tl.load(token_ids_ptr + b).to(tl.int64), tl.load(positions_ptr + b).to(tl.int64)
    x = tl.load(wte_ptr + token * C + c, mask=c < C, other=0.0).to(tl.float32)
    x += tl.load(wpe_ptr + position * C + c, mask=c < C, other=0.0).to(tl.float32)
    tl.store(x_ptr + b * C + c, x, mask=c < C)


# -- lesson 071 -------------------------------------------------------------------------------------------------------


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


@triton.jit
def early_linear_add_kernel(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """x += h @ w + bias, with h [rows, K], w [K, N]: a program for each tile [BM, BN] of x."""
    tile_m, tile_n = tl.program_id(0), tl.program_id(1)
    m, n, k = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN), tl.arange(0, BK)
    in_rows, in_columns = (m < rows)[:, None], (n < N)[None, :]
    h_at, w_at = h_ptr + m[:, None] * K + k[None, :], w_ptr + k[:, None] * N + n[None, :]
    w = tl.load(w_at, mask=(k < K)[:, None] & in_columns, other=0.0)  # nobody writes weights
    bias = tl.load(bias_ptr + n, mask=n < N, other=0.0)
    wait()
    start_next()
    if tile_m * BM >= rows:  # after the wait: a program without work waits, too
        return
    acc = tl.zeros((BM, BN), tl.float32)
    for begin in range(0, K, BK):
        inside, following = begin + k < K, begin + BK + k < K
        h = tl.load(h_at + begin, mask=in_rows & inside[None, :], other=0.0)
        acc = tl.dot(h, w, acc, input_precision="ieee")
        w = tl.load(w_at + (begin + BK) * N, mask=following[:, None] & in_columns, other=0.0)
    at = x_ptr + m[:, None] * N + n[None, :]
    x = tl.load(at, mask=in_rows & in_columns, other=0.0)  # the kernel before may have added to it
    x = x.to(tl.float32) + acc + bias[None, :]
    tl.store(at, x.to(x_ptr.dtype.element_ty), mask=in_rows & in_columns)
