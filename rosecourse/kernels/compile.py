"""Compiling Triton kernels once, without the look at every argument that their JIT takes at each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton

from .launch import Launch


def compiled(
    kernel: Any,
    arguments: Sequence[torch.dtype | int | float],
    num_warps: int = 4,
    launch_pdl: bool = False,
    aligned: bool = True,
    **constants: int,
) -> Launch:
    """A kernel compiled once for arguments of these types.

    arguments: for a tensor its dtype, for a number any number of its type. num_warps: of a program. launch_pdl: whether
    it may start before the kernel before it has ended, and waits for that itself (compute capability 9 and up).
    aligned: whether the tensors begin at addresses that allow wide reads; if not, the kernel is left to the JIT, which
    makes another binary, of narrower reads. constants: as for `Launch`, by name.

    A JIT looks at each argument of each call (its type, whether it is 1 or divisible by 16) to find the binary for it.
    Where one binary serves all, because the kernel asks for no specialisation of what may change, the look can be
    saved.
    """
    if aligned and isinstance(kernel, triton.JITFunction):  # the interpreter compiles nothing
        options = {"launch_pdl": True} if launch_pdl else {}
        kernel = kernel.warmup(*arguments, grid=(1,), num_warps=num_warps, **options, **constants)
    return Launch(kernel, tuple(constants.values()))
