"""A story that is written by hand, with a name in plain words, over a pool of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from .oracle import Oracle
from .pool import Sizes

SMALL = Sizes()
Driver = TypeVar("Driver", bound=Oracle, contravariant=True)  # a story for any oracle is one for each kind too


@dataclass(frozen=True)
class Scenario(Generic[Driver]):
    """story(oracle) lets sessions start, fork, step and go; the oracle raises `PartIsWrong` when something is wrong."""

    name: str
    story: Callable[[Driver], None]
    sizes: Sizes = SMALL
