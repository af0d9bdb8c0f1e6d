"""Operations whose kernel does something at the wrong moment, or computes something else; each with its cause."""

import torch
import triton
import triton.language as tl

from rosecourse.lab.early_start import start_next, wait
from tests.support.order_parts import (
    Base,
    TwoKernels,
    add_product,
    bias_of,
    lanes,
    masked,
    product,
    put,
    rows_of,
    there,
    weights,
    whole_product,
    with_kernel,
)

# -- reads and stores too early ---------------------------------------------------------------------------------------


@triton.jit
def rows_early(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    h = rows_of(h_ptr, m, 0, rows, K, BK)
    wait()
    start_next()
    add_product(h_ptr, w_ptr, bias_ptr, x_ptr, m, n, rows, N, K, BM, BN, BK)
    return h


@triton.jit
def last_row_early(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Only the program of the last columns, only the last row."""
    m, n = lanes(BM, BN)
    if tl.program_id(1) == tl.num_programs(1) - 1:
        tl.load(h_ptr + rows * K - 1)
    wait()
    start_next()
    add_product(h_ptr, w_ptr, bias_ptr, x_ptr, m, n, rows, N, K, BM, BN, BK)


@triton.jit
def sum_early(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Of no harm in GPT-2."""
    m, n = lanes(BM, BN)
    w, x = weights(w_ptr, n, 0, N, K, BK), there(x_ptr, m, n, rows, N) + bias_of(bias_ptr, n, N)[None, :]
    wait()
    start_next()
    put(x_ptr, x + product(h_ptr, w_ptr, w, m, n, rows, N, K, BM, BN, BK), m, n, rows, N)


@triton.jit
def bias_added_early(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    put(x_ptr, there(x_ptr, m, n, rows, N) + bias_of(bias_ptr, n, N)[None, :], m, n, rows, N)
    wait()
    start_next()
    acc = whole_product(h_ptr, w_ptr, m, n, rows, N, K, BM, BN, BK)
    put(x_ptr, there(x_ptr, m, n, rows, N) + acc, m, n, rows, N)


@triton.jit
def counts_early(
    h_ptr, w_ptr, bias_ptr, x_ptr, counter_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    tl.atomic_add(counter_ptr, 1)
    wait()
    start_next()
    add_product(h_ptr, w_ptr, bias_ptr, x_ptr, m, n, rows, N, K, BM, BN, BK)


@triton.jit
def waits_at_the_end(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    add_product(h_ptr, w_ptr, bias_ptr, x_ptr, m, n, rows, N, K, BM, BN, BK)
    wait()
    start_next()


@triton.jit
def part_early(
    part_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    acc = there(part_ptr, m, n, rows, N) + bias_of(bias_ptr, n, N)[None, :]
    wait()
    start_next()
    put(x_ptr, there(x_ptr, m, n, rows, N) + acc, m, n, rows, N)


# -- waits and starts -------------------------------------------------------------------------------------------------


@triton.jit
def returns_first(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    if tl.program_id(0) * BM >= rows:
        return
    masked(h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM, BN, BK)


@triton.jit
def never_waits(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    start_next()
    add_product(h_ptr, w_ptr, bias_ptr, x_ptr, m, n, rows, N, K, BM, BN, BK)


@triton.jit
def first_columns_wait(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    if tl.program_id(1) == 0:
        wait()
    start_next()
    add_product(h_ptr, w_ptr, bias_ptr, x_ptr, m, n, rows, N, K, BM, BN, BK)


@triton.jit
def many_rows_wait(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    if rows > 1:
        wait()
        start_next()
    add_product(h_ptr, w_ptr, bias_ptr, x_ptr, m, n, rows, N, K, BM, BN, BK)


@triton.jit
def wait_of_its_own():
    pass


@triton.jit
def waits_in_its_own_way(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    wait_of_its_own()
    add_product(h_ptr, w_ptr, bias_ptr, x_ptr, m, n, rows, N, K, BM, BN, BK)


@triton.jit
def starts_first(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    start_next()
    wait()
    add_product(h_ptr, w_ptr, bias_ptr, x_ptr, m, n, rows, N, K, BM, BN, BK)


@triton.jit
def idle_ones_start_first(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    if tl.program_id(0) * BM >= rows:
        start_next()
        wait()
        return
    masked(h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM, BN, BK)


# -- other numbers ----------------------------------------------------------------------------------------------------


@triton.jit
def first_tile_again(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """The tile that was asked for first is taken in every round."""
    m, n = lanes(BM, BN)
    w, bias = weights(w_ptr, n, 0, N, K, BK), bias_of(bias_ptr, n, N)
    wait()
    start_next()
    acc = tl.zeros((BM, BN), tl.float32)
    for begin in range(0, K, BK):
        acc = tl.dot(rows_of(h_ptr, m, begin, rows, K, BK), w, acc, input_precision="ieee")
    put(x_ptr, there(x_ptr, m, n, rows, N) + acc + bias[None, :], m, n, rows, N)


@triton.jit
def this_tile_again(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """A round loads its own tile once more, and not that of the next round."""
    m, n = lanes(BM, BN)
    w, bias = weights(w_ptr, n, 0, N, K, BK), bias_of(bias_ptr, n, N)
    wait()
    start_next()
    acc = tl.zeros((BM, BN), tl.float32)
    for begin in range(0, K, BK):
        acc = tl.dot(rows_of(h_ptr, m, begin, rows, K, BK), w, acc, input_precision="ieee")
        w = weights(w_ptr, n, begin, N, K, BK)
    put(x_ptr, there(x_ptr, m, n, rows, N) + acc + bias[None, :], m, n, rows, N)


@triton.jit
def whole_tiles_only(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """The last tile, which is not a whole one, is left out."""
    m, n = lanes(BM, BN)
    w, bias = weights(w_ptr, n, 0, N, K, BK), bias_of(bias_ptr, n, N)
    wait()
    start_next()
    acc = tl.zeros((BM, BN), tl.float32)
    for begin in range(0, K // BK * BK, BK):
        acc = tl.dot(rows_of(h_ptr, m, begin, rows, K, BK), w, acc, input_precision="ieee")
        w = weights(w_ptr, n, begin + BK, N, K, BK)
    put(x_ptr, there(x_ptr, m, n, rows, N) + acc + bias[None, :], m, n, rows, N)


@triton.jit
def no_bias(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    w = weights(w_ptr, n, 0, N, K, BK)
    wait()
    start_next()
    put(x_ptr, there(x_ptr, m, n, rows, N) + product(h_ptr, w_ptr, w, m, n, rows, N, K, BM, BN, BK), m, n, rows, N)


@triton.jit
def no_sum(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    w, bias = weights(w_ptr, n, 0, N, K, BK), bias_of(bias_ptr, n, N)
    wait()
    start_next()
    put(x_ptr, product(h_ptr, w_ptr, w, m, n, rows, N, K, BM, BN, BK) + bias[None, :], m, n, rows, N)


@triton.jit
def bias_behind_its_end(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    w, bias = weights(w_ptr, n, 0, N, K, BK), tl.load(bias_ptr + n)
    wait()
    start_next()
    acc = product(h_ptr, w_ptr, w, m, n, rows, N, K, BM, BN, BK)
    put(x_ptr, there(x_ptr, m, n, rows, N) + acc + bias[None, :], m, n, rows, N)


class CountsEarly(Base):
    def linear_add(self, h, linear, x):
        self.launch(counts_early, h, linear.weight, linear.bias, x, torch.zeros(1, dtype=torch.int32))
        return x


class PartEarly(TwoKernels):
    second = part_early


class FlatRowsEarly(Base):
    """The rows are one long row to the kernel."""

    kernel = rows_early

    def launch(self, kernel, h, w, *tensors, **more):
        super().launch(kernel, h.view(1, -1).view(h.shape), w, *tensors, **more)


class OneTileOfRows(Base):
    """A grid for 16 rows."""

    def launch(self, kernel, h, w, *tensors, **more):
        (rows, K), N = h.shape, w.shape[1]
        kernel[1, triton.cdiv(N, 64)](h, w, *tensors, rows, N, K, 16, 64, 64, launch_pdl=True)


WRONG_SUM = "`linear_add` of layer 0, attn_c_proj is not right for session"
WRONG_ORDERS = (
    with_kernel(rows_early),
    FlatRowsEarly,
    with_kernel(last_row_early),
    with_kernel(sum_early),
    PartEarly,
    with_kernel(bias_added_early),
    CountsEarly,
    with_kernel(waits_at_the_end),
    with_kernel(returns_first),
    with_kernel(never_waits),
    with_kernel(waits_in_its_own_way),
    with_kernel(first_columns_wait),
    with_kernel(many_rows_wait),
    with_kernel(starts_first),
    with_kernel(idle_ones_start_first),
    with_kernel(first_tile_again),
    with_kernel(this_tile_again),
    with_kernel(whole_tiles_only),
    with_kernel(no_bias),
    with_kernel(no_sum),
    with_kernel(bias_behind_its_end),
    OneTileOfRows,
)
