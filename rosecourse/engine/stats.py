"""What a scheduler counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SchedulerStats:
    """Where a scheduler's time went."""

    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    decode_steps: int = 0
    preemptions: int = 0
