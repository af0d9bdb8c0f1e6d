"""Operations whose kernel is right, and asks for nothing early, or does more or less than once what it should."""

import torch
import triton
import triton.language as tl

from rosecourse.lab.early_start import start_next, wait
from tests.support.order_parts import (
    Base,
    add_product,
    bias_of,
    in_line,
    lanes,
    masked,
    product,
    put,
    there,
    weights,
    whole_product,
    with_kernel,
)
from tests.support.wrong_orders import never_waits


@triton.jit
def weights_late(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    bias = bias_of(bias_ptr, n, N)
    wait()
    start_next()
    acc = whole_product(h_ptr, w_ptr, m, n, rows, N, K, BM, BN, BK)
    put(x_ptr, there(x_ptr, m, n, rows, N) + acc + bias[None, :], m, n, rows, N)


@triton.jit
def bias_late(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    w = weights(w_ptr, n, 0, N, K, BK)
    wait()
    start_next()
    acc = product(h_ptr, w_ptr, w, m, n, rows, N, K, BM, BN, BK)
    put(x_ptr, there(x_ptr, m, n, rows, N) + acc + bias_of(bias_ptr, n, N)[None, :], m, n, rows, N)


@triton.jit
def one_weight(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    tl.load(w_ptr)
    weights_late(h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM, BN, BK)


@triton.jit
def brought_near(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """What is read before the wait is thrown away: a compiler drops such reads, and nothing is in the cache then."""
    m, n = lanes(BM, BN)
    weights(w_ptr, n, 0, N, K, BK)
    bias_of(bias_ptr, n, N)
    in_line(PDL)
    add_product(h_ptr, w_ptr, bias_ptr, x_ptr, m, n, rows, N, K, BM, BN, BK)


class BroughtNear(Base):
    def linear_add(self, h, linear, x):
        self.launch(brought_near, h, linear.weight, linear.bias, x, PDL=self.early)
        return x


@triton.jit
def never_starts(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = lanes(BM, BN)
    w, bias = weights(w_ptr, n, 0, N, K, BK), bias_of(bias_ptr, n, N)
    wait()
    acc = product(h_ptr, w_ptr, w, m, n, rows, N, K, BM, BN, BK)
    put(x_ptr, there(x_ptr, m, n, rows, N) + acc + bias[None, :], m, n, rows, N)


@triton.jit
def starts_at_the_end(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    never_starts(h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM, BN, BK)
    start_next()


@triton.jit
def waits_twice(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    masked(h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM, BN, BK)
    wait()


@triton.jit
def starts_twice(
    h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    masked(h_ptr, w_ptr, bias_ptr, x_ptr, rows, N, K, BM, BN, BK)
    start_next()


class NotEarly(Base):
    early = False


class NotEarlyAndNoWait(Base):
    """No wait is needed where a kernel does not start early."""

    kernel, early = never_waits, False


class NoKernel(Base):
    def linear_add(self, h, linear, x):
        return x + torch.addmm(linear.bias, h, linear.weight)


WITHOUT_THE_IDEA = {
    with_kernel(weights_late): "4 times a kernel asks for weights or a bias only after its wait",
    with_kernel(bias_late): "4 times a kernel asks for weights or a bias only after its wait",
    with_kernel(one_weight): "4 times a kernel asks for weights or a bias only after its wait",
    BroughtNear: "8 times a kernel reads weights or a bias once more after its wait",
    with_kernel(never_starts): "or never let it, in a step of 3 sessions",
    with_kernel(starts_at_the_end): "numbers before letting the next kernel start",
    with_kernel(waits_twice): "programs wait 8 times more than once each",
    with_kernel(starts_twice): "programs call `start_next()` 8 times more than once each",
    NotEarly: "4 kernels are launched without `launch_pdl=True`",
    NotEarlyAndNoWait: "4 kernels are launched without `launch_pdl=True`",
    NoKernel: "4 calls of `linear_add` launch no kernel",
}
