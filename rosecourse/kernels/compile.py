"""Compiling Triton kernels once, without the look at every argument that their JIT takes at each call."""

from __future__ import annotations

from functools import cache
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


@cache
def compiled(
    kernel: Any,
    arguments: tuple[torch.dtype | int | float, ...],
    constants: tuple[int | float, ...],
    device: torch.device,
    num_warps: int = 4,
    launch_pdl: bool = False,
    aligned: bool = True,
) -> Launch:
    """A kernel compiled once for arguments of these types, without the JIT's look at each argument of each call.

    arguments: for a tensor its dtype, for a number any number of its type. constants: as for `Launch`. device: a
    binary belongs to one. num_warps: of a program. launch_pdl: whether it may start before the kernel before it has
    ended (compute capability 9 and up). aligned: whether the tensors begin at addresses that allow wide reads; if not,
    the kernel is left to the JIT.
    Raises `ConfigError` where there is no device to compile for.
    """
    if aligned and isinstance(kernel, triton.JITFunction):  # the interpreter compiles nothing
        named = dict(zip(kernel.arg_names[-len(constants) :], constants, strict=True))
        options = {"launch_pdl": True} if launch_pdl else {}
        try:
            kernel = kernel.warmup(*arguments, grid=(1,), num_warps=num_warps, **options, **named)
        except RuntimeError as error:
            require("active drivers" not in str(error), NO_DRIVER)
            raise
    return Launch(kernel, constants)
