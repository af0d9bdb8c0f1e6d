"""Whether a lesson's path ran in the traffic under which it is recorded: steps of a run are watched, one in `EVERY`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from rosecourse.engine.engine import InferenceEngine
from rosecourse.lessons import LESSONS, Lesson
from rosecourse.lessons.workloads import C_SCHEDULER
from rosecourse.measure.counters import watch

EVERY = 11  # steps; no divisor of a block's 64 tokens, so that the steps that are watched meet each place in a block
GATE = 0.9  # of the steps launch a lesson's kernel, or replay its graph
FIRST_WITH_GRAPH = "066"
ELSEWHERE = {"061": C_SCHEDULER.name}  # its gate wants equal lengths, which C's readers do not keep

Seen = dict[str, float]  # `steps` that were watched, means of a step, and shares of steps


@contextmanager
def watched_steps(engine: InferenceEngine, rung: Lesson) -> Iterator[Seen]:
    """Watch the launches of a run: fills the dict at the end of the block."""
    totals, real, seen = Counter[str](), engine.pipeline.launch, Seen()
    kernels = {f"{name} launches" for name in rung.kernels}

    def launch(batch: Any) -> None:
        totals["launches"] += 1
        if totals["launches"] > EVERY and totals["launches"] % EVERY:  # the first steps are those after a fork
            return real(batch)
        with watch() as counts:
            real(batch)
        rows = counts.rows()
        totals["steps"] += 1
        totals.update({name: rows.get(name, 0) for one in LESSONS for name in one.counted})
        totals["kernel"] += any(rows.get(name, 0) for name in kernels)
        totals["replay"] += counts.replays > 0
        return None

    with patch.object(engine.pipeline, "launch", launch):
        yield seen
    steps = totals.pop("steps")
    seen |= {"steps": steps} | {name: round(total / steps, 4) for name, total in totals.items() if name != "launches"}


def trouble(workload: str, seen: Mapping[str, Seen]) -> list[str]:
    """What is wrong with a recording: a line for each lesson whose own traffic this is, and whose path did not run."""
    lines = []
    for before, rung in pairwise(LESSONS):
        if (
            ELSEWHERE.get(rung.number, rung.workload.name) != workload
            or not {before.number, rung.number} <= seen.keys()
        ):
            continue
        once, again = seen[before.number], seen[rung.number]
        lines += [
            f"{rung.number} under {workload}: {name} is {again[name]:g} a step, {once[name]:g} before"
            for name in rung.counted
            if not again[name] < once[name]
        ]
        wanted = {"kernel": bool(rung.kernels), "replay": rung.number >= FIRST_WITH_GRAPH}
        lines += [
            f"{rung.number} under {workload}: a {name} in {again[name]:.0%} of the steps"
            for name, is_wanted in wanted.items()
            if is_wanted and again[name] < GATE
        ]
    return lines
