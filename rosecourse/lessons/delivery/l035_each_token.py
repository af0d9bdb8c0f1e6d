"""The delivery of lessons 035 to 067: each token wakes its reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...config import EngineConfig
from ...decode.parts import Mailbox


class Delivery:
    """No token waits; but as many threads as a step has tokens want Python's one lock, which the next step needs."""

    def __init__(self, config: EngineConfig) -> None:
        pass

    def hand_over(self, items: Sequence[tuple[Mailbox, Any]]) -> None:
        """What a step has made: each item for its mailbox, in order."""
        for mailbox, item in items:
            mailbox.put(item)
            mailbox.wake()

    def flush(self) -> None:
        """Nobody has been left asleep."""
