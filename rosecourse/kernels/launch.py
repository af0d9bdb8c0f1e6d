"""A launch of a Triton kernel, as counters know it. Triton itself is not needed for this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Launch:
    """A kernel that is ready to be launched: `launch(grid, *arguments)`. All kernels of the engine are launched so."""

    __slots__ = ("constants", "kernel")

    def __init__(self, kernel: Any, constants: Sequence[int]) -> None:
        """constants: the kernel's `tl.constexpr` arguments, its last ones, in its order."""
        self.kernel = kernel
        self.constants = constants

    def __call__(self, grid: tuple[int, int, int], *arguments: Any) -> None:
        self.kernel[grid](*arguments, *self.constants)
