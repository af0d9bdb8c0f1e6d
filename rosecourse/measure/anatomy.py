"""Where the time of a decode step goes: each part timed from outside, engine by engine in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..checks import is_count, require, shown
from ..engine.engine import InferenceEngine
from ..request.session import InferenceSession
from .one_step import finish, one_step
from .stages import touched
from .stats import NO_DIFFERENCE, Ratio, interleave_all, ratio
from .whole_runs import running_steps

CHUNK = 4  # steps that an engine makes before it is another's turn
LEAST_SHARE = 0.01  # of a step: what takes less is as long as a stopwatch's own noise

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

Seconds = Mapping[str, Sequence[float]]  # part -> seconds of each step


class Stopwatch:
    """Calls another callable and keeps the seconds of each call."""

    def __init__(self, work: Callable[..., Any], synchronize: Callable[[], None]) -> None:
        self._work = work
        self._synchronize = synchronize
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

    wait: on CUDA a stopwatch waits for the device, so that a part's kernels count as its own; the sum is then more
    than what a step takes when host and device overlap. Without it the host's time is measured, and nothing else.
    """
    cuda = wait and engine.model.device.type == "cuda"
    step = engine.decode_step
    parts = {name: getattr(step, name) for name in step.stages}
    watches = {name: Stopwatch(part, torch.cuda.synchronize if cuda else lambda: None) for name, part in parts.items()}
    for name, watch in watches.items():
        setattr(step, name, watch)
    try:
        yield watches
    finally:
        for name, part in parts.items():
            setattr(step, name, part)


def decode_anatomy(
    engine: InferenceEngine, sessions: list[InferenceSession], steps: int, wait: bool = True
) -> dict[str, list[float]]:
    """Decode `steps` steps of prefilled sessions. Returns each step's seconds by part, and `rest`: all around them.

    From lesson 067 on the first step waits for nobody's tokens, and the last ones are waited for when the clock has
    stopped: the others are as those of a run.

    Raises `RequestFailed` for a session that ends before.
    """
    whole = []
    with stopwatches(engine, wait) as watches:
        for _ in running_steps(sessions, steps):
            start = time.perf_counter()
            one_step(engine, sessions)
            whole.append(time.perf_counter() - start)
        finish(engine, sessions)
    seconds = {name: watch.seconds for name, watch in watches.items()}
    seconds["rest"] = [total - sum(parts) for total, *parts in zip(whole, *seconds.values(), strict=True)]
    return seconds


@dataclass(frozen=True)
class StepTimes:
    """The parts of the decode steps of some engines, which took turns; each has the stages of its own step.

    seconds: engine, such as `before` -> part -> seconds of each step; chunk: steps an engine made at a time.
    """

    seconds: Mapping[str, Seconds]
    chunk: int = CHUNK

    @property
    def parts(self) -> list[str]:
        """All stages of all steps, in the order of `PART_NAMES`, and `rest`."""
        there = {part for seconds in self.seconds.values() for part in seconds}
        return sorted(there, key=list(PART_NAMES).index)

    def milliseconds(self, name: str) -> dict[str, float]:
        """Each part of an engine's step: the median of each turn, and the mean of these.

        A median over all steps would not do: on a machine that is slow at times, it would jump between two figures.
        """
        seconds = self.seconds[name]
        return {part: 1e3 * float(np.mean(self._turns(seconds, [part]))) for part in seconds}

    def step_ms(self, name: str) -> float:
        """A typical step: the sum of its parts."""
        return sum(self.milliseconds(name).values())

    def share(self, name: str, *parts: str) -> float:
        """The share of a typical step that these parts take together, as far as the step has them."""
        milliseconds = self.milliseconds(name)
        return sum(milliseconds[part] for part in parts if part in milliseconds) / self.step_ms(name)

    def ratio(self, *parts: str) -> Ratio:
        """How many times as fast these parts together are in the last engine as in the first, turn by turn.

        Each step counts with those of the parts that it has. Raises `ConfigError` where one of them has none.
        """
        before, *_, after = (self._turns(seconds, parts) for seconds in self.seconds.values())
        return ratio(before, after, middle=np.mean)

    def _turns(self, seconds: Seconds, parts: Sequence[str]) -> list[float]:
        """For each turn the seconds of these parts together, each part's the median over the turn's steps."""
        mine = [part for part in parts if part in seconds]
        require(len(mine) > 0, f"a step has none of the parts {shown(list(parts))}: it has {', '.join(seconds)}")
        medians = [np.median(np.reshape(seconds[part], (-1, self.chunk)), axis=1) for part in mine]
        return np.sum(medians, axis=0).tolist()

    def sentences(self, changed: Sequence[str]) -> list[str]:
        """What may be said of two engines: first of the parts that no lesson touched, then of those that changed.

        Where the untouched parts differ, something else than the lesson has changed the times, and no gain is claimed;
        but parts that take less than `LEAST_SHARE` of a step tell nothing.
        Where the two steps have other stages, all that changed is compared as a whole: a stage that went has left its
        work to others. changed: the parts that were replaced, as in `Lesson.changes`.
        """
        before, after = self.seconds.values()
        found = touched(list(before), list(after), changed)
        mine = [part for part in self.parts if part in found]
        untouched = [part for part in self.parts if part not in found]
        lines = []
        if untouched:
            same = self.ratio(*untouched)
            lines.append(f"Untouched, {_listed(untouched)}: {self._told(untouched)}.")
            if min(self.share(name, *untouched) for name in self.seconds) < LEAST_SHARE:
                lines.append("That is too little of a step to show whether the machine was the same.")
            elif same.verdict != NO_DIFFERENCE:
                return [*lines, "The same code took a different time: no gain is claimed from this picture."]
        else:
            lines.append("No part of the step is the same before and after: nothing shows whether the machine was.")
        if before.keys() == after.keys():
            return lines + [line for part in mine for line in self._change([part])]
        return lines + self._change(mine)

    def _change(self, parts: Sequence[str]) -> list[str]:
        """What became of these parts together, and what share of a step they had."""
        before, after = self.seconds
        olds, news = ([part for part in parts if part in self.seconds[name]] for name in (before, after))
        alike, one = olds == news, len(parts) == 1
        what = f"Changed, {_listed(olds)}" if alike else f"Replaced, {_listed(olds)} by {_listed(news)}"
        share = self.share(before, *olds)
        shares = (
            f"{'Its' if one else 'Their'} share of a step: {share:.0%} before, {self.share(after, *news):.0%} after."
        )
        lines = [f"{what}: {self._told(parts)}.", shares]
        if {*olds} < {*self.seconds[before]}:
            fast = f"a step would have been {1 / (1 - share):.2f} times as fast (Amdahl's law)"
            lines[-1] += f" Had {'it' if one else 'they'} taken no time, {fast}."
        return lines

    def _told(self, parts: Sequence[str]) -> str:
        turns = [self._turns(seconds, parts) for seconds in self.seconds.values()]
        before, after = (1e3 * np.mean(one) for one in turns)
        times = self.ratio(*parts)
        return f"{before:.2f} ms before, {after:.2f} ms after, {times}, {times.verdict_over(len(turns[0]))}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(PART_NAMES[part] for part in parts)


def decode_anatomies(
    engines: Mapping[str, InferenceEngine],
    sessions: Mapping[str, list[InferenceSession]],
    turns: int = 15,
    chunk: int = CHUNK,
    wait: bool = True,
) -> StepTimes:
    """Time the parts of the decode steps of several engines, in turns of `chunk` steps.

    The turns go 0 1 .. n n .. 1 0 0 1 .., and the first of each warms up and does not count; so the machine's moods
    meet all. sessions: each engine's own, prefilled, with room for chunk * (turns + 1) tokens. wait: as for
    `stopwatches`.
    """
    require(
        is_count(turns) and is_count(chunk), f"turns of {shown(chunk)} steps, {shown(turns)} of them: give 1 or more"
    )

    def turn(name: str) -> Callable[[], dict[str, list[float]]]:
        return lambda: decode_anatomy(engines[name], sessions[name], chunk, wait)

    each = dict(zip(engines, interleave_all([turn(name) for name in engines], turns), strict=True))
    return StepTimes(
        {name: {part: [s for one in done for s in one[part]] for part in done[0]} for name, done in each.items()}, chunk
    )


@dataclass(frozen=True)
class LadderSteps:
    """A decode step on each rung of the ladder, under one workload, on one machine.

    times: the host's time by part, rung by rung in turns; `rest` holds sampling and the waiting for the device.
    busy_ms: how long the device was busy in one step; kernels: how many kernels and copies it ran; both from the
    profiler. floor_ms: a step's bytes over the measured speed of a copy. context: live positions of a
    session in the middle of the steps. titles: of the lessons.
    """

    times: StepTimes
    busy_ms: Mapping[str, float]
    kernels: Mapping[str, int]
    floor_ms: float
    batch: int
    context: int
    titles: Mapping[str, str]
    device: str

    def between(self, before: str, after: str) -> StepTimes:
        """The steps of two rungs, as `before` and `after`, turn by turn."""
        seconds = self.times.seconds
        return StepTimes({"before": seconds[before], "after": seconds[after]}, self.times.chunk)
