"""The operations from which the exercise of lesson 071 derives. The engine's own do more, and do it on a GPU."""

import torch.nn.functional as F
from torch import Tensor

from ...config import EngineConfig
from ...kernels import add_norm_on
from ...models.ops import Linear, Norm
from ...models.shape import Model


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
