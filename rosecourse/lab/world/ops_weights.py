"""The weights of a model as they were, for the judges of operations: in double precision, with names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...models.gpt2 import GPT2
from ...models.ops import Linear, Norm

NORMS = ("ln_1", "ln_2")
LINEARS = ("attn_c_attn", "attn_c_proj", "mlp_c_fc", "mlp_c_proj")


@dataclass(frozen=True, eq=False)
class Named:
    """A norm or a linear of the model, as it was. layer: -1 for the norm behind all layers."""

    layer: int
    name: str
    weight: Tensor
    bias: Tensor
    eps: float = 0.0

    def __str__(self) -> str:
        return f"layer {self.layer}, {self.name}" if self.layer >= 0 else self.name


class Weights:
    """What a model began with. norms, linears: by the identity of those that the model hands to its operations."""

    def __init__(self, model: GPT2) -> None:
        self.model = model
        self.wte, self.wpe = model.wte.double(), model.wpe.double()
        self._as_made = {name: (weight, weight.clone()) for name, weight in model.weights.items()}
        self._held = list(_held(model))
        self.norms: dict[int, Named] = {id(model.ln_f): _named(-1, "ln_f", model.ln_f)}
        self.linears: dict[int, Named] = {}
        for n, layer in enumerate(model.layers):
            self.norms |= {id(one): _named(n, name, one) for name in NORMS for one in [getattr(layer, name)]}
            self.linears |= {id(one): _named(n, name, one) for name in LINEARS for one in [getattr(layer, name)]}

    def changed(self) -> str:
        """The name of a weight that is not what it was; empty if all are."""
        now = list(_held(self.model))
        for (name, weight), (_, other) in zip(self._held, now, strict=True):
            if weight is not other:
                return name
        wrong = (name for name, pair in self._as_made.items() if not _equal(*pair))
        return next(wrong, "")


def _held(model: GPT2) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a model computes with, in the places where it has them."""
    yield "wte", model.wte
    yield "wpe", model.wpe
    for n, layer in enumerate(model.layers):
        for name in (*NORMS, *LINEARS):
            one: Any = getattr(layer, name)
            yield f"layer {n}, the weight of {name}", one.weight
            yield f"layer {n}, the bias of {name}", one.bias
    yield "the weight of ln_f", model.ln_f.weight
    yield "the bias of ln_f", model.ln_f.bias


def _equal(now: Tensor, then: Tensor) -> bool:
    return now.shape == then.shape and torch.equal(now, then)


def _named(layer: int, name: str, one: Norm | Linear) -> Named:
    eps = one.eps if isinstance(one, Norm) else 0.0
    return Named(layer, name, one.weight.double(), one.bias.double(), eps)
