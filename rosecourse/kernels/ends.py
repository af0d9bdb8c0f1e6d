"""The Triton kernels at both ends of a step: the embedding, the logits with the best of each tile, and the choice."""

from __future__ import annotations

import triton
import triton.language as tl

from .dependent_launch import depend
from .linear import leave_stats, normed, stats_of, stream_step


@triton.jit(
    do_not_specialize=["rows"],
    do_not_specialize_on_alignment=["token_ids_ptr", "positions_ptr", "wte_ptr", "wpe_ptr"],
)
def embed_kernel(
    token_ids_ptr, positions_ptr, wte_ptr, wpe_ptr, x_ptr, stats_ptr, rows,
    C: tl.constexpr, BLOCK_C: tl.constexpr, WPE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x = wte[token], + wpe[position] if WPE, and what is known of its rows: one program a row."""
    b, one, c = tl.program_id(0), tl.arange(0, 1), tl.arange(0, BLOCK_C)
    depend(PDL)
    inside = c < C
    token, position = tl.load(token_ids_ptr + b).to(tl.int64), tl.load(positions_ptr + b).to(tl.int64)
    x = tl.load(wte_ptr + token * C + c, mask=inside, other=0.0).to(tl.float32)
    if WPE:
        x += tl.load(wpe_ptr + position * C + c, mask=inside, other=0.0).to(tl.float32)
    rounded = x.to(x_ptr.dtype.element_ty)
    tl.store(x_ptr + b * C + c, rounded, mask=inside)
    kept = tl.where(inside, rounded.to(tl.float32), 0.0)
    leave_stats(stats_ptr, kept[None, :], 0, b + one, b + one < rows, C, C)


@triton.jit(do_not_specialize=["rows"])
def head_kernel(
    x_ptr, w_ptr, bias_ptr, colsum_ptr, stats_ptr, logits_ptr, best_ptr, best_id_ptr, rows, eps,
    V: tl.constexpr, STRIDE: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, TILES2: tl.constexpr,
    RMS: tl.constexpr, FLOAT32: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """logits = norm(x) @ w.T, and the best token of each row in each tile of the vocabulary: the first of equals.

    A program makes one tile after the other, as in `linear_stream_kernel`. Rows have room for whole tiles: with a mask
    of columns, which ends anywhere, each number would be stored by itself.
    """
    start, programs = tl.program_id(1), tl.num_programs(1)
    m, c = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN)
    in_rows, m_read = m < rows, tl.minimum(m, rows - 1)
    TILES: tl.constexpr = (V + BN - 1) // BN
    depend(PDL)
    first, means, squares = stats_of(stats_ptr, m, K, WIDTH, TILES2)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in tl.range(0, tl.cdiv(TILES - start, programs) * tl.cdiv(K, BK), num_stages=STAGES):
        acc, tile, whole = stream_step(acc, i, start, programs, x_ptr, w_ptr, m_read, V, K, FLOAT32, BN, BK)
        if whole:
            n = tile * BN + c
            in_columns = n < V
            bias = tl.load(bias_ptr + n, mask=in_columns, other=0.0)
            colsum = bias if RMS else tl.load(colsum_ptr + n, mask=in_columns, other=0.0)
            acc = normed(acc, first, means, squares, colsum, eps, K, WIDTH, TILES2, RMS) + bias[None, :]
            rounded = acc.to(logits_ptr.dtype.element_ty)
            tl.store(logits_ptr + m.to(tl.int64)[:, None] * STRIDE + n[None, :], rounded, mask=in_rows[:, None])
            logits = rounded.to(tl.float32)
            logits = tl.where(logits == logits, logits, float("inf"))  # NaN is no number to choose by, nor is +inf
            logits = tl.where(in_columns[None, :], logits, float("-inf"))
            best = tl.max(logits, axis=1)
            best_id = tl.min(tl.where((logits == best[:, None]) & in_columns[None, :], n[None, :], V), axis=1)
            tl.store(best_ptr + m * TILES + tile, best, mask=in_rows)
            tl.store(best_id_ptr + m * TILES + tile, best_id, mask=in_rows)
            acc = tl.zeros((BM, BN), tl.float32)


@triton.jit(do_not_specialize_on_alignment=["live_ptr", "tokens_ptr", "token_ids_ptr", "lens_ptr"])
def choose_of_tiles_kernel(
    best_ptr, best_id_ptr, live_ptr, tokens_ptr, token_ids_ptr, lens_ptr,
    TILES: tl.constexpr, TILES2: tl.constexpr, V: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The best of a row's tiles becomes its next token, and the row is one token longer: one program a row."""
    b, t = tl.program_id(0), tl.arange(0, TILES2)
    depend(PDL)
    values = tl.load(best_ptr + b * TILES + t, mask=t < TILES, other=float("-inf"))
    ids = tl.load(best_id_ptr + b * TILES + t, mask=t < TILES, other=V)
    best = tl.max(values, axis=0)
    token = tl.min(tl.where(values == best, ids, V), axis=0).to(tl.int64)
    finite = (best > float("-inf")) & (best < float("inf"))
    tl.store(tokens_ptr + b, tl.where(finite, token, -1))
    tl.store(token_ids_ptr + b, tl.where(finite, token, 0))
    tl.store(lens_ptr + b, tl.load(lens_ptr + b) + tl.load(live_ptr + b))
