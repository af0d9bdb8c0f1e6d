"""Whether numbers are the right ones, as they are rounded in a dtype."""

from __future__ import annotations

import torch
from torch import Tensor

CLOSE = {torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}  # of the largest number and 1
NEARLY = 5e-2  # of the same: digits that are lost where a small number is left of two large ones
ROUNDED = 5e-3  # numbers of ten bits or of eight


def close(found: Tensor, right: Tensor, dtype: torch.dtype | float) -> bool:
    """Whether these are the same numbers, as they are rounded in a dtype or to a share of the largest and 1."""
    return found.shape == right.shape and bool(agreeing(found, right, dtype).all())


def agreeing(found: Tensor, right: Tensor, dtype: torch.dtype | float) -> Tensor:
    """Which of the numbers are the same ones; as `close`."""
    most = 1 + right.abs().max().item()
    return (found - right).abs() <= (dtype if isinstance(dtype, float) else CLOSE[dtype]) * most
