"""Part `delivery`: how tokens get from the thread that steps to their readers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ..config import EngineConfig
from .parts import Mailbox


class Delivery:
    """Tokens lie in their mailboxes at once; the readers that sleep are woken in turns, at a limited rate.

    A thread that wakes wants Python's one lock, for which the thread that steps waits then: so that takes a share of
    its time that does not grow with the readers. With r of them a token waits up to r / `wakes_per_second`, and a step
    more. (vLLM hands the outputs of a step to its front end as one list, and SGLang to its detokenizer.)
    """

    def __init__(
        self, config: EngineConfig, wakes_per_second: float = 5_000, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.wakes_per_second, self.clock = wakes_per_second, clock
        self.waiting: dict[Mailbox, None] = {}  # with something to read; whoever has waited longest is first
        self.last = -1.0  # when wakes were counted last

    def hand_over(self, items: Sequence[tuple[Mailbox, Any]]) -> None:
        """What a step has made: each item for its mailbox, in order."""
        for mailbox, item in items:
            mailbox.put(item)
            self.waiting[mailbox] = None
        now = self.clock()
        most = max(1.0, (now - self.last) * self.wakes_per_second)
        self._wake(int(most))
        self.last = now - most % 1 / self.wakes_per_second  # what is left of a wake is for the next time

    def flush(self) -> None:
        """No step will come soon: whoever has got something hears of it now."""
        self._wake(len(self.waiting))

    def _wake(self, most: int) -> None:
        for mailbox in list(self.waiting)[:most]:
            del self.waiting[mailbox]
            mailbox.wake()
