"""What the exercise of lesson 070 begins as: a product of our own in Triton, and operations of PyTorch around it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ...config import EngineConfig
from ...kernels import TRITON_AVAILABLE
from ...models.ops import Linear, Norm
from ...models.shape import Model

if TRITON_AVAILABLE:
    import triton

    from .kernel_alone import product_kernel


class LayerOps:
    """The stream is a tensor [N, C]."""

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
