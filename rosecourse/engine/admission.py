"""Admission policies: whose turn it is when there is a place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..request.session import InferenceSession


def fifo(waiting: Sequence[InferenceSession]) -> int:
    """Admission in the order of arrival: the number of the next session to admit."""
    return 0


ADMISSION_POLICIES: dict[str, Callable[[Sequence[InferenceSession]], int]] = {"fifo": fifo}
