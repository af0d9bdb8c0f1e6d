"""What a transformer is computed with between its attentions: five operations, so that a model can be written once.

A model calls them, and does not look into the residual stream that goes from one to the next: what it is made of is
theirs. (FasterTransformer and FlashInfer cut a layer in the same places.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch.nn.functional as F
from torch import Tensor, addmm

Stream = Any  # the residual stream of N tokens: [N, width], in whatever form the operations keep it


@dataclass(frozen=True, eq=False)
class Norm:
    """A layer norm over the last dimension: weight and bias [width]."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
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


class Ops(Protocol):
    """The operations on a residual stream x; C is its width."""

    def embed(self, token_ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor | None) -> Stream:
        """A row of wte [vocab_size, C], and one of wpe [context, C] if any, added; token_ids, positions: int [N]."""

    def norm_linear(self, x: Stream, norm: Norm, linear: Linear) -> Tensor:
        """linear(norm(x)): [N, out]."""

    def norm_linear_gelu(self, x: Stream, norm: Norm, linear: Linear) -> Tensor:
        """gelu(linear(norm(x))), with the tanh approximation: [N, out]."""

    def linear_add(self, h: Tensor, linear: Linear, x: Stream) -> Stream:
        """x + linear(h), where h is [N, in] and linear has C outputs."""

    def logits(self, x: Stream, norm: Norm, wte: Tensor) -> Tensor:
        """norm(x) @ wte.T: [N, vocab_size]; rows may be farther apart than they are long."""


class LayerOps:
    """An operation of PyTorch after another. The stream is a tensor [N, C]."""

    def __init__(self, model: Any = None, config: Any = None) -> None:
        """For a model and the config of an engine: these operations need to know neither."""

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


def with_ops(model: Any, ops: Ops) -> Any:
    """A model over the same weights that is computed with these operations, or itself if it takes none."""
    return model.with_ops(ops) if hasattr(model, "with_ops") else model
