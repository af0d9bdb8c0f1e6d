"""One decode step, made as a scheduler makes it."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.engine import InferenceEngine
from ..errors import LogitsError
from ..request.session import InferenceSession


def one_step(engine: InferenceEngine, sessions: Sequence[InferenceSession]) -> None:
    """Launch a step, and land all but those that the host may be behind.

    From lesson 067 on the first call leaves a step in flight, and each further one takes as long as a step of a run.
    `finish` lands the last. Raises `LogitsError` for sessions that no token can be chosen for.
    """
    engine.launch(sessions)
    _land(engine, sessions, engine.pipeline.steps_ahead)


def finish(engine: InferenceEngine, sessions: Sequence[InferenceSession]) -> None:
    """Land what `one_step` has left in flight."""
    _land(engine, sessions, 0)


def _land(engine: InferenceEngine, sessions: Sequence[InferenceSession], most: int) -> None:
    while engine.num_in_flight > most:
        ill = engine.land().without
        if ill:
            raise LogitsError([row for row, session in enumerate(sessions) if session in ill])
