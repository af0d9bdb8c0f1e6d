"""What the exercise of lesson 071 begins as, around its kernel."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ...config import EngineConfig
from ...kernels import TRITON_AVAILABLE
from ...models.ops import Linear, Norm
from ...models.shape import Model

if TRITON_AVAILABLE:
    import triton

    from .waits_at_once_kernel import linear_add_kernel


class LayerOps:
    """A kernel of our own adds to the stream, [N, C]; it may start before the one before has ended."""

    most_rows = 32  # of the batches for which the grid is made

    def __init__(self, model: Model, config: EngineConfig) -> None:
        """For a model and the config of an engine: these operations need to know neither."""

    def embed(self, token_ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor) -> Tensor:
        return F.embedding(token_ids, wte) + F.embedding(positions, wpe)

    def norm_linear(self, x: Tensor, norm: Norm, linear: Linear) -> Tensor:
        return linear(norm(x))

    def norm_linear_gelu(self, x: Tensor, norm: Norm, linear: Linear) -> Tensor:
        return F.gelu(linear(norm(x)), approximate="tanh")

    def linear_add(self, h: Tensor, linear: Linear, x: Tensor) -> Tensor:
        (K, N), rows = linear.weight.shape, max(len(h), self.most_rows)
        grid = triton.cdiv(rows, 16), triton.cdiv(N, 64)
        tensors = h.contiguous(), linear.weight, linear.bias, x
        linear_add_kernel[grid](*tensors, len(h), N, K, BM=16, BN=64, BK=64, launch_pdl=True)
        return x

    def logits(self, x: Tensor, norm: Norm, wte: Tensor) -> Tensor:
        return norm(x) @ wte.T
