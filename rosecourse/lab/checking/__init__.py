"""How a part is tried: pools of sessions, stories, models of each kind of part, and what a step costs."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor


class Wrong(Exception):
    """What does not hold after an operation of a story, and what is found instead, in one line or more."""


def must(what: str, be: Any, found: Any) -> None:
    """Raise `Wrong` for what is not what it must be."""
    if found != be:
        raise Wrong(f"{what} must be {be}; found: {found}")


def kind_of(found: Any) -> str:
    if not isinstance(found, Tensor):
        return type(found).__name__
    return f"a tensor {list(found.shape)} of {str(found.dtype).removeprefix('torch.')} on {found.device}"


def counted(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what it comes of."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
