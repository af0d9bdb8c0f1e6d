"""Each norm of a model folded into the linear map after it, once, when the engine is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ..kernels import Folded, folded
from ..models.ops import GatedLinear, Linear, Norm


class FoldedMaps:
    """By a norm, or None, and what stands after it: a linear map, or the embedding [V, C], whose product are logits."""

    def __init__(self) -> None:
        self.maps: dict[tuple[Norm | None, Any], Folded] = {}

    def __call__(self, norm: Norm | None, linear: Linear | Tensor) -> Folded:
        """The two as one, made when they are first met."""
        if (norm, linear) not in self.maps:
            weight, bias = (linear.T, None) if isinstance(linear, Tensor) else (linear.weight, linear.bias)
            gain, shift = (None, None) if norm is None else (norm.weight, norm.bias)
            is_rms = norm is not None and shift is None
            self.maps[norm, linear] = folded(gain, shift, weight, bias, is_rms, isinstance(linear, GatedLinear))
        return self.maps[norm, linear]

    def meet_all(self, model: Any) -> None:
        """Fold all that a model has: what is made while a graph is captured is there only when the graph has run."""
        for norm, linear in model.products() if hasattr(model, "products") else ():
            self(norm, linear)

    def __iter__(self) -> Iterator[Folded]:
        return iter(self.maps.values())
