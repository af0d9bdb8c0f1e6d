"""A race where time says nothing: what the host launches in a step is counted, which is exact on every machine."""

from __future__ import annotations

from dataclasses import dataclass

from ...decode import DecodeParts
from ...models.shape import Model
from ..world.runner_log import RunLog
from .count_race import CountRace
from .counted_step import SESSIONS, take_steps

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
        take_steps(parts, model, log)
    return Launches(log.outside, len(log.replays))
