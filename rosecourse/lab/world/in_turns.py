"""The engine's own delivery without a clock: it wakes so many readers at each hand-over, on every machine."""

from __future__ import annotations

from itertools import count

import torch

from ...config import EngineConfig
from ...decode import BEST
from ...decode.delivery import Delivery
from ...decode.parts import DecodeParts

MOST_WAKES = 8  # at a hand-over, by the text of the exercise


class InTurns(Delivery):
    """Its clock ticks once at each hand-over."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, wakes_per_second=MOST_WAKES, clock=count().__next__)


def by_hand_overs(parts: DecodeParts, device: torch.device) -> DecodeParts:
    """The parts, with the engine's own delivery by the number of hand-overs."""
    return parts.with_(delivery=InTurns) if parts.delivery is BEST.delivery else parts
