"""Compiling Triton kernels once, without the look at every argument that their JIT takes at each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from ..checks import require
from .launch import Launch

Dtypes = tuple[torch.dtype, ...]  # of the tensors that a kernel is given

# Whether the kernels here, and Triton's own functions, were made for the interpreter. They were or were not when they
# were imported: what the environment says later changes nothing.
INTERPRETED = bool(triton.knobs.runtime.interpret) and not isinstance(tl.cdiv, triton.JITFunction)
NO_DRIVER = (
    "Triton has no device to compile this kernel for (it says `0 active drivers`): there is no GPU, and Triton was "
    "imported before TRITON_INTERPRET=1 was set. Restart the kernel or the program, and set it first"
)


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
    Raises `ConfigError` where there is no device to compile for.
    """
    if aligned and isinstance(kernel, triton.JITFunction):  # the interpreter compiles nothing
        options = {"launch_pdl": True} if launch_pdl else {}
        try:
            kernel = kernel.warmup(*arguments, grid=(1,), num_warps=num_warps, **options, **constants)
        except RuntimeError as error:
            require("active drivers" not in str(error), NO_DRIVER)
            raise
    return Launch(kernel, tuple(constants.values()))
