"""Static batching, which the measurements compare with."""

from __future__ import annotations

from .scheduler import OnlineScheduler


class OfflineScheduler(OnlineScheduler):
    """Static batching, for comparison: a batch is filled, decoded until its last session is done, then the next."""

    def _begin(self) -> None:
        if self.running or self.ended:
            return
        while self.waiting and (admitted := self._admit()):
            self._prefill(admitted)
