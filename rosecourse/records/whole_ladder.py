"""The whole ladder as it was recorded: what every rung makes of one workload."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..lessons import lesson
from ..measure.timeline import Timeline
from .names import names_of
from .recordings import recording_of
from .results import RESULTS
from .steps import steps_in


@dataclass(frozen=True)
class RecordedRung:
    """What one rung made of a workload: medians of its runs.

    throughput: tokens/s of whole runs; tpot_ms: the median TPOT; share_of_floor: the least time that its decode steps
    could take / the time that they took. device: its name.
    """

    number: str
    title: str
    throughput: float
    tpot_ms: float
    share_of_floor: float
    device: str


def whole_ladder(workload: str, gpu: str | None = None, folder: Path = RESULTS) -> list[RecordedRung]:
    """Every recorded rung of the ladder under a workload, from the recording that has the rung before it too.

    A recording of a part of the ladder was made on a day of its own: neighbours can be compared to a few per cent,
    which is why lessons compare them within one recording. workload: such as `A`; gpu and folder: as for
    `results_file`. Empty where nothing is recorded. Raises `RosecourseError` for a file that is damaged.
    """
    found: dict[str, RecordedRung] = {}
    for name in names_of(workload):
        recording = recording_of(name, gpu, folder)
        if recording is None:
            continue
        for number in list(recording.rungs)[name != workload :]:  # of a part of the ladder without its first
            rung = recording.rungs[number]
            found.setdefault(
                number,
                RecordedRung(
                    number,
                    lesson(number).title,
                    rung.typical("total throughput", "mean"),
                    rung.typical("TPOT", "p50"),
                    recording.share_of_floor(number),
                    recording.conditions.device,
                ),
            )
    return list(found.values())


def timeline_of(
    number: str, workload: str, kind: str = "inside", gpu: str | None = None, folder: Path = RESULTS
) -> Timeline | None:
    """A rung's recorded timeline of a kind of step, from the newest recording that has one; None where there is none.

    number: of the lesson; kind: a key of `measure.timeline.STEP_KINDS`; the rest is as for `whole_ladder`.
    """
    files = (steps_in(name, gpu, folder) for name in reversed(names_of(workload)))
    return next((file.timelines[number][kind] for file in files if file is not None and file.has(kind, [number])), None)
