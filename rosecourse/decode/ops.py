"""Part `ops`: what a layer is computed with around its attention, in fewer kernels than PyTorch has operations for it.

* A residual that is to be added waits until the next norm needs the sum: one kernel adds and normalises.
* GELU is the end of the product before it (an epilogue of cuBLASLt).
* The vocabulary is padded: for 50,257 columns the library picks a kernel that is four times slower than for 50,432.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, _addmm_activation

from ..config import EngineConfig
from ..kernels import add_norm_on
from ..models.ops import Linear, Norm
from ..models.shape import Model

MULTIPLE = 256  # of which the padded vocabulary is one


@dataclass
class Residual:
    """The residual stream: x [N, C], and what is still to be added to it [N, C]; None is nothing."""

    x: Tensor
    delta: Tensor | None


class LayerOps:
    """Around the matrix products of the library. The stream is a `Residual`."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self.add_norm = add_norm_on(model.device)
        self.padded: tuple[Tensor, Tensor] | None = None  # wte, and its padded copy

    def embed(self, token_ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor | None) -> Residual:
        return Residual(F.embedding(token_ids, wte), None if wpe is None else F.embedding(positions, wpe))

    def norm_linear(self, x: Residual, norm: Norm, linear: Linear) -> Tensor:
        return linear(self._norm(x, norm))

    def norm_linear_gelu(self, x: Residual, norm: Norm, linear: Linear) -> Tensor:
        h = self._norm(x, norm)
        if h.is_cuda:  # on a CPU the private operation is another GELU, without tanh
            return _addmm_activation(linear.bias, h, linear.weight, use_gelu=True)
        return F.gelu(linear(h), approximate="tanh")

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
        """On a GPU, wte with rows of zeros behind it, made once: a copy of 77 MB for GPT-2 in half precision."""
        if not wte.is_cuda or len(wte) % MULTIPLE == 0:
            return wte
        if self.padded is None or self.padded[0] is not wte:
            self.padded = wte, F.pad(wte, (0, 0, 0, -len(wte) % MULTIPLE))
        return self.padded[1]
