"""Steps right after a fork: several sessions write into the one block that they share, so that it is copied."""

from __future__ import annotations

from ..engine.engine import InferenceEngine
from ..request.session import InferenceSession


def fork_anew(engine: InferenceEngine, sessions: list[InferenceSession]) -> None:
    """Let all sessions but the first be new forks of the first; those that they were are freed.

    The sessions run, and the first has the last block of its own to itself. Unless that is full, the next step copies
    it for each fork, but for the last of its owners.
    """
    first, *others = sessions
    for session in others:
        engine.free(session)
    sessions[1:] = [engine.fork(first) for _ in others]
