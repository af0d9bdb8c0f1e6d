"""A launch of a Triton kernel, as counters know it. Triton itself is not needed for this."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Grid = tuple[int, int, int]
Taker = Callable[["Launch", Grid, tuple[Any, ...]], None]

# Who takes the launches, instead of the device: a recording.
_TAKER: ContextVar[Taker | None] = ContextVar("taker", default=None)


class Launch:
    """A kernel that is ready to be launched: `launch(grid, *arguments)`. All kernels of the engine are launched so."""

    __slots__ = ("constants", "kernel")

    def __init__(self, kernel: Any, constants: Sequence[int | float]) -> None:
        """constants: the kernel's `tl.constexpr` arguments, its last ones, in its order."""
        self.kernel = kernel
        self.constants = constants

    def __call__(self, grid: Grid, *arguments: Any) -> None:
        taker = _TAKER.get()
        if taker is not None:
            taker(self, grid, arguments)
        else:
            self.kernel[grid](*arguments, *self.constants)

    @staticmethod
    @contextmanager
    def handed_to(taker: Taker) -> Iterator[None]:
        """Launches in here do not reach the device: `taker` gets them."""
        token = _TAKER.set(taker)
        try:
            yield
        finally:
            _TAKER.reset(token)
