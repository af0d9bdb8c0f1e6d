"""Named ranges around the stages of a decode step, for profilers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.autograd import _profiler_enabled  # it has no public name
from torch.profiler import record_function

Range = Callable[[str], AbstractContextManager]

NO_RANGE: AbstractContextManager = nullcontext()


def profiler_range(name: str) -> AbstractContextManager:
    """A range that the PyTorch profiler shows. `record_function` takes microseconds even where no profiler runs."""
    return record_function(name) if _profiler_enabled() else NO_RANGE


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """A range that Nsight Systems shows too (article 036)."""
    torch.cuda.nvtx.range_push(name)
    try:
        with record_function(name):
            yield
    finally:
        torch.cuda.nvtx.range_pop()


def range_for(device: torch.device, nvtx: bool) -> Range:
    """How the parts of a decode step name their ranges: for the PyTorch profiler, and on CUDA for Nsight if wanted."""
    return nvtx_range if nvtx and device.type == "cuda" else profiler_range
