"""What the exercise of lesson 070 ends as: what surrounds a product is done in its kernel, the norm by folding.

The engine's own part computes in half precision, too, and reads the weights faster: it has the statistics of a row from
the kernel before, splits what is too small for a GPU, and leaves the best word of each tile of the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...config import EngineConfig
from ...kernels import TRITON_AVAILABLE
from ...models.ops import Linear, Norm
from ...models.shape import Model

if TRITON_AVAILABLE:
    import triton

    from .kernel_with_ends import embed_kernel, linear_kernel


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


class LayerOps:
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
