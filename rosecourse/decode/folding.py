"""Each norm of a model folded into the linear map after it, once, when the engine is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..kernels import Folded, folded
from ..models.ops import GatedLinear, Linear, Norm, Stream

Meet = Callable[[Norm | None, Any], Folded]


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

    def meet_all(self, model: Any) -> bool:
        """Fold all that a model has: what is made while a graph is captured is there only when the graph has run.

        Returns whether that was all: a model that makes its norms or maps anew in each call has others the next time.
        """
        self._meet(model)
        known = len(self.maps)
        self._meet(model)
        return len(self.maps) == known

    def _meet(self, model: Any) -> None:
        if hasattr(model, "with_ops"):
            one = torch.zeros(1, dtype=torch.int64, device=model.device)
            with torch.no_grad():
                first = model.with_ops(_Meeting(self))
                first.logits(first.hidden(one, one, lambda layer_idx, q, k, v: q))

    def __iter__(self) -> Iterator[Folded]:
        return iter(self.maps.values())

    @property
    def num_bytes(self) -> int:
        """The memory of the folded weights, which are there beside the model's own."""
        return sum(part.nbytes for one in self for part in one[:3])


def folded_bytes(model: Any) -> int:
    """The memory of a model's folded weights. The model may be one without numbers (`models.load.without_numbers`).

    Triton must be there: it is a part of the kernels' module, whether they run or not.
    """
    maps = FoldedMaps()
    maps.meet_all(model)
    return maps.num_bytes


class _Meeting:
    """Operations that compute nothing: a model goes through them to say which norm stands before which weights."""

    def __init__(self, meet: Meet) -> None:
        self.meet = meet

    def embed(self, token_ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor) -> Stream:
        return None

    def norm_linear(self, x: Stream, norm: Norm, linear: Linear) -> Tensor:
        found = self.meet(norm, linear)
        return found.weight.new_empty(1, len(found.weight) // (1 + found.gated))

    def norm_linear_gelu(self, x: Stream, norm: Norm, linear: Linear) -> Tensor:
        return self.norm_linear(x, norm, linear)

    def linear_add(self, h: Tensor, linear: Linear, x: Stream) -> Stream:
        self.meet(None, linear)

    def logits(self, x: Stream, norm: Norm, wte: Tensor) -> Tensor:
        return wte.new_empty(1, len(self.meet(norm, wte).weight))
