"""Part `ops`, in five kernels a layer: the matrix products are ours, so what surrounds them is a part of them.

    norm and projection to q, K and V | attention, which appends | projection and sum |
    norm, linear map and GELU | linear map and sum

What a norm has to know of its rows, the kernel that wrote them has left beside them: `kernels.fused.Stream`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..config import EngineConfig
from ..kernels import Head, choose, fused_linears_for, triton_runs_on
from ..models.ops import Linear, Norm, Stream
from ..models.shape import Model
from . import ops
from .folding import FoldedMaps
from .ops import Residual

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class LayerOps:
    """Around our own matrix products, for few rows. Where they cannot run or do not pay: around the library's.

    The weights are copied once, with the norms folded in: as much memory again as the model has. A kernel starts before
    the one before it has ended, where the GPU can do that.
    """

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self.library = ops.LayerOps(model, config)
        self.maps = FoldedMaps()
        self.head: Head | None = None  # what the last call of `logits` has made
        self.fused = self.kernels_on(model.device, model.dtype)
        if self.fused is not None:
            self.maps.meet_all(model)
            rows = (1, self.fused.most_rows)
            if not all(self.fused.fits(n, found.weight) for n in rows for found in self.maps):
                self.fused, self.maps = None, FoldedMaps()

    def kernels_on(self, device: torch.device, dtype: torch.dtype) -> Any:
        """Our products; None where they do not run, or do not pay."""
        runs = device.type == "cuda" and triton_runs_on(device) and dtype in DTYPES
        return fused_linears_for(device, dtype) if runs else None

    def embed(self, token_ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor) -> Stream:
        if self.fused is None or len(token_ids) > self.fused.most_rows:
            return self.library.embed(token_ids, positions, wte, wpe)
        return self.fused.embed(token_ids, positions, wte, wpe)

    def norm_linear(self, x: Stream, norm: Norm, linear: Linear) -> Tensor:
        if isinstance(x, Residual):
            return self.library.norm_linear(x, norm, linear)
        return self.fused.norm_linear(x, self.maps(norm, linear), norm.eps)

    def norm_linear_gelu(self, x: Stream, norm: Norm, linear: Linear) -> Tensor:
        if isinstance(x, Residual):
            return self.library.norm_linear_gelu(x, norm, linear)
        return self.fused.norm_linear(x, self.maps(norm, linear), norm.eps, gelu=True)

    def linear_add(self, h: Tensor, linear: Linear, x: Stream) -> Stream:
        if isinstance(x, Residual):
            return self.library.linear_add(h, linear, x)
        return self.fused.linear_add(h, self.maps(None, linear), x)

    def logits(self, x: Stream, norm: Norm, wte: Tensor) -> Tensor:
        if isinstance(x, Residual):
            return self.library.logits(x, norm, wte)
        self.head = self.fused.logits(x, self.maps(norm, wte), norm.eps)
        return self.head.logits

    def choose(self, logits: Tensor, live: Tensor, token_ids: Tensor, context_lens: Tensor) -> Tensor:
        """`kernels.choose`, arguments and all. Logits that `logits` has just made are not read again."""
        if self.head is None or logits is not self.head.logits:
            return choose(logits, live, token_ids, context_lens)
        return self.fused.choose(self.head, live, token_ids, context_lens)
