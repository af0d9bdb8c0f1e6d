"""What the exercise of lesson 068 ends as: turns by the number of steps, where the engine's own part goes by time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...config import EngineConfig
from ...decode.parts import Mailbox


class Delivery:
    """Items lie in their mailboxes at once; the readers that sleep are woken in turns, a few at each hand-over."""

    most_wakes = 8

    def __init__(self, config: EngineConfig) -> None:
        self.waiting: dict[Mailbox, None] = {}  # with something to read; whoever has waited longest is first

    def hand_over(self, items: Sequence[tuple[Mailbox, Any]]) -> None:
        """What a step has made: each item for its mailbox, in order."""
        for mailbox, item in items:
            mailbox.put(item)
            self.waiting[mailbox] = None  # whoever waits already keeps its place
        self._wake(self.most_wakes)

    def flush(self) -> None:
        """No step will come soon: whoever has got something hears of it now."""
        self._wake(len(self.waiting))

    def _wake(self, most: int) -> None:
        for mailbox in list(self.waiting)[:most]:
            del self.waiting[mailbox]
            mailbox.wake()
