"""A race where time says nothing: what the host launches in a step is counted, which is exact on every machine."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes

from ...config import EngineConfig, SamplingParams
from ...decode import DecodeParts
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..world.runner_log import RunLog

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


@dataclass(frozen=True, repr=False)
class LaunchRace:
    """What came of it. launches: of before, yours and the course's, by their titles. untimed: why nothing is timed.

    trouble: as of a `Race`; there is none where something could be counted.
    """

    number: str
    part: str
    launches: Mapping[str, Launches]
    untimed: str
    trouble: str = ""

    def table(self) -> pd.DataFrame:
        """One row each for before, yours and the course's."""
        rows = {
            title: {"one by one": one.outside, "replays": one.replays, "launches": one.total}
            for title, one in self.launches.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index")

    def draw(self, ax: Axes) -> None:
        """A bar for each of the three."""
        titles = list(self.launches)[::-1]
        bars = ax.barh(titles, [self.launches[title].total for title in titles], color="tab:gray")
        ax.bar_label(bars, padding=3)
        ax.set_xlabel("launches in a step")
        ax.set_title(f"Lesson {self.number}: what the host launches\nin a step of {SESSIONS} sessions")
        ax.margins(x=0.12)

    def sentences(self) -> list[str]:
        """What may be said, and no more."""
        before, yours, course = (one.total for one in self.launches.values())
        return [
            f"What is counted: {WHAT}.",
            f"Before: {before}; your part: {yours}; the course's: {course}, in a step of {SESSIONS} sessions.",
            f"Nothing is timed on a CPU: {self.untimed}.",
        ]

    def __str__(self) -> str:
        return "\n".join(self.sentences())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table().to_html() + "".join(f"<p>{html.escape(sentence)}</p>" for sentence in self.sentences())


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
