"""The learner's operations in an engine: their exceptions are told, and what they return is looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from ...config import EngineConfig
from ...models.ops import Linear, Norm
from .causes import Cause
from .fault import Fault, PartIsWrong
from .learner import BUILT, Learner

METHODS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "embed": ("token_ids", "positions", "wte", "wpe"),
        "norm_linear": ("x", "norm", "linear"),
        "norm_linear_gelu": ("x", "norm", "linear"),
        "linear_add": ("h", "linear", "x"),
        "logits": ("x", "norm", "wte"),
        BUILT: ("model", "config"),
    }
)
NO_STREAM = "the model hands it to the next operation as `x`: without a `return` there is nothing to hand on"
SIDE_BY_SIDE = "the kernels behind it read the numbers of a row one after another: return the product as it was made"


class GuardedOps:
    """The learner's operations in the place of an engine's."""

    def __init__(self, learner: Learner, model: Any, config: EngineConfig) -> None:
        self.learner = learner
        self.made = learner.build(model, config)

    def embed(self, token_ids: torch.Tensor, positions: torch.Tensor, wte: torch.Tensor, wpe: torch.Tensor) -> Any:
        return self._stream("embed", token_ids, positions, wte, wpe)

    def norm_linear(self, x: Any, norm: Norm, linear: Linear) -> torch.Tensor:
        return self._rows("norm_linear", len(linear.bias), linear.weight, x, norm, linear)

    def norm_linear_gelu(self, x: Any, norm: Norm, linear: Linear) -> torch.Tensor:
        return self._rows("norm_linear_gelu", len(linear.bias), linear.weight, x, norm, linear)

    def linear_add(self, h: torch.Tensor, linear: Linear, x: Any) -> Any:
        return self._stream("linear_add", h, linear, x)

    def logits(self, x: Any, norm: Norm, wte: torch.Tensor) -> torch.Tensor:
        return self._rows("logits", len(wte), wte, x, norm, wte)

    def _stream(self, method: str, *arguments: Any) -> Any:
        returned = self.learner.call_method(self.made, method, *arguments)
        if returned is None:
            what = f"`{method}` returned nothing (None); it returns the residual stream"
            raise PartIsWrong(Fault(what, reason=NO_STREAM, cause=Cause.INTERFACE))
        return returned

    def _rows(self, method: str, width: int, weight: torch.Tensor, *arguments: Any) -> torch.Tensor:
        """What a method returns, which is to be rows of so many numbers, of the dtype and on the device of a weight."""
        returned = self.learner.call_method(self.made, method, *arguments)
        if not isinstance(returned, torch.Tensor):
            raise _not_wanted(method, f"a {type(returned).__name__}", f"a tensor [N, {width}]")
        if method == "logits" and returned.dim() == 2 and returned.shape[1] > width:
            what = f"`logits` returned {returned.shape[1]} numbers in a row; the vocabulary has {width} words"
            reason = "the words of the padding do not exist, and a step must not choose one of them: leave them out"
            raise PartIsWrong(Fault(what, reason=reason, cause=Cause.PADDING_SHOWN))
        if returned.dim() != 2 or returned.shape[1] != width:
            raise _not_wanted(method, f"a tensor {list(returned.shape)}", f"a tensor [N, {width}]")
        if returned.dtype != weight.dtype or returned.device != weight.device:
            found = f"numbers of {returned.dtype} on {returned.device}"
            raise _not_wanted(method, found, f"{weight.dtype} on {weight.device}, as the weights are")
        if returned.stride(1) != 1 and width > 1:
            found = f"a tensor whose strides are {returned.stride()}"
            raise _not_wanted(method, found, "rows whose numbers lie side by side", SIDE_BY_SIDE)
        return returned


def _not_wanted(method: str, found: str, wanted: str, reason: str = "") -> PartIsWrong:
    return PartIsWrong(Fault(f"`{method}` returned {found}; it returns {wanted}", reason=reason, cause=Cause.INTERFACE))


def in_an_engine(learner: Learner) -> Callable[[Any, EngineConfig], GuardedOps]:
    """The learner's class as a part of an engine, whose exceptions are told as in the scenarios."""
    return lambda model, config: GuardedOps(learner, model, config)
