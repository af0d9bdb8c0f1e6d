"""`wait` and `start_next` in a compiled kernel."""

from __future__ import annotations

import triton
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait():
    """Wait for the end of the kernel before this one; all that it has written can be seen then."""
    gdc_wait()


@triton.jit
def start_next():
    """The kernel after this one may start, once all programs have come here or have ended."""
    gdc_launch_dependents()
