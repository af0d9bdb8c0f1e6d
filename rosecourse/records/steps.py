"""Recorded decode steps: how data/results/<gpu>/<workload>.steps.json is read.

A file is one sealed JSON object (`sealed`) with the keys of `STEPS`. Of each rung it has the host's time by part in
nanoseconds, measured in turns; what a step of each kind does, counted; and a timeline of each kind: always of a step
inside a block and of one at a block boundary. Newer files say, too, how its logits compare with other rungs'.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..lessons.workloads import WITH_STEPS
from ..measure.anatomy import PART_NAMES, LadderSteps, StepTimes
from ..measure.floor import kv_bytes_per_position
from ..measure.logits import SameLogits
from ..measure.timeline import Timeline
from ..models.load import resolve_dtype
from ..models.shape import ModelShape
from .names import FROM, name_from, names_of
from .recordings import HEAD
from .results import RESULTS, require_known, results_file
from .sealed import read_sealed, require_form

FORMAT = 2
ALWAYS = ("inside", "boundary")  # kinds of steps
REMEDY = "rosecourse record --workloads steps"
UNITS = (
    "parts: nanoseconds; timelines: tenths of a microsecond; "
    "kernels: number in kernel_names, start after the start of the one before, duration"
)

STEPS = HEAD | {
    "batch": int,
    "context": int,
    "chunk": int,
    "step_bytes": int,
    "parts": dict,
    "counts": dict,
    "timelines": dict,
}

SAME_LOGITS = {"of": [str], "apart": float} | dict.fromkeys(
    ("steps", "rows", "numbers", "different", "other_choices", "ties"), int
)


@dataclass(frozen=True)
class RecordedSteps:
    """The decode steps of all rungs under one workload. The rungs are named by the numbers of their lessons.

    timelines: by rung and kind of step. counts: what a step does, rows of `measure.counters.Counts`, by rung and kind.
    logits: of two rungs, compared; empty in files from before there was such a comparison.
    """

    ladder: LadderSteps
    timelines: Mapping[str, Mapping[str, Timeline]]
    counts: Mapping[str, Mapping[str, Mapping[str, int]]]
    logits: Mapping[tuple[str, str], SameLogits]
    document: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, document: dict[str, Any]) -> RecordedSteps:
        """Of a document. Raises `ValueError` where it is not of the form `STEPS`, or its rungs do not fit together."""
        require_form(document, STEPS, "the document")
        rungs = sorted(document["titles"])
        if not rungs or any(sorted(document[key]) != rungs for key in ("parts", "counts", "timelines")):
            raise ValueError("the rungs do not fit to each other")
        if min(document[key] for key in ("batch", "context", "chunk", "step_bytes", "copy_bytes_per_second")) <= 0:
            raise ValueError("a size is not positive")
        timelines = {number: _timelines(sides) for number, sides in document["timelines"].items()}
        for number, sides in document["counts"].items():
            require_form(sides, dict.fromkeys((*ALWAYS, *timelines[number]), dict), f"the counts of {number}")
            require_form([n for rows in sides.values() for n in rows.values()], [int], f"the counts of {number}")
        return cls(_ladder(document, timelines), timelines, document["counts"], _logits(document), document)

    def has(self, kind: str, numbers: Iterable[str]) -> bool:
        """Whether there are timelines of this kind of step of all these rungs."""
        return all(kind in self.timelines.get(number, ()) for number in numbers)

    def floor_us(self, step: Timeline, shape: ModelShape) -> float:
        """The floor of a profiled step, in microseconds: what its bytes take at the measured speed of a copy.

        It is for the step's own context: the steps of `ladder`, for which `ladder.floor_ms` is, may have another one.
        shape: of the model that was recorded.
        """
        dtype = resolve_dtype(self.document["settings"]["dtype"], torch.device("cpu"))
        further = self.ladder.batch * (step.context - self.ladder.context)
        moved = self.document["step_bytes"] + further * kv_bytes_per_position(shape, dtype)
        return 1e6 * moved / self.document["copy_bytes_per_second"]

    def same_code(self, one: str, other: str, rows: Sequence[str], step: str) -> bool:
        """Whether two rungs do the same in a step of a kind, as far as these rows tell; without rows, as all tell."""
        ones, others = self.counts[one][step], self.counts[other][step]
        return all(ones.get(row) == others.get(row) for row in rows or {*ones, *others})


def _logits(document: dict[str, Any]) -> dict[tuple[str, str], SameLogits]:
    pairs = document.get("logits", [])
    require_form(pairs, [SAME_LOGITS], "logits")
    return {
        (one, other): SameLogits(**{name: pair[name] for name in SAME_LOGITS if name != "of"})
        for pair in pairs
        for one, other in [pair["of"]]
    }


def _timelines(sides: Any) -> dict[str, Timeline]:
    require_form(sides, dict.fromkeys(ALWAYS, dict), "the timelines of a rung")
    found = {kind: Timeline.of(side) for kind, side in sides.items()}
    if any(timeline.step_kind != kind for kind, timeline in found.items()):
        raise ValueError("a timeline is of another kind of step than it stands for")
    return found


def _ladder(document: dict[str, Any], timelines: Mapping[str, Mapping[str, Timeline]]) -> LadderSteps:
    inside = {number: sides["inside"] for number, sides in timelines.items()}
    return LadderSteps(
        times=StepTimes({number: _seconds(parts) for number, parts in _parts(document)}, document["chunk"]),
        busy_ms={number: timeline.busy_us / 1e3 for number, timeline in inside.items()},
        kernels={number: len(timeline.kernels) for number, timeline in inside.items()},
        floor_ms=1e3 * document["step_bytes"] / document["copy_bytes_per_second"],
        batch=document["batch"],
        context=document["context"],
        titles=document["titles"],
        device=document["host"]["gpu"] or document["host"]["cpu"],
    )


def _parts(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, list[int]]]]:
    """The parts of each rung's steps, which may be others on other rungs.

    Raises `ValueError` for a part that is not known, and where not all have been timed in as many steps.
    """
    first = next(iter(document["parts"].values()))
    require_form(first, dict, "parts")
    steps = len(next(iter(first.values()), []))
    for number, parts in document["parts"].items():
        require_form(parts, dict, f"parts of {number}")
        require_form(parts, {part: [int] for part in (*parts, "rest")}, f"parts of {number}")
        if not parts.keys() <= PART_NAMES.keys() or any(len(nanoseconds) != steps for nanoseconds in parts.values()):
            raise ValueError("the rungs have other parts than are known, or other numbers of steps")
        if steps == 0 or steps % document["chunk"] != 0:
            raise ValueError("the steps make no whole turns")
        yield number, parts


def _seconds(parts: Mapping[str, Sequence[int]]) -> dict[str, list[float]]:
    return {part: [one / 1e9 for one in nanoseconds] for part, nanoseconds in parts.items()}


def steps_name(workload: str) -> str:
    """The name of a workload's file of steps, without its ending."""
    return f"{workload}.steps"


def read_steps(path: Path, workload: str) -> RecordedSteps:
    """A file of steps, checked. Raises `RosecourseError` if it is damaged, or of another workload or format."""
    _, _, first = workload.partition(FROM)
    remedy = f"{REMEDY} --from {first}" if first else REMEDY
    return read_sealed(path, "steps", workload, FORMAT, remedy, RecordedSteps.of)


def steps_in(name: str, gpu: str | None = None, folder: Path = RESULTS) -> RecordedSteps | None:
    """The steps in the file of this name, such as `A` or `A-from-061`, or None where there is none."""
    path = results_file(f"{steps_name(name)}.json", gpu, folder)
    return None if path is None else read_steps(path, name)


def steps_of(
    workload: str, gpu: str | None = None, folder: Path = RESULTS, first: str | None = None
) -> RecordedSteps | None:
    """The recorded steps of an article's workload, with their timelines and counts, or None where there are none.

    gpu and folder are those of `results_file`. first: the rung that a record of only a part of the ladder begins with
    (`rosecourse record --from`). Raises `RosecourseError` for a file that is damaged.
    """
    require_known(workload, list(WITH_STEPS), "record of the steps of")
    return steps_in(name_from(workload, first), gpu, folder)


def steps_with(
    numbers: Collection[str], workload: str, kind: str = "inside", gpu: str | None = None, folder: Path = RESULTS
) -> RecordedSteps | None:
    """The recorded steps of a workload with timelines of all these rungs, or None where no file has them together.

    Of several files it is the one that begins latest: a file compares the logits with those of its first rung.

    numbers: of the lessons. kind: of step, a key of `measure.timeline.STEP_KINDS`. gpu and folder: as for `steps_of`.
    """
    files = (steps_in(name, gpu, folder) for name in reversed(names_of(workload)))
    return next((file for file in files if file is not None and file.has(kind, numbers)), None)


def recorded_steps(
    workload: str, gpu: str | None = None, folder: Path = RESULTS, first: str | None = None
) -> LadderSteps | None:
    """A decode step on each rung of the ladder, as it was recorded, or None where there is none; as `steps_of`."""
    found = steps_of(workload, gpu, folder, first)
    return None if found is None else found.ladder
