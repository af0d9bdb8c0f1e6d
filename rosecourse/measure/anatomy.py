"""Where the time of a decode step goes: each part timed from outside, engine by engine in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import pandas as pd
import torch

from ..engine.engine import InferenceEngine
from ..errors import LogitsError, RequestFailed
from ..request.session import InferenceSession
from .stats import NO_DIFFERENCE, Ratio, interleave_all, ratio

CHUNK = 4  # steps that an engine makes before it is another's turn

PART_NAMES = {
    "place": "place",
    "copy_blocks": "copy blocks",
    "plan": "plan rows",
    "block_tables": "block tables",
    "forward": "forward",
    "kv_append": "KV append",
    "runner": "runner",
    "read": "wait and read",
    "rest": "sample and the rest",
}
# Where the time of a part is spent that is no stage of its own; for others it is `rest`.
SPENT_IN = {
    "cache": ("place",),
    "rows": ("plan", "rest"),
    "forward": ("runner", "rest"),
    "kv_append": ("forward", "runner", "rest"),
}


def one_step(engine: InferenceEngine, sessions: Sequence[InferenceSession]) -> None:
    """Launch a step, and land all but those that the host may be behind: from lesson 067 on one stays in flight."""
    engine.launch(sessions)
    finish(engine, sessions, engine.pipeline.steps_ahead)


def finish(engine: InferenceEngine, sessions: Sequence[InferenceSession], most: int = 0) -> None:
    """Land what is in flight but for `most` steps. Raises `LogitsError` for sessions that have no next token."""
    while engine.num_in_flight > most:
        ill = engine.land().without
        if ill:
            raise LogitsError([row for row, session in enumerate(sessions) if session in ill])


def require_running(sessions: Sequence[InferenceSession]) -> None:
    """Raise `RequestFailed` before a step over a session that has ended."""
    for row, session in enumerate(sessions):
        if session.finished:
            raise RequestFailed(f"session {row} has ended: a step over it gives no figure; ask for more tokens")


class Stopwatch:
    """Calls another callable and keeps the seconds of each call."""

    def __init__(self, work: Callable[..., Any], synchronize: Callable[[], None] = lambda: None) -> None:
        self._work, self._synchronize = work, synchronize
        self.seconds: list[float] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._synchronize()
        start = time.perf_counter()
        result = self._work(*args, **kwargs)
        self._synchronize()
        self.seconds.append(time.perf_counter() - start)
        return result


@contextmanager
def stopwatches(engine: InferenceEngine, wait: bool = True) -> Iterator[dict[str, Stopwatch]]:
    """Put a stopwatch around each part of an engine's decode step, and take them off again.

    wait: on CUDA for the device, so that a part's kernels count as its own; without it the host's time is measured.
    """
    synchronize = torch.cuda.synchronize if wait and engine.model.device.type == "cuda" else lambda: None
    step = engine.decode_step
    watches: dict[str, Any] = {name: Stopwatch(getattr(step, name), synchronize) for name in step.stages}
    with patch.multiple(step, **watches):
        yield watches


def decode_anatomy(
    engine: InferenceEngine, sessions: list[InferenceSession], steps: int, wait: bool = True
) -> pd.DataFrame:
    """Decode `steps` steps of prefilled sessions: a row for each step, with the milliseconds of its parts and `rest`.

    From lesson 067 on the first step waits for nobody's tokens. Raises `RequestFailed` for a session that ends before.
    """
    whole = Stopwatch(one_step)
    with stopwatches(engine, wait) as watches:
        for _ in range(steps):
            require_running(sessions)
            whole(engine, sessions)
        finish(engine, sessions)
    parts = pd.DataFrame({name: watch.seconds for name, watch in watches.items()})
    return 1e3 * parts.assign(rest=whole.seconds - parts.sum(axis=1))


def touched(before: Collection[str], after: Collection[str], changed: Collection[str]) -> set[str]:
    """The stages, and perhaps `rest`, whose times a lesson may change.

    before, after: the stages of both steps. changed: the parts that the lesson replaces, as in `Lesson.changes`. A
    stage that only one of the steps has is the lesson's doing; its work may have come from `rest`, or gone there.
    """
    common = {*before} & {*after}
    found = {*before} ^ {*after}
    found |= {"rest"} if found else set()
    for part in changed:
        found.update([part] if part in common else SPENT_IN.get(part, ("rest",)))
    return found & {*before, *after, "rest"}


@dataclass(frozen=True)
class StepTimes:
    """The parts of the decode steps of some engines, which took turns; each has the stages of its own step.

    turns: engine, such as `before` -> a row for each turn, with the milliseconds of each part: the median of the
    turn's steps. Means are over turns: a median would jump on a machine that is slow at times.
    """

    turns: Mapping[str, pd.DataFrame]

    @property
    def parts(self) -> list[str]:
        """All stages of all steps, in the order of `PART_NAMES`, and `rest`."""
        return [part for part in PART_NAMES if any(part in turns for turns in self.turns.values())]

    def milliseconds(self, name: str) -> dict[str, float]:
        """Each part of an engine's step, the mean of the turns."""
        return {part: float(self.turns[name][part].mean()) for part in PART_NAMES if part in self.turns[name]}

    def step_ms(self, name: str) -> float:
        """A typical step: the sum of its parts."""
        return sum(self.milliseconds(name).values())

    def share(self, name: str, *parts: str) -> float:
        """The share of a typical step that these parts take together, as far as the step has them."""
        return sum(ms for part, ms in self.milliseconds(name).items() if part in parts) / self.step_ms(name)

    def ratio(self, *parts: str) -> Ratio:
        """How many times as fast as in the first engine these parts, as far as a step has them, are in the last."""
        before, *_, after = (one.reindex(columns=parts).sum(axis=1).tolist() for one in self.turns.values())
        return ratio(before, after, mean=True)

    def sentences(self, changed: Collection[str]) -> list[str]:
        """What may be said of two engines: of the parts that the lesson left alone, and of those that it changed.

        Where the untouched parts differ, no gain is claimed. changed: the parts replaced, as in `Lesson.changes`.
        """
        before, after = self.turns.values()
        found = touched(before, after, changed)
        untouched = [part for part in self.parts if part not in found]
        lines = [self._sentence("Changed", [part for part in self.parts if part in found])]
        if untouched:
            lines.insert(0, self._sentence("Untouched", untouched))
            if self.ratio(*untouched).verdict != NO_DIFFERENCE:
                lines[1] = "The same code took a different time: no gain is claimed from this picture."
        return lines

    def _sentence(self, what: str, parts: Sequence[str]) -> str:
        times = []
        for name in self.turns:
            share = self.share(name, *parts)
            times.append(f"{share * self.step_ms(name):.2f} ms ({share:.0%} of the step) {name}")
        names, better = " and ".join(PART_NAMES[part] for part in parts), self.ratio(*parts)
        return f"{what}, {names}: {', '.join(times)}, {better}, {better.verdict_over(len(self.turns['before']))}."


def decode_anatomies(
    engines: Mapping[str, InferenceEngine],
    sessions: Mapping[str, list[InferenceSession]],
    turns: int = 15,
    wait: bool = True,
) -> StepTimes:
    """Time the parts of the decode steps of several engines, in turns of `CHUNK` steps, as in `interleave_all`.

    sessions: each engine's own, prefilled, with room for CHUNK * (turns + 1) tokens. wait: as for `stopwatches`.
    """
    works = [partial(decode_anatomy, engine, sessions[name], CHUNK, wait) for name, engine in engines.items()]
    found = zip(engines, interleave_all(works, turns), strict=True)
    return StepTimes({name: pd.DataFrame([steps.median() for steps in each]) for name, each in found})
