"""What the exercise of lesson 069 ends as: the vocabulary is padded on a CPU, too, so that the idea can be tried there.

The engine's own part pads it on a GPU alone, and has GELU as the end of a product there.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ...config import EngineConfig
from ...kernels import add_norm_on
from ...models.ops import Linear, Norm
from ...models.shape import Model


class Residual:
    """The residual stream: x [N, C], and what is still to be added to it [N, C]; None is nothing."""

    def __init__(self, x: Tensor, delta: Tensor | None) -> None:
        self.x, self.delta = x, delta


class LayerOps:
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
