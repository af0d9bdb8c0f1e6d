"""Who is next: admission policies."""

from __future__ import annotations

from collections.abc import Callable

from .queue import Queue


def fifo(waiting: Queue) -> int:
    """Admission in the order of arrival: the number of the next session to admit."""
    return 0


ADMISSION_POLICIES: dict[str, Callable[[Queue], int]] = {"fifo": fifo}
