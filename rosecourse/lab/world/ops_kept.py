"""What a part keeps: copies of a model's embedding, and whatever else is a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ...models.gpt2 import GPT2

DEEPEST = 4  # containers and objects within one another


def copies_kept(part: Any, model: GPT2) -> int:
    """How many tensors at least as large as the embedding a part holds, but for those of the model itself."""
    own = {weight.untyped_storage().data_ptr() for weight in model.weights.values()}
    own |= {weight.untyped_storage().data_ptr() for weight in (model.wte, model.wpe)}
    most = model.wte.untyped_storage().nbytes()
    held = {
        storage.data_ptr()
        for tensor in _held_by(part)
        for storage in [tensor.untyped_storage()]
        if storage.nbytes() >= most
    }
    return len(held - own)


def tensors_kept(part: Any) -> int:
    """How many tensors a part holds."""
    return len({id(tensor) for tensor in _held_by(part)})


def _held_by(part: Any) -> Iterator[Tensor]:
    yield from _tensors(getattr(part, "__dict__", {}), DEEPEST)


def _tensors(value: Any, deep: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif deep and not isinstance(value, str | bytes | type | GPT2):
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
        if not inside and hasattr(value, "__dict__") and not callable(value):
            inside = vars(value).values()
        for one in inside:
            yield from _tensors(one, deep - 1)
