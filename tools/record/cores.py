"""Begin each run on the cores that are quiet now: a neighbour on a host can halve a core's speed for minutes."""

from __future__ import annotations

import os
import time

ALLOWED = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []  # macOS has no such call
KEPT = 4  # cores: for the thread that launches, for readers and for the collector of CUDA's events


def settle() -> None:
    """Move this thread, and what it starts from now on, to the `KEPT` cores on which a fixed loop is fastest."""
    if len(ALLOWED) > KEPT:
        os.sched_setaffinity(0, sorted(ALLOWED, key=_seconds)[:KEPT])


def _seconds(core: int) -> float:
    """The least time, of five, of a fixed loop on a core."""
    os.sched_setaffinity(0, {core})
    return min(_loop() for _ in range(5))


def _loop() -> float:
    start = time.perf_counter()
    sum(range(20_000))
    return time.perf_counter() - start
