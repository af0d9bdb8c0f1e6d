"""Who has made a product wrong: the operation that was asked for it, or one before it, which left it a wrong stream.

A stream is the learner's own, and may be anything. So it is looked at only where a product is wrong, and proves
something only if that very product comes of it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .ops_close import close
from .ops_streams import Left, Stream


def left_wrong(stream: Stream, product: Callable[[Tensor], Tensor], found: Tensor, dtype: torch.dtype) -> Left | None:
    """The first wrong sum, if what was found is the right product of the newest one.

    The products between may have been right: a norm does not see every change. product: what is to be made of a sum.
    None where the stream shows nothing.
    """
    newest = stream.left[-1] if stream.left else None
    if newest is None or newest.terms != len(stream.terms) or not close(found, product(newest.numbers), dtype):
        return None
    return next((left for left in stream.left if not close(left.numbers, left.right, dtype)), None)


def left_unwritten(stream: Stream) -> Left | None:
    """The first sum in which numbers were never written; None where none shows."""
    return next((left for left in stream.left if left.numbers.isnan().any()), None)
