"""Memory that nobody has written yet, made to be known: what is read of it, or left in it, shows."""

from __future__ import annotations

import torch
from torch import Tensor

NOT_WRITTEN = 0x7FC0DEAD  # a NaN that no arithmetic makes of numbers; what is made of it is mostly the same one


def poison(fresh: Tensor) -> None:
    """Fill memory that has just been reserved with NaN."""
    if fresh.dtype == torch.float32 and fresh.is_contiguous():
        fresh.view(torch.int32).fill_(NOT_WRITTEN)
    elif fresh.is_floating_point():
        fresh.fill_(torch.nan)


def not_written(found: Tensor) -> Tensor:
    """Which numbers of a tensor of float32 were never written, or come of such; in another dtype none."""
    if found.dtype != torch.float32:
        return torch.zeros_like(found, dtype=torch.bool)
    return found.contiguous().view(torch.int32) == NOT_WRITTEN
