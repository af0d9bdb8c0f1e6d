"""What the exercises of lessons 069 to 071 begin and end as. The engine's own parts do more, and do it on a GPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...config import EngineConfig
from ...kernels import TRITON_AVAILABLE, add_norm_on
from ...models.ops import Linear, Norm
from ...models.shape import Model

if TRITON_AVAILABLE:
    import triton

    from .operation_kernels import (
        early_linear_add_kernel,
        embed_kernel,
        linear_add_kernel,
        linear_kernel,
        product_kernel,
    )

# -- lesson 069 -------------------------------------------------------------------------------------------------------


class PlainOps:
    """An operation of PyTorch after another. The stream is a tensor [N, C]."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self.add_norm = add_norm_on(model.device)  # add_norm(x, delta, weight, bias, eps)

    def embed(self, token_ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor) -> Tensor:
        return F.embedding(token_ids, wte) + F.embedding(positions, wpe)

    def norm_linear(self, x: Tensor, norm: Norm, linear: Linear) -> Tensor:
        return linear(norm(x))

    def norm_linear_gelu(self, x: Tensor, norm: Norm, linear: Linear) -> Tensor:
        return F.gelu(linear(norm(x)), approximate="tanh")

    def linear_add(self, h: Tensor, linear: Linear, x: Tensor) -> Tensor:
        return x + linear(h)

    def logits(self, x: Tensor, norm: Norm, wte: Tensor) -> Tensor:
        return norm(x) @ wte.T


class Residual:
    """The residual stream: x [N, C], and what is still to be added to it [N, C]; None is nothing."""

    def __init__(self, x: Tensor, delta: Tensor | None) -> None:
        self.x, self.delta = x, delta


class WaitingSums:
    """What is to be added waits in the stream until the next norm, and the vocabulary is padded."""

    multiple = 256  # of which the padded vocabulary is one

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self.add_norm = add_norm_on(model.device)
        self.padded: tuple[Tensor, Tensor] | None = None  # wte, and its padded copy

    def embed(self, token_ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor) -> Residual:
        return Residual(F.embedding(token_ids, wte), F.embedding(positions, wpe))

    def norm_linear(self, x: Residual, norm: Norm, linear: Linear) -> Tensor:
        return linear(self._norm(x, norm))

    def norm_linear_gelu(self, x: Residual, norm: Norm, linear: Linear) -> Tensor:
        return F.gelu(linear(self._norm(x, norm)), approximate="tanh")

    def linear_add(self, h: Tensor, linear: Linear, x: Residual) -> Residual:
        return Residual(x.x if x.delta is None else x.x + x.delta, linear(h))

    def logits(self, x: Residual, norm: Norm, wte: Tensor) -> Tensor:
        return (self._norm(x, norm) @ self._padded(wte).T)[:, : len(wte)]

    def _norm(self, x: Residual, norm: Norm) -> Tensor:
        """Add what waits, and normalise: [N, C]."""
        if x.delta is None:
            return norm(x.x)
        x.x, normed = self.add_norm(x.x, x.delta, norm.weight, norm.bias, norm.eps)
        x.delta = None
        return normed

    def _padded(self, wte: Tensor) -> Tensor:
        """wte with rows of zeros after it, made once."""
        if self.padded is None or self.padded[0] is not wte:
            self.padded = wte, F.pad(wte, (0, 0, 0, -len(wte) % self.multiple))
        return self.padded[1]


# -- lesson 070 -------------------------------------------------------------------------------------------------------


class ProductAlone:
    """A matrix product of our own, and operations of PyTorch around it. The stream is a tensor [N, C]."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self.kept: dict[Linear, Tensor] = {}  # a linear map -> its weight as [out, in]

    def embed(self, token_ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor) -> Tensor:
        return F.embedding(token_ids, wte) + F.embedding(positions, wpe)

    def norm_linear(self, x: Tensor, norm: Norm, linear: Linear) -> Tensor:
        return self._product(norm(x), self._weight(linear)) + linear.bias

    def norm_linear_gelu(self, x: Tensor, norm: Norm, linear: Linear) -> Tensor:
        return F.gelu(self.norm_linear(x, norm, linear), approximate="tanh")

    def linear_add(self, h: Tensor, linear: Linear, x: Tensor) -> Tensor:
        return x + (self._product(h, self._weight(linear)) + linear.bias)

    def logits(self, x: Tensor, norm: Norm, wte: Tensor) -> Tensor:
        return self._product(norm(x), wte)

    def _weight(self, linear: Linear) -> Tensor:
        """A weight as the kernel reads it, [out, in]: copied once."""
        if linear not in self.kept:
            self.kept[linear] = linear.weight.T.contiguous()
        return self.kept[linear]

    def _product(self, x: Tensor, w: Tensor) -> Tensor:
        """x @ w.T for x [rows, K] and w [N, K], in one launch."""
        rows, (N, K) = len(x), w.shape
        out = x.new_empty(rows, N)
        grid = triton.cdiv(rows, 16), triton.cdiv(N, 64)
        product_kernel[grid](x, w, out, rows, N=N, K=K, BM=16, BN=64, BK=64)
        return out


class Folded:
    """A norm and a linear map as one: (x @ weight.T - mean(x) * colsum) / std(x) + bias."""

    def __init__(self, norm: Norm | None, weight: Tensor, bias: Tensor | None) -> None:
        """weight [in, out], bias [out]; None is a norm that changes nothing, and a bias of 0."""
        wide = weight.double()
        total = torch.zeros_like(wide[0]) if bias is None else bias.double()
        if norm is not None:
            total = total + norm.bias.double() @ wide
            wide = norm.weight.double()[:, None] * wide
        self.weight = wide.T.to(weight.dtype).contiguous()  # [out, in]
        self.bias = total.float()
        self.colsum = self.weight.sum(dim=1, dtype=torch.float64).float()


class ProductWithEnds:
    """A launch for each operation. The stream is a tensor [N, C]."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self.folded: dict[Any, Folded] = {}  # by a norm, or None, and what stands after it

    def embed(self, token_ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor) -> Tensor:
        B, C = len(token_ids), wte.shape[1]
        x = wte.new_empty(B, C)
        embed_kernel[(B,)](token_ids, positions, wte, wpe, x, C=C, C2=triton.next_power_of_2(C))
        return x

    def norm_linear(self, x: Tensor, norm: Norm, linear: Linear) -> Tensor:
        return self._linear(x, self._fold(norm, linear), eps=norm.eps)

    def norm_linear_gelu(self, x: Tensor, norm: Norm, linear: Linear) -> Tensor:
        return self._linear(x, self._fold(norm, linear), eps=norm.eps, gelu=True)

    def linear_add(self, h: Tensor, linear: Linear, x: Tensor) -> Tensor:
        return self._linear(h, self._fold(None, linear), old=x)

    def logits(self, x: Tensor, norm: Norm, wte: Tensor) -> Tensor:
        return self._linear(x, self._fold(norm, wte), eps=norm.eps)

    def _fold(self, norm: Norm | None, linear: Linear | Tensor) -> Folded:
        """The two as one, made once."""
        if (norm, linear) not in self.folded:
            weight, bias = (linear.T, None) if isinstance(linear, Tensor) else (linear.weight, linear.bias)
            self.folded[norm, linear] = Folded(norm, weight, bias)
        return self.folded[norm, linear]

    def _linear(
        self, x: Tensor, w: Folded, eps: float | None = None, gelu: bool = False, old: Tensor | None = None
    ) -> Tensor:
        """x @ w.T + b in one launch; eps: of the norm in w, None without one; old: is added behind it."""
        rows, (N, K) = len(x), w.weight.shape
        out = x.new_empty(rows, N)
        grid = triton.cdiv(rows, 16), triton.cdiv(N, 64)
        tensors = x, w.weight, w.bias, w.colsum, out if old is None else old, out
        constants = {"K2": triton.next_power_of_2(K), "NORM": eps is not None, "GELU": gelu, "ADD": old is not None}
        linear_kernel[grid](*tensors, rows, eps or 0.0, N=N, K=K, **constants, BM=16, BN=64, BK=64)
        return out


# -- lesson 071 -------------------------------------------------------------------------------------------------------


class WaitsAtOnce(PlainOps):
    """The kernel that adds to the stream waits before it does anything."""

    def linear_add(self, h: Tensor, linear: Linear, x: Tensor) -> Tensor:
        (K, N), most_rows = linear.weight.shape, max(len(h), 32)  # the grid is that of the largest batch
        grid = triton.cdiv(most_rows, 16), triton.cdiv(N, 64)
        tensors = h.contiguous(), linear.weight, linear.bias, x
        linear_add_kernel[grid](*tensors, len(h), N, K, BM=16, BN=64, BK=64, launch_pdl=True)
        return x


class WaitsLate(PlainOps):
    """The kernel that adds to the stream asks for its weights, and then waits."""

    def linear_add(self, h: Tensor, linear: Linear, x: Tensor) -> Tensor:
        (K, N), most_rows = linear.weight.shape, max(len(h), 32)  # the grid is that of the largest batch
        grid = triton.cdiv(most_rows, 16), triton.cdiv(N, 64)
        tensors = h.contiguous(), linear.weight, linear.bias, x
        early_linear_add_kernel[grid](*tensors, len(h), N, K, BM=16, BN=64, BK=64, launch_pdl=True)
        return x
