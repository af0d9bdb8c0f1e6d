"""The sizes of what an operation returns, without doing it.

PyTorch takes long to say them: longer than to do an operation on a few numbers. The same ones come again in each layer
of a model, and in each graph, so that each answer is kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch


def sizes_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation of the dispatcher would return, as tensors that have sizes, strides, a dtype and no numbers.

    args, kwargs: what it would be called with. Raises `RuntimeError` where PyTorch cannot tell.
    """
    return _asked(func, _frozen(args), _frozen(kwargs))


@lru_cache(maxsize=4096)
def _asked(func: Any, args: _Frozen, kwargs: _Frozen) -> Any:
    named = _thawed(kwargs)
    if any(argument.name == "device" for argument in func._schema.arguments):
        named["device"] = "meta"
    return func(*_thawed(args), **named)


class _Frozen(NamedTuple):
    """An argument that can be compared: kind is its type, and 1 is not 1.0."""

    kind: type
    value: Any


def _frozen(x: Any) -> _Frozen:
    if isinstance(x, torch.Tensor):
        return _Frozen(torch.Tensor, (tuple(x.size()), x.stride(), x.dtype))
    if isinstance(x, dict):
        return _Frozen(dict, tuple((name, _frozen(value)) for name, value in x.items()))
    if isinstance(x, list | tuple):
        return _Frozen(type(x), tuple(map(_frozen, x)))
    return _Frozen(type(x), x)


def _thawed(frozen: _Frozen) -> Any:
    """The argument again; a tensor on the device that has sizes, and no numbers."""
    kind, value = frozen
    if kind is torch.Tensor:
        size, stride, dtype = value
        return torch.empty_strided(size, stride, dtype=dtype, device="meta")
    if kind is dict:
        return {name: _thawed(each) for name, each in value}
    return kind(map(_thawed, value)) if kind in (list, tuple) else value
