"""The whole ladder as it was recorded: what every rung makes of one workload."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from ..lessons import LESSONS, lesson
from ..measure.stats import Ratio, ratio
from ..measure.timeline import Timeline
from .names import names_of
from .recordings import Recording, recording_of
from .results import RESULTS
from .steps import steps_in


@dataclass(frozen=True)
class RecordedRung:
    """What one rung made of a workload: medians of its runs.

    throughput: tokens/s of whole runs, recorded beside the rung before. beside_next: the same from the recording that
    has the rung after it, where that is another one, else None.
    """

    number: str
    title: str
    throughput: float
    beside_next: float | None


@dataclass(frozen=True)
class WholeLadder:
    """Every recorded rung under a workload, with the one limit that holds for all of them.

    memory_limit: tokens/s of a run that does nothing but read, in each decode step, the weights and the cache once; at
    the highest copy bandwidth that was measured beside any rung. multiplied: the ratio of the last rung to the first,
    chained from the recordings of the parts, with its 95 % interval (see `chained`). device: its name. dates: of the
    recordings, in order.
    """

    rungs: tuple[RecordedRung, ...]
    memory_limit: float
    multiplied: Ratio
    device: str
    dates: tuple[str, ...]

    @property
    def apart(self) -> float:
        """How far two recordings are apart: the largest ratio of the two figures of a rung, 1 where none has two."""
        twice = [(rung.throughput, rung.beside_next) for rung in self.rungs if rung.beside_next is not None]
        return max((max(pair) / min(pair) for pair in twice), default=1.0)


def whole_ladder(workload: str, gpu: str | None = None, folder: Path = RESULTS) -> WholeLadder | None:
    """The ladder under a workload, chained from the recordings of its parts; None where nothing is recorded.

    A recording of a part of the ladder was made on a day of its own, and figures of two days are not compared: so a
    rung at which one recording ends and the next one begins has a figure from each. workload: such as `A`; gpu and
    folder: as for `results_file`. Raises `RosecourseError` for a file that is damaged.
    """
    found = (recording_of(name, gpu, folder) for name in names_of(workload))
    recordings = [recording for recording in found if recording is not None]
    if not recordings:
        return None
    numbers = [rung.number for rung in LESSONS if any(rung.number in one.rungs for one in recordings)]
    steps = [(None, numbers[0]), *pairwise(numbers), (numbers[-1], None)]
    beside = [_recording_with(recordings, {before, after} - {None}) for before, after in steps]
    return WholeLadder(
        tuple(_rung(number, one, other) for number, (one, other) in zip(numbers, pairwise(beside), strict=True)),
        _memory_limit(recordings),
        chained(_ratios_of_parts(beside[1:-1], numbers)),
        recordings[0].conditions.device,
        tuple(sorted({recording.document["date"][:10] for recording in recordings})),
    )


def chained(ratios: Sequence[Ratio]) -> Ratio:
    """The product of ratios that were measured apart from each other, with its 95 % interval; NaN where one is NaN.

    Logarithms of independent ratios add up, and how far their intervals reach adds up in quadrature, below and above
    each by itself: the rule for independent errors, for intervals that are not symmetric.
    """
    value = math.prod(one.value for one in ratios)
    below = math.hypot(*(math.log(one.value / one.low) for one in ratios))
    above = math.hypot(*(math.log(one.high / one.value) for one in ratios))
    return Ratio(value, value * math.exp(-below), value * math.exp(above))


def _ratios_of_parts(recordings: Sequence[Recording | None], numbers: Sequence[str]) -> list[Ratio]:
    """Of each recording, its last rung to its first, among those that it is used for.

    That is the product of the ratios of its neighbours. These are not independent, since two of them share the runs of
    the rung between them; the parts share none. recordings: of each rung but the first, the one that has the rung
    before it as well, or None.
    """
    places = groupby(range(len(recordings)), key=lambda place: id(recordings[place]))
    parts = [(one[0], one[-1] + 1) for one in (list(group) for _, group in places)]
    return [_ratio(recordings[first], numbers[first], numbers[last]) for first, last in parts]


def _ratio(recording: Recording | None, first: str, last: str) -> Ratio:
    """How many times the throughput of one rung another has, in one recording."""
    if recording is None:
        return ratio([], [])
    return ratio(recording.rungs[last].throughputs, recording.rungs[first].throughputs)


def _recording_with(recordings: Sequence[Recording], numbers: Set[str | None]) -> Recording | None:
    """The first that has all these rungs, which is the one that a lesson's comparison is of."""
    return next((one for one in recordings if numbers <= one.rungs.keys()), None)


def _rung(number: str, before: Recording | None, after: Recording | None) -> RecordedRung:
    """before, after: the recordings that have this rung and the one before it, and this one and the one after it."""
    recording = before or after
    assert recording is not None  # one rung is recorded beside another
    again = _throughput(after, number) if after is not None and after is not recording else None
    return RecordedRung(number, lesson(number).title, _throughput(recording, number), again)


def _throughput(recording: Recording, number: str) -> float:
    return recording.rungs[number].typical("total throughput", "mean")


def _memory_limit(recordings: Sequence[Recording]) -> float:
    """Tokens of a run over the seconds that it takes to move the fewest bytes that a run had to, at the best rate."""
    documents = [recording.document for recording in recordings]
    fewest = min(run["decode_bytes"] for one in documents for runs in one["rungs"].values() for run in runs)
    bandwidth = max(one["copy_bytes_per_second"] for one in documents)
    return recordings[0].conditions.tokens * bandwidth / fewest


def timeline_of(
    number: str, workload: str, kind: str = "inside", gpu: str | None = None, folder: Path = RESULTS
) -> Timeline | None:
    """A rung's recorded timeline of a kind of step, from the newest recording that has one; None where there is none.

    number: of the lesson; kind: a key of `measure.timeline.STEP_KINDS`; the rest is as for `whole_ladder`.
    """
    files = (steps_in(name, gpu, folder) for name in reversed(names_of(workload)))
    return next((file.timelines[number][kind] for file in files if file is not None and file.has(kind, [number])), None)
