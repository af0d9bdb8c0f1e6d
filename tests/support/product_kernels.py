"""A kernel of a product with what surrounds it, and others beside it."""

import triton
import triton.language as tl


@triton.jit
def product(
    x_ptr, w_ptr, bias_ptr, colsum_ptr, old_ptr, out_ptr, rows, eps,
    N: tl.constexpr, K: tl.constexpr, K2: tl.constexpr, NORM: tl.constexpr, GELU: tl.constexpr, ADD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out = old + gelu(norm(x) @ w.T + bias), with the norm folded into w."""
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    in_rows, in_columns = m < rows, n < N
    if NORM:
        c = tl.arange(0, K2)
        row = tl.load(x_ptr + m[:, None] * K + c[None, :], mask=in_rows[:, None] & (c < K)[None, :], other=0.0)
        mean = tl.sum(row, axis=1) / K
        centred = tl.where((c < K)[None, :], row - mean[:, None], 0.0)
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
    if GELU:
        acc = acc / (1.0 + tl.exp(-1.5957691216057308 * (acc + 0.044715 * acc * acc * acc)))
    inside = in_rows[:, None] & in_columns[None, :]
    at = m[:, None] * N + n[None, :]
    if ADD:
        acc += tl.load(old_ptr + at, mask=in_rows[:, None] & in_columns[None, :], other=0.0)
    tl.store(out_ptr + at, acc, mask=inside)


@triton.jit
def embedded(token_ids_ptr, positions_ptr, wte_ptr, wpe_ptr, x_ptr, C: tl.constexpr, C2: tl.constexpr, AT):
    """AT: which position is taken: that of the row, or that of the first."""
    b, c = tl.program_id(0), tl.arange(0, C2)
    token, position = tl.load(token_ids_ptr + b), tl.load(positions_ptr + b * AT)
    x = tl.load(wte_ptr + token * C + c, mask=c < C, other=0.0)
    tl.store(x_ptr + b * C + c, x + tl.load(wpe_ptr + position * C + c, mask=c < C, other=0.0), mask=c < C)


@triton.jit
def normed_product(
    x, gain, shift, w, bias, out, rows, eps, N, K, IN_STEP: tl.constexpr, OUT_STEP: tl.constexpr,
    NORM: tl.constexpr, GELU: tl.constexpr, BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Nothing is folded: each piece of a row is normalised when it comes. The steps are those of the weight."""
    i, j = tl.program_id(1) * BM + tl.arange(0, BM)[:, None], tl.program_id(0) * BN + tl.arange(0, BN)[None, :]
    total = tl.zeros((BM, 1), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        total += tl.sum(tl.load(x + i * K + k[None, :], (i < rows) & (k < K)[None, :], 0.0), 1)[:, None]
    mean, apart = total / K, tl.zeros((BM, 1), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        piece = tl.load(x + i * K + k[None, :], (i < rows) & (k < K)[None, :], 0.0) - mean
        apart += tl.sum(tl.where((k < K)[None, :], piece * piece, 0.0), 1)[:, None]
    scale = 1.0 / tl.sqrt(apart / K + eps)
    sums = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        piece = tl.load(x + i * K + k[None, :], (i < rows) & (k < K)[None, :], 0.0)
        if NORM:
            gains, shifts = tl.load(gain + k, k < K, 0.0)[None, :], tl.load(shift + k, k < K, 0.0)[None, :]
            piece = (piece - mean) * scale * gains + shifts
        columns = tl.load(w + k[:, None] * IN_STEP + j * OUT_STEP, (k < K)[:, None] & (j < N), 0.0)
        sums += tl.sum(piece[:, :, None] * columns[None, :, :], axis=1)
    if BIAS:
        sums += tl.load(bias + j, j < N, 0.0)
    if GELU:
        inner = 0.7978845608028654 * (sums + 0.044715 * sums * sums * sums)
        sums = 0.5 * sums * (2.0 - 2.0 / (tl.exp(2.0 * inner) + 1.0))
    tl.store(out + i * N + j, sums, (i < rows) & (j < N))


@triton.jit
def sum_in_pieces(
    h, w, bias, x, out, pieces, arrived, rows, N: tl.constexpr, K: tl.constexpr, SPLITS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out = x + h @ w.T + bias: whoever hands in the last piece of a tile adds them up."""
    across, split = tl.program_id(1), tl.program_id(2)
    tile = tl.program_id(0) * tl.num_programs(1) + across
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), across * BN + tl.arange(0, BN)
    part = tl.zeros((BM, BN), tl.float32)
    SPAN: tl.constexpr = (K + SPLITS * BK - 1) // (SPLITS * BK) * BK
    for start in range(split * SPAN, split * SPAN + SPAN, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(h + m[:, None] * K + k[None, :], mask=(m < rows)[:, None] & (k < K)[None, :], other=0.0)
        b = tl.load(w + tl.minimum(n, N - 1)[:, None] * K + k[None, :], mask=(k < K)[None, :], other=0.0)
        part = tl.dot(a, tl.trans(b), part, input_precision="ieee")
    at = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    tl.store(pieces + (tile * SPLITS + split) * BM * BN + at, part)
    if tl.atomic_add(arrived + tile, 1) == SPLITS - 1:
        whole = tl.zeros((BM, BN), tl.float32)
        for one in range(SPLITS):
            whole += tl.load(pieces + (tile * SPLITS + one) * BM * BN + at)
        to, inside = m[:, None] * N + n[None, :], (m < rows)[:, None] & (n < N)[None, :]
        whole += tl.load(bias + n, mask=n < N, other=0.0)[None, :] + tl.load(x + to, mask=inside, other=0.0)
        tl.store(out + to, whole, mask=inside)
        tl.store(arrived + tile, 0)
