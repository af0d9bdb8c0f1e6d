"""The start of lessons 035 to 067: the host reads the first token of a request before it plans a step with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...decode.parts import Pipeline, Step
from ...decode.sampling import tokens_of_each
from ...request.session import InferenceSession


class Start:
    """Wait for the first tokens. The host uploads them again with the rows of their sessions."""

    def __init__(self, step: Step, pipeline: Pipeline) -> None:
        self.step = step

    def __call__(self, sessions: Sequence[InferenceSession], logits: torch.Tensor, user: Any) -> list[int]:
        """The first token of each session, or NO_TOKEN, by the logits [B, vocab_size] of its prefill."""
        return tokens_of_each(self.step, sessions, logits)
