"""A race where time says nothing: what the host launches in a step is counted, which is exact on every machine."""

from __future__ import annotations

from dataclasses import dataclass

from ...config import EngineConfig, SamplingParams
from ...decode import DecodeParts
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..world.runner_log import RunLog
from .count_race import CountRace

SESSIONS = 3  # of the step that is counted: a bucket has room for one more
WHAT = "operations that the host launches in a decode step, sampling included; a replay is one launch"


@dataclass(frozen=True)
class Launches:
    """Of one step. outside: operations that the host launches one by one."""

    outside: int
    replays: int

    @property
    def total(self) -> int:
        return self.outside + self.replays


class LaunchRace(CountRace):
    """Counts are `Launches`."""

    what = WHAT
    axis = "launches in a step"
    title = f"Lesson {{number}}: what the host launches\nin a step of {SESSIONS} sessions"

    def row(self, counted: Launches) -> dict[str, float]:
        return {"one by one": counted.outside, "replays": counted.replays, "launches": counted.total}

    def figure(self, counted: Launches) -> float:
        return counted.total

    def claim(self) -> str:
        before, yours, course = self.figures
        return f"Before: {before}; your part: {yours}; the course's: {course}, in a step of {SESSIONS} sessions."


def launches_of(parts: DecodeParts, model: Model) -> Launches:
    """What the host launches in a greedy step of an engine with these parts, once it runs."""
    log = RunLog()
    with log.watching():
        engine = InferenceEngine(model, EngineConfig(max_batch_size=4, max_seq_len=64, prefix_cache=False), parts)
        params = SamplingParams(max_new_tokens=12, stop_on_eos=False)
        sessions = [engine.new_session([3 * n + 1] * (n + 4), params) for n in range(SESSIONS)]
        engine.take_tokens(sessions, engine.prefill(sessions))
        for _ in range(3):
            log.begin()
            engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
    return Launches(log.outside, len(log.replays))
