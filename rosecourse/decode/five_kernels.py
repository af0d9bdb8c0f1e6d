"""Part `ops`, in five kernels a layer: the matrix products are ours, so what surrounds them is a part of them.

    norm and projection to q, K and V | attention, which appends | projection and sum |
    norm, linear map and GELU | linear map and sum

What a norm has to know of its rows, the kernel that wrote them has left beside them: `kernels.fused.Stream`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..config import EngineConfig
from ..kernels import Folded, FusedLinears, Head, choose, folded, triton_runs_on
from ..models.ops import Linear, Norm, Stream
from ..models.shape import Model
from . import ops
from .ops import Residual

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class LayerOps:
    """Around our own matrix products, for few rows. Where they cannot run or do not pay: around the library's.

    The weights are copied once, with the norms folded in: as much memory again as the model has.
    """

    kernels: Callable[..., Any] = FusedLinears  # made with a device and a dtype

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self.library = ops.LayerOps(model, config)
        self.maps: dict[tuple[Norm | None, Any], Folded] = {}
        self.head: Head | None = None  # what the last call of `logits` has made
        self.fused: Any = None
        if model.dtype in DTYPES and triton_runs_on(model.device):
            self.fused = type(self).kernels(model.device, model.dtype)
            self._fold_all(model)

    def embed(self, token_ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor) -> Stream:
        if self.fused is None or len(token_ids) > self.fused.most_rows:
            return self.library.embed(token_ids, positions, wte, wpe)
        return self.fused.embed(token_ids, positions, wte, wpe)

    def norm_linear(self, x: Stream, norm: Norm, linear: Linear) -> Tensor:
        if isinstance(x, Residual):
            return self.library.norm_linear(x, norm, linear)
        return self.fused.norm_linear(x, self._map(norm, linear), norm.eps)

    def norm_linear_gelu(self, x: Stream, norm: Norm, linear: Linear) -> Tensor:
        if isinstance(x, Residual):
            return self.library.norm_linear_gelu(x, norm, linear)
        return self.fused.norm_linear(x, self._map(norm, linear), norm.eps, gelu=True)

    def linear_add(self, h: Tensor, linear: Linear, x: Stream) -> Stream:
        if isinstance(x, Residual):
            return self.library.linear_add(h, linear, x)
        return self.fused.linear_add(h, self._map(None, linear), x)

    def logits(self, x: Stream, norm: Norm, wte: Tensor) -> Tensor:
        if isinstance(x, Residual):
            return self.library.logits(x, norm, wte)
        self.head = self.fused.logits(x, self._map(norm, wte), norm.eps)
        return self.head.logits

    def choose(self, logits: Tensor, live: Tensor, token_ids: Tensor, context_lens: Tensor) -> Tensor:
        """`kernels.choose`, arguments and all. Logits that `logits` has just made are not read again."""
        if self.head is None or logits is not self.head.logits:
            return choose(logits, live, token_ids, context_lens)
        return self.fused.choose(self.head, live, token_ids, context_lens)

    def _map(self, norm: Norm | None, linear: Linear | Tensor) -> Folded:
        """A norm and what comes after it, folded when they are first met. A tensor is the embedding, [V, C]."""
        if (norm, linear) not in self.maps:
            weight, bias = (linear.T, None) if isinstance(linear, Tensor) else (linear.weight, linear.bias)
            gain, shift = (None, None) if norm is None else (norm.weight, norm.bias)
            self.maps[norm, linear] = folded(gain, shift, weight, bias)
        return self.maps[norm, linear]

    def _fold_all(self, model: Any) -> None:
        """Meet all weights now: what is made while a graph is captured is there only when the graph has run."""
        if not hasattr(model, "with_ops"):
            return
        one = torch.zeros(1, dtype=torch.int64, device=model.device)
        with torch.no_grad():
            first = model.with_ops(_Meeting(self._map))
            first.logits(first.hidden(one, one, lambda layer_idx, q, k, v: q))
        rows = (1, self.fused.most_rows)
        if not all(self.fused.fits(n, found.weight) for n in rows for found in self.maps.values()):
            self.fused = None
            self.maps.clear()


class _Meeting:
    """Operations that compute nothing: a model goes through them to say which norm stands before which weights."""

    def __init__(self, meet: Callable[[Norm | None, Any], Folded]) -> None:
        self.meet = meet

    def embed(self, token_ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor) -> Stream:
        return None

    def norm_linear(self, x: Stream, norm: Norm, linear: Linear) -> Tensor:
        return linear.weight.new_empty(1, len(self.meet(norm, linear).weight))

    def norm_linear_gelu(self, x: Stream, norm: Norm, linear: Linear) -> Tensor:
        return self.norm_linear(x, norm, linear)

    def linear_add(self, h: Tensor, linear: Linear, x: Stream) -> Stream:
        self.meet(None, linear)

    def logits(self, x: Stream, norm: Norm, wte: Tensor) -> Tensor:
        return wte.new_empty(1, len(self.meet(norm, wte).weight))
