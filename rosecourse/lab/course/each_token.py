"""What the exercise of lesson 068 begins as: the number of wakes is there already, and nobody keeps to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...config import EngineConfig
from ...decode.parts import Mailbox


class Delivery:
    """Each token wakes its reader, as in lessons 035 to 067."""

    most_wakes = 8

    def __init__(self, config: EngineConfig) -> None:
        pass

    def hand_over(self, items: Sequence[tuple[Mailbox, Any]]) -> None:
        """What a step has made: each item for its mailbox, in order."""
        for mailbox, item in items:
            mailbox.put(item)
            mailbox.wake()

    def flush(self) -> None:
        """No step will come soon: whoever has got something hears of it now."""
