"""What an operation would make, without doing it: tensors of the right sizes, and nothing in them that looks right."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from ..errors import CaptureError

_MADE: dict[Any, Any] = {}  # an operation, and what it gets -> what it makes; most operations of a graph occur often


def poisoned(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation would return, with NaN or the smallest integer in it.

    Raises `CaptureError` where its sizes cannot be told without the numbers.
    """
    try:
        asked = func, _key(args), _key(kwargs)
        if asked not in _MADE:
            _MADE[asked] = _sizes_only(func, args, kwargs)
    except RuntimeError as error:
        raise CaptureError(f"`{func}` cannot be recorded: {str(error).partition(chr(10))[0]}") from error
    return tree_map_only(torch.Tensor, _poison, _MADE[asked])


def _key(x: Any) -> Any:
    """Equal for equal sizes; numbers count with their types, since these decide what is made."""
    if isinstance(x, torch.Tensor):
        return x.size(), x.stride(), x.dtype
    if isinstance(x, dict):
        return tuple((name, _key(value)) for name, value in x.items())
    return tuple(map(_key, x)) if isinstance(x, list | tuple) else (type(x), x)


def _sizes_only(func: Any, args: Any, kwargs: Any) -> Any:
    if any(argument.name == "device" for argument in func._schema.arguments):
        kwargs = kwargs | {"device": "meta"}
    args, kwargs = tree_map_only(torch.Tensor, _meta, (args, kwargs))
    return func(*args, **kwargs)


def _meta(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta")  # sizes, and no numbers


def _poison(like: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype)
    if like.dtype == torch.bool:
        return made.fill_(True)
    return made.fill_(float("nan") if like.is_floating_point() else torch.iinfo(like.dtype).min)
