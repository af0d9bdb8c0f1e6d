"""The step that a race counts: a greedy one, of an engine that has taken steps like it before."""

from __future__ import annotations

from typing import Protocol

from ...config import EngineConfig, SamplingParams
from ...decode import DecodeParts
from ...engine.engine import InferenceEngine
from ...models.shape import Model

SESSIONS = 3  # of the step that is counted: a bucket has room for one more
STEPS = 3  # the last of them is counted
CONFIG = EngineConfig(max_batch_size=4, max_seq_len=64, prefix_cache=False)


class Log(Protocol):
    """Notes what a step does."""

    def begin(self) -> None:
        """A step begins."""
        ...


def take_steps(parts: DecodeParts, model: Model, log: Log) -> None:
    """Have an engine with these parts take some steps. The log, which begins anew at each, has the last one then."""
    engine = InferenceEngine(model, CONFIG, parts)
    params = SamplingParams(max_new_tokens=12, stop_on_eos=False)
    sessions = [engine.new_session([3 * n + 1] * (n + 4), params) for n in range(SESSIONS)]
    engine.take_tokens(sessions, engine.prefill(sessions))
    for _ in range(STEPS):
        log.begin()
        engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
