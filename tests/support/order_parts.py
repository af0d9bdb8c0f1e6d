"""Operations with kernels that start early, as learners write them: right ones, and what others are made of."""

import torch
import triton
import triton.language as tl

from rosecourse.lab.checking.early_start import start_next, wait
from rosecourse.lab.course.l071 import PlainOps


@triton.jit
def lanes(BM: tl.constexpr, BN: tl.constexpr):
    """The rows and the columns of a program."""
    return tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)


@triton.jit
def weights(w_ptr, n, begin, N, K, BK: tl.constexpr):
    k = begin + tl.arange(0, BK)
    return tl.load(w_ptr + k[:, None] * N + n[None, :], mask=(k < K)[:, None] & (n < N)[None, :], other=0.0)


@triton.jit
def rows_of(h_ptr, m, begin, rows, K, BK: tl.constexpr):
    k = begin + tl.arange(0, BK)
    return tl.load(h_ptr + m[:, None] * K + k[None, :], mask=(m < rows)[:, None] & (k < K)[None, :], other=0.0)


@triton.jit
def bias_of(bias_ptr, n, N):
    return tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)


@triton.jit
def product(h_ptr, w_ptr, w, m, n, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """h @ w; the first tile of the weights is there."""
    acc = tl.zeros((BM, BN), tl.float32)
    for begin in range(0, K, BK):
        acc = tl.dot(rows_of(h_ptr, m, begin, rows, K, BK), w, acc, input_precision="ieee")
        w = weights(w_ptr, n, begin + BK, N, K, BK)
    return acc


@triton.jit
def there(x_ptr, m, n, rows, N):
    inside = (m < rows)[:, None] & (n < N)[None, :]
    return tl.load(x_ptr + m[:, None] * N + n[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def put(x_ptr, x, m, n, rows, N):
    inside = (m < rows)[:, None] & (n < N)[None, :]
    tl.store(x_ptr + m[:, None] * N + n[None, :], x.to(x_ptr.dtype.element_ty), mask=inside)


@triton.jit
def masked(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """No program returns early: those without work do theirs behind masks."""
    m, n = lanes(BM, BN)
    bias, w = bias_of(bias_ptr, n, N), weights(w_ptr, n, 0, N, K, BK)
    wait()
    start_next()
    acc = product(h_ptr, w_ptr, w, m, n, rows, N, K, BM, BN, BK)
    put(x_ptr, there(x_ptr, m, n, rows, N) + acc + bias[None, :], m, n, rows, N)


class Base(PlainOps):
    """What the others change one thing of: mostly the kernel."""

    kernel = masked
    early = True

    def linear_add(self, h, linear, x):
        self.launch(type(self).kernel, h, linear.weight, linear.bias, x)
        return x

    def launch(self, kernel, h, w, *tensors, **more):
        (rows, K), N = h.shape, w.shape[1]
        grid = (triton.cdiv(max(rows, 32), 16), triton.cdiv(N, 64))
        sizes = {"rows": rows, "N": N, "K": K, "BM": 16, "BN": 64, "BK": 64}
        kernel[grid](h, w, *tensors, **sizes, **more, launch_pdl=self.early)


class Masked(Base):
    pass


# -- right ones in other styles ---------------------------------------------------------------------------------------


@triton.jit
def out_of_place(
    h_ptr, w_ptr, bias_ptr, x_ptr, sum_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    bias, w = bias_of(bias_ptr, n, N), weights(w_ptr, n, 0, N, K, BK)
    if tl.program_id(0) * BM >= rows:
        wait()
        start_next()
        return
    wait()
    start_next()
    x = there(x_ptr, m, n, rows, N)
    acc = product(h_ptr, w_ptr, w, m, n, rows, N, K, BM, BN, BK)
    put(sum_ptr, x + acc + bias[None, :], m, n, rows, N)


class OutOfPlace(Base):
    """The sum has memory of its own, and a program without work has a wait of its own."""

    def linear_add(self, h, linear, x):
        total = torch.empty_like(x)
        self.launch(out_of_place, h, linear.weight, linear.bias, x, total)
        return total


@triton.jit
def product_alone(
    h_ptr, w_ptr, part_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    w = weights(w_ptr, n, 0, N, K, BK)
    wait()
    start_next()
    put(part_ptr, product(h_ptr, w_ptr, w, m, n, rows, N, K, BM, BN, BK), m, n, rows, N)


@triton.jit
def sum_alone(
    part_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """The old sum is two kernels old here, or older: the product lies between."""
    m, n = lanes(BM, BN)
    bias, x = bias_of(bias_ptr, n, N), there(x_ptr, m, n, rows, N)
    wait()
    start_next()
    put(x_ptr, x + there(part_ptr, m, n, rows, N) + bias[None, :], m, n, rows, N)


class TwoKernels(Base):
    second = sum_alone

    def linear_add(self, h, linear, x):
        part = torch.empty(x.shape)
        self.launch(product_alone, h, linear.weight, part)
        self.launch(type(self).second, part, linear.weight, linear.bias, x)
        return x


@triton.jit
def sum_if_old(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OLD: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    w, bias = weights(w_ptr, n, 0, N, K, BK), bias_of(bias_ptr, n, N)
    if OLD:
        x = there(x_ptr, m, n, rows, N)
        wait()
    else:
        wait()
        x = there(x_ptr, m, n, rows, N)
    start_next()
    put(x_ptr, x + product(h_ptr, w_ptr, w, m, n, rows, N, K, BM, BN, BK) + bias[None, :], m, n, rows, N)


class SumIfOld(Base):
    """The sum is read before the wait where something has been computed since it was made."""

    def __init__(self, model, config):
        super().__init__(model, config)
        self.old = False

    def norm_linear(self, x, norm, linear):
        self.old = True
        return super().norm_linear(x, norm, linear)

    def linear_add(self, h, linear, x):
        self.launch(sum_if_old, h, linear.weight, linear.bias, x, OLD=self.old)
        self.old = False
        return x


RIGHT = (Masked, OutOfPlace, TwoKernels, SumIfOld)
