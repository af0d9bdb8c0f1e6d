"""Part `start`: how the first token of a request gets to its row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..request.session import InferenceSession
from .pipeline import Pipeline
from .sampling import asked_of, next_tokens
from .step import DecodeStep


class Start:
    """Wait for nothing. The first tokens stay on the device, where the next step takes them, and land in their turn."""

    def __init__(self, step: DecodeStep, pipeline: Pipeline) -> None:
        self.pipeline, self.best = pipeline, step.best
        self.rows: Any = step.rows  # those of lesson 068, which take first tokens

    def __call__(self, sessions: Sequence[InferenceSession], logits: torch.Tensor, user: Any) -> list[int]:
        """Nothing yet: the first token of each session, by the logits [B, vocab_size] of its prefill, is in flight.

        Raises `RosecourseError` where as many steps are in flight as can be.
        """
        tokens = self.choose(sessions, logits)
        self.pipeline.put(sessions, user, tokens)
        self.rows.arrive([session.table for session in sessions], tokens)
        return []

    def choose(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> torch.Tensor:
        """int64 [B] on the device: the first token of each session, or NO_TOKEN."""
        return next_tokens(logits, asked_of(sessions, logits.device), self.best)
