"""Lesson 067's pipeline where it would wait: one step behind on a CPU, too."""

from __future__ import annotations

import torch

from ...decode.parts import DecodeParts
from ...lessons.l067 import Pipeline


class OneBehind(Pipeline):
    """One step behind on every device. On a CPU, that is for learning: there is nothing to run ahead of."""

    def ahead_on(self, device: torch.device) -> int:
        return 1


def ahead(parts: DecodeParts, device: torch.device) -> DecodeParts:
    """The parts, with the lesson's own pipeline one step behind on this device too."""
    return parts.with_(pipeline=OneBehind) if parts.pipeline is Pipeline else parts
