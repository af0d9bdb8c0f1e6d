"""What a transformer is computed with between its attentions: five operations, so that a model can be written once.

The residual stream that goes from one to the next is theirs. (FasterTransformer and FlashInfer cut a layer so, too.)
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch.nn.functional as F
from torch import Tensor, addmm

Stream = Any  # the residual stream of N tokens: [N, width], in whatever form the operations keep it
Ops = Any  # the operations on it: the methods of `LayerOps`, for any kind of stream


@dataclass(frozen=True, eq=False)
class Norm:
    """A layer norm over the last dimension, weight and bias [width]; the RMS norm where there is no bias."""

    weight: Tensor
    bias: Any  # Tensor | None
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, eq=False)
class Linear:
    """x @ weight + bias, in the Hugging Face format of GPT-2 (Conv1D): weight [in, out], bias [out] or None."""

    weight: Tensor
    bias: Any  # Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.weight if self.bias is None else addmm(self.bias, x, self.weight)


class GatedLinear(Linear):
    """SiLU of the first half of the outputs times the second half: [N, out / 2] (SwiGLU, Shazeer, 2020)."""

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = super().__call__(x).chunk(2, -1)
        return F.silu(gate) * up


class LayerOps:
    """An operation of PyTorch after another on a residual stream x, a tensor [N, C].

    token_ids, positions: int [N]; wte: [vocab_size, C]; wpe: [context, C] or None; h: [N, in].
    """

    def __init__(self, model: Any = None, config: Any = None) -> None:
        """As each part `ops` is made."""

    def embed(self, token_ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor | None) -> Tensor:
        return F.embedding(token_ids, wte) if wpe is None else F.embedding(token_ids, wte) + F.embedding(positions, wpe)

    def norm_linear(self, x: Tensor, norm: Norm, linear: Linear) -> Tensor:
        return linear(norm(x))

    def norm_linear_gelu(self, x: Tensor, norm: Norm, linear: Linear) -> Tensor:
        return F.gelu(linear(norm(x)), approximate="tanh")

    def linear_add(self, h: Tensor, linear: Linear, x: Tensor) -> Tensor:
        return x + linear(h)

    def logits(self, x: Tensor, norm: Norm, wte: Tensor) -> Tensor:
        return norm(x) @ wte.T


class Transformer:
    """What the families share. eos_token_id: the token ids that end a text. folder: where the weights come from."""

    def __init__(self, shape: Any, weights: dict[str, Tensor], tokenizer: Any, name: str) -> None:
        """weights: the Hugging Face names without their prefix, see `parameters` of the shape."""
        self.shape, self.weights, self.tokenizer, self.name = shape, weights, tokenizer, name
        self.eos_token_id: int | list[int] | None = getattr(tokenizer, "eos_token_id", None)
        self.folder: Path | None = None
        self.ops: Ops = LayerOps()
        weight = next(iter(weights.values()))
        self.dtype, self.device = weight.dtype, weight.device

    def with_ops(self, ops: Ops) -> Self:
        """The same model, with the same weights, computed with these operations."""
        model = copy(self)
        model.ops = ops
        return model


def with_ops(model: Any, ops: Ops) -> Any:
    """A model over the same weights that is computed with these operations, or itself if it takes none."""
    return model.with_ops(ops) if hasattr(model, "with_ops") else model
