"""Static batching, which the measurements compare with."""

from __future__ import annotations

from typing import Any

from ..checks import require
from .scheduler import OnlineScheduler


class OfflineScheduler(OnlineScheduler):
    """Static batching, for comparison: a batch is filled, decoded until its last session is done, then the next."""

    def __init__(self, engine: Any, **settings: Any) -> None:
        """As `OnlineScheduler`. Raises `ConfigError` for an engine with a budget of tokens."""
        super().__init__(engine, **settings)
        require(self.budget is None, "static batching computes whole prompts: give max_num_batched_tokens None")

    def _begin(self) -> bool:
        begun = not (self.running or self.ended)
        while begun:
            begun = super()._begin()
        return bool(self.running)
