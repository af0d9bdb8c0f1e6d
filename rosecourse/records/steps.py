"""Recorded decode steps, in data/results/<gpu>/; `tools/record/steps.py` writes them.

* `parts.csv`: milliseconds by workload, lesson, repetition and part of the host's step; the median of a turn.
* `kernels.csv`: the events of a `Timeline` by workload, lesson and kind of step, where a page needs them.
* `steps.json`: the provenance, the copy bandwidth, and of each workload its sizes, the fewest bytes that a step must
  move, and what was profiled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from ..lessons import LESSONS
from ..lessons import lesson as lesson_of
from ..lessons.workloads import WITH_STEPS, name_of_steps
from ..measure.anatomy import StepTimes
from ..measure.floor import kv_bytes_per_position
from ..measure.timeline import Timeline
from ..models.load import resolve_dtype
from ..models.shape import ModelShape
from .results import RESULTS, read_results, require_known, sides_of

PARTS, KERNELS, FACTS = "parts.csv", "kernels.csv", "steps.json"


@dataclass(frozen=True)
class RecordedSteps:
    """The decode steps of all rungs under one workload, on one machine; rungs are named by the numbers of lessons.

    parts, events: the workload's rows of the two tables. facts: all of steps.json. work: the workload's own facts.
    """

    parts: pd.DataFrame = field(repr=False)
    events: pd.DataFrame = field(repr=False)
    facts: dict[str, Any] = field(repr=False)
    work: dict[str, Any] = field(repr=False)

    @property
    def batch(self) -> int:
        return int(self.work["batch"])

    @property
    def context(self) -> int:
        """The live positions of a session in the middle of the steps that were timed."""
        return int(self.work["context"])

    @property
    def device(self) -> str:
        return str(self.facts["host"]["gpu"] or self.facts["host"]["cpu"])

    @property
    def copy_bytes_per_second(self) -> float:
        return float(self.facts["copy_bytes_per_second"])

    @cached_property
    def titles(self) -> dict[str, str]:
        """The recorded rungs in their order, each with its lesson's title."""
        return {rung.number: rung.title for rung in LESSONS if rung.number in self.work["profiled"]}

    @cached_property
    def times(self) -> StepTimes:
        """The host's time by part, rung by rung; `rest` holds sampling and the waiting for the device."""
        by_rung = {number: self.parts[self.parts.lesson == number] for number in self.titles}
        return StepTimes(
            {number: rows.pivot(index="repetition", columns="part", values="ms") for number, rows in by_rung.items()}
        )

    def between(self, before: str, after: str) -> StepTimes:
        """The steps of two rungs, as `before` and `after`, turn by turn."""
        return StepTimes({"before": self.times.turns[before], "after": self.times.turns[after]})

    @property
    def busy_ms(self) -> dict[str, float]:
        """Of each rung, how long the device was busy in one profiled step inside a block."""
        return {number: self.work["profiled"][number]["inside"]["busy_us"] / 1e3 for number in self.titles}

    @property
    def kernels(self) -> dict[str, int]:
        """Of each rung, how many kernels and copies the device ran in that step."""
        return {number: self.work["profiled"][number]["inside"]["kernels"] for number in self.titles}

    @property
    def floor_ms(self) -> float:
        """What the bytes of a step take at the measured speed of a copy."""
        return 1e3 * float(self.work["step_bytes"]) / self.copy_bytes_per_second

    def floor_us(self, step: Timeline, shape: ModelShape) -> float:
        """The floor of a profiled step, whose context is its own. shape: of the model that was recorded."""
        dtype = resolve_dtype(self.facts["settings"]["dtype"], torch.device("cpu"))
        further = self.batch * (step.context - self.context) * kv_bytes_per_position(shape, dtype)
        return 1e6 * (self.work["step_bytes"] + further) / self.copy_bytes_per_second

    def timeline(self, number: str, kind: str = "inside") -> Timeline | None:
        """A rung's timeline of a kind of step, a key of `STEP_KINDS`; None where its events are not kept."""
        events = self.events[(self.events.lesson == number) & (self.events.step == kind)]
        if events.empty:
            return None
        facts = self.work["profiled"][number][kind]
        columns = ["name", "kind", "start_us", "us"]
        return Timeline(events[columns].reset_index(drop=True), self.device, facts["plain_us"], kind, facts["context"])


def recorded_steps(workload: str, folder: Path = RESULTS) -> RecordedSteps | None:
    """The recorded steps of a workload, such as `A`, or None where there are none. folder: of all GPUs' folders.

    Raises `ConfigError` for a workload whose steps are not recorded, and `RosecourseError` for files that are damaged.
    """
    require_known(workload, list(WITH_STEPS), "record of the steps of")
    found = read_results(FACTS, (PARTS, KERNELS), folder)
    if found is None or workload not in found[0]["workloads"]:
        return None
    facts, tables = found
    parts, events = (table[table.workload == workload] for table in tables)
    return RecordedSteps(parts, events, facts, facts["workloads"][workload])


def recorded_timelines(lesson: str, folder: Path = RESULTS) -> dict[str, Timeline] | None:
    """A lesson's timelines `before` (not for the first lesson) and `after`, of the kind of step that it is about.

    They are of the lesson's own workload. None where they are not recorded. Raises `LessonError` for a lesson that is
    not on the ladder.
    """
    rung = lesson_of(lesson)
    found = recorded_steps(name_of_steps(rung.workload), folder)
    if found is None:
        return None
    timelines = {side: found.timeline(number, rung.step_kind) for side, number in sides_of(rung.number).items()}
    return {side: one for side, one in timelines.items() if one is not None}
