"""The Triton kernel of a matrix product with few rows, and what it shares with the kernel of the logits.

The time goes into reading the matrix, once; what stands around the product is done on its way. The norm before it
needs no pass of its own: with its gain and bias in the matrix (`fused.folded`), norm(x) @ W.T + b is
(x @ W'.T - mean(x) * colsum(W')) / std(x) + b', and the kernel before has left mean and deviation of each row.
(TransformerLens folds norms so; CUTLASS hands them from product to product in its example 37.) A prototype that
computed them here, with Triton 3.6, made wrong logits: its pipelined loop gave a tile both to `tl.dot` and to other
arithmetic. (Triton's issue 6691 reports the like.)
"""

from __future__ import annotations

import triton
import triton.language as tl

from . import tiles
from .dependent_launch import depend

LINE = tl.constexpr(128)  # bytes that the memory gives at a time
LARGE = tl.constexpr(tiles.LARGE)
FIRST = tl.constexpr(128)  # columns
APART = tl.constexpr(tiles.MOST_ROWS)  # the stats of two tiles: a number that is known lets the reads of them be wide


@triton.jit
def ask_for(w_ptr, n, begin, K: tl.constexpr, SPAN: tl.constexpr):
    """Have the rows n of a matrix, from column `begin` on, brought into the L2 cache: 64 lines of each at most."""
    EACH: tl.constexpr = LINE * 8 // w_ptr.dtype.element_ty.primitive_bitwidth
    LINES: tl.constexpr = 2 if SPAN <= 2 * EACH else (16 if SPAN <= 16 * EACH else 64)
    k = tl.minimum(begin + tl.arange(0, LINES) * EACH, K - 1)
    lines = w_ptr + n[:, None] * K + k[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // $0", "=r,l", [lines.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def add_product(acc, x_ptr, w_ptr, m, n, k, K: tl.constexpr, EVEN: tl.constexpr, FLOAT32: tl.constexpr):
    """acc + x[m, k] @ w[n, k].T, float32. EVEN: all columns k are there."""
    x_tile = x_ptr + m[:, None] * K + k[None, :]
    w_tile = w_ptr + n[:, None] * K + k[None, :]
    if EVEN:
        x = tl.load(x_tile)
        w = tl.load(w_tile)
    else:
        inside = (k < K)[None, :]
        x = tl.load(x_tile, mask=inside, other=0.0)
        w = tl.load(w_tile, mask=inside, other=0.0)
    if FLOAT32:
        x, w = x.to(tl.float32), w.to(tl.float32)
    return tl.dot(x, tl.trans(w), acc, input_precision="ieee")


@triton.jit
def product(
    x_ptr, w_ptr, m, n, begin, K: tl.constexpr, SPAN: tl.constexpr, EVEN: tl.constexpr, FLOAT32: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """x[m, begin : begin + SPAN] @ w[n, begin : begin + SPAN].T, float32. EVEN: all of that is there."""
    acc = tl.zeros((BM, BN), tl.float32)
    for start in tl.range(begin, begin + SPAN, BK, num_stages=STAGES):
        acc = add_product(acc, x_ptr, w_ptr, m, n, start + tl.arange(0, BK), K, EVEN, FLOAT32)
    return acc


@triton.jit
def stats_of(stats_ptr, m, K: tl.constexpr, WIDTH: tl.constexpr, TILES2: tl.constexpr):
    """What is known of the rows m: the first tile's mean [BM]; of all tiles means and sums of squares [TILES2, BM].

    A tile's squares are those of distances from its mean. Of rows that are not there all of it is anything.
    """
    TILES: tl.constexpr = (K + WIDTH - 1) // WIDTH
    t = tl.arange(0, TILES2)[:, None]
    at = stats_ptr + t * APART + m[None, :]
    first = tl.load(stats_ptr + m)
    means = tl.load(at, mask=t < TILES, other=0.0)
    return first, means, tl.load(at + TILES * APART, mask=t < TILES, other=0.0)


@triton.jit
def leave_stats(stats_ptr, x, tile, m, in_rows, K: tl.constexpr, WIDTH: tl.constexpr):
    """The same of one tile of rows that are K long, x [BM, >= WIDTH] with zeros where the row has ended."""
    TILES: tl.constexpr = (K + WIDTH - 1) // WIDTH
    c = tl.arange(0, x.shape[1])
    count = tl.minimum(K - tile * WIDTH, WIDTH)
    mean = tl.sum(x, axis=1) / count
    centred = tl.where((c < count)[None, :], x - mean[:, None], 0.0)
    tl.store(stats_ptr + tile * APART + m, mean, mask=in_rows)
    tl.store(stats_ptr + (TILES + tile) * APART + m, tl.sum(centred * centred, axis=1), mask=in_rows)


@triton.jit
def normed(
    acc, first, means, squares, colsum, eps, K: tl.constexpr, WIDTH: tl.constexpr, TILES2: tl.constexpr,
    RMS: tl.constexpr,
):  # fmt: skip
    """x @ w.T -> (x - mean(x)) / std(x) @ w.T, for rows of which `stats_of` has told (Chan, Golub and LeVeque, 1983).

    RMS: x / rms(x) @ w.T, which takes no mean off.

    A mean of squares less the square of the mean would lose a small deviation beside a large mean. So both are taken
    of distances from the first tile's mean, in two sums that do not wait for each other.
    """
    count = tl.minimum(tl.maximum(K - tl.arange(0, TILES2) * WIDTH, 0), WIDTH).to(tl.float32)[:, None]
    if RMS:
        square = tl.sum(squares + means * means * count, axis=0) / K
        return acc * (1.0 / tl.sqrt(square + eps))[:, None]
    apart = means - first[None, :]
    shift = tl.sum(apart * count, axis=0) / K
    variance = tl.sum(squares + apart * apart * count, axis=0) / K - shift * shift
    rstd = 1.0 / tl.sqrt(tl.maximum(variance, 0.0) + eps)
    return (acc - (first + shift)[:, None] * colsum[None, :]) * rstd[:, None]


@triton.jit
def activated(acc, GELU: tl.constexpr, GATED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """GELU; or GATED, SiLU of each gate times the number beside it: [BM, BN] -> [BM, BN / 2]."""
    if GELU:  # x / 2 (1 + tanh(inner))
        acc = acc / (1.0 + tl.exp(-1.5957691216057308 * (acc + 0.044715 * acc * acc * acc)))
    if GATED:
        gate, up = tl.split(tl.reshape(acc, (BM, BN // 2, 2)))
        return gate / (1.0 + tl.exp(-gate)) * up
    else:
        return acc


@triton.jit
def is_last(part_ptr, counter_ptr, acc, split, SPLITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Hand in a part of a tile [BM, BN]; whether all others have come."""
    at = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    tl.store(part_ptr + split * BM * BN + at, acc)
    tl.debug_barrier()  # all threads have stored before one of them counts
    return tl.atomic_add(counter_ptr, 1) == SPLITS - 1


@triton.jit
def sum_of_parts(part_ptr, counter_ptr, SPLITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """The parts of a tile in their order, whoever came last; the counter is 0 again."""
    at = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for split in tl.static_range(SPLITS):
        acc += tl.load(part_ptr + split * BM * BN + at, cache_modifier=".cg")
    tl.store(counter_ptr, 0)
    return acc


@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    x_ptr, w_ptr, bias_ptr, colsum_ptr, stats_ptr, out_ptr, new_stats_ptr, parts_ptr, counters_ptr, rows, eps,
    N: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, TILES2: tl.constexpr, RMS: tl.constexpr, GELU: tl.constexpr,
    GATED: tl.constexpr, ADD: tl.constexpr, FLOAT32: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out = norm(x) @ w.T + bias, with GELU if wanted; or ADD: out += x @ w.T + bias, and what is known of its rows.

    WIDTH: of the tiles that stats come in; 0: there is no norm. GATED: columns come in pairs, each of a gate and what
    SiLU of it is multiplied by: out has half as many.
    """
    tile_m, tile_n, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    m, c = tile_m * BM + tl.arange(0, BM), tl.arange(0, BN)
    n = tile_n * BN + c
    in_rows, in_columns = m < rows, n < N
    m_read = tl.minimum(m, rows - 1)  # past the end the last row and the last column are read again: no mask is needed
    c_read = tl.minimum(c, N - 1 - tile_n * BN)
    SPAN: tl.constexpr = (K + SPLITS * BK - 1) // (SPLITS * BK) * BK
    w_ptr += tile_n.to(tl.int64) * BN * K
    bias = tl.load(bias_ptr + n, mask=in_columns, other=0.0)  # what the end needs is asked for at the start
    colsum = bias
    if WIDTH > 0 and not RMS:
        colsum = tl.load(colsum_ptr + n, mask=in_columns, other=0.0)
    if PDL:  # of a large matrix for the first columns: more would hold up what the kernel before reads
        ask_for(w_ptr, c_read, split * SPAN, K, SPAN if N * K < LARGE else FIRST)
    depend(PDL)
    EACH: tl.constexpr = 2 if GATED else 1  # columns for a number of the result
    n_out = tile_n * (BN // EACH) + tl.arange(0, BN // EACH)
    at = out_ptr + m[:, None] * (N // EACH) + n_out[None, :]
    inside = in_rows[:, None] & (n_out < N // EACH)[None, :]
    if WIDTH:
        first, means, squares = stats_of(stats_ptr, m, K, WIDTH, TILES2)
    if ADD:
        old = tl.load(at, mask=inside, other=0.0)
    EVEN: tl.constexpr = K % (SPLITS * BK) == 0
    acc = product(x_ptr, w_ptr, m_read, c_read, split * SPAN, K, SPAN, EVEN, FLOAT32, BM, BN, BK, STAGES)
    last = True
    if SPLITS > 1:
        tile = tile_n * tl.num_programs(0) + tile_m
        last = is_last(parts_ptr + tile * SPLITS * BM * BN, counters_ptr + tile, acc, split, SPLITS, BM, BN)
        if last:
            acc = sum_of_parts(parts_ptr + tile * SPLITS * BM * BN, counters_ptr + tile, SPLITS, BM, BN)
    if last:
        if WIDTH:
            acc = normed(acc, first, means, squares, colsum, eps, K, WIDTH, TILES2, RMS)
        acc += bias[None, :]
        if ADD:
            acc += old.to(tl.float32)
        result = activated(acc, GELU, GATED, BM, BN)
        rounded = result.to(out_ptr.dtype.element_ty)
        tl.store(at, rounded, mask=inside)
        if ADD:  # of the numbers that the next one reads
            kept = tl.where(in_columns[None, :], rounded.to(tl.float32), 0.0)
            leave_stats(new_stats_ptr, kept, tile_n, m, in_rows, N, BN)


@triton.jit
def stream_step(
    acc, i, start, programs, x_ptr, w_ptr, m, N: tl.constexpr, K: tl.constexpr, FLOAT32: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Step i of a program's tiles start, start + programs ...: the sum so far, the tile, and whether it is whole."""
    STEPS: tl.constexpr = (K + BK - 1) // BK
    tile, step = start + i // STEPS * programs, i % STEPS
    c_read = tl.minimum(tl.arange(0, BN), N - 1 - tile * BN)
    w_tile_ptr = w_ptr + tile.to(tl.int64) * BN * K
    acc = add_product(acc, x_ptr, w_tile_ptr, m, c_read, step * BK + tl.arange(0, BK), K, K % BK == 0, FLOAT32)
    return acc, tile, step == STEPS - 1


@triton.jit(do_not_specialize=["rows"])
def linear_stream_kernel(
    x_ptr, w_ptr, bias_ptr, colsum_ptr, stats_ptr, out_ptr, rows, eps,
    N: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, TILES2: tl.constexpr, RMS: tl.constexpr, GELU: tl.constexpr,
    GATED: tl.constexpr, FLOAT32: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`linear_kernel` of a norm and a product, in fewer programs than there are tiles: each makes one after the other.

    All tiles are one loop, which reads ahead from a tile into the next: between two, too, the memory has work.
    """
    start, programs = tl.program_id(1), tl.num_programs(1)
    m, c = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN)
    m_read = tl.minimum(m, rows - 1)
    EACH: tl.constexpr = 2 if GATED else 1
    depend(PDL)
    first, means, squares = stats_of(stats_ptr, m, K, WIDTH, TILES2)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in tl.range(0, tl.cdiv(tl.cdiv(N, BN) - start, programs) * tl.cdiv(K, BK), num_stages=STAGES):
        acc, tile, whole = stream_step(acc, i, start, programs, x_ptr, w_ptr, m_read, N, K, FLOAT32, BN, BK)
        if whole:
            n = tile * BN + c
            bias = tl.load(bias_ptr + n, mask=n < N, other=0.0)
            colsum = bias if RMS else tl.load(colsum_ptr + n, mask=n < N, other=0.0)
            acc = normed(acc, first, means, squares, colsum, eps, K, WIDTH, TILES2, RMS) + bias[None, :]
            result = activated(acc, GELU, GATED, BM, BN).to(out_ptr.dtype.element_ty)
            n_out = tile * (BN // EACH) + tl.arange(0, BN // EACH)
            inside = (m < rows)[:, None] & (n_out < N // EACH)[None, :]
            tl.store(out_ptr + m[:, None] * (N // EACH) + n_out[None, :], result, mask=inside)
            acc = tl.zeros((BM, BN), tl.float32)
