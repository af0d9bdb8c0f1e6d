"""Programmatic dependent launch (CUDA): a kernel starts before the one before has ended, and waits for that itself."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .compile import INTERPRETED

OLDEST = (9, 0)  # compute capability


@triton.jit
def depend(PDL: tl.constexpr):
    """What comes after this reads what the kernel before has written.

    Then the next kernel may start; by its own wait it comes no further than this one's end.
    """
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


def can_start_early(device: torch.device) -> bool:
    """Whether kernels on a device can be launched so; the interpreter knows nothing of it."""
    return not INTERPRETED and device.type == "cuda" and torch.cuda.get_device_capability(device) >= OLDEST
