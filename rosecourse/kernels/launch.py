"""Launching Triton kernels without the look at every argument that their JIT takes at each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton

Launch = Callable[..., None]


def compiled(kernel: Any, arguments: Sequence[torch.dtype | int | float], **constants: int) -> Launch:
    """A kernel compiled once for arguments of these types: call the result as `launch(grid, *arguments)`.

    arguments: for a tensor its dtype, for a number any number of its type. constants: the kernel's `tl.constexpr`
    arguments, its last ones, in its order. A JIT looks at each argument of each call (its type, whether it is 1 or
    divisible by 16) to find the binary for it. Where one binary serves all, because the kernel asks for no
    specialisation of what may change, the look can be saved: on the host, most of the time of a small launch.
    """
    if not isinstance(kernel, triton.JITFunction):  # the interpreter compiles nothing
        return lambda grid, *args: kernel[grid](*args, **constants)
    binary = kernel.warmup(*arguments, grid=(1,), **constants)
    values = tuple(constants.values())
    return lambda grid, *args: binary[grid](*args, *values)
