"""Recorded runs that stand out, said in a sentence, so that nobody takes what they do to an interval for a lesson's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from ..lessons import LESSONS, Lesson
from .comparisons import RecordedComparison, recorded_comparison
from .results import RESULTS

ODD = 10  # times the median of its side: a prefill that long had something else in it, such as a compiler


def odd_runs(gpu: str | None = None, folder: Path = RESULTS) -> str:
    """A sentence for each run of a lesson's recording whose prefill stands out; empty where there is none.

    Such a run is kept: what is measured is not chosen by its result. The sentence gives its prefill beside the median
    of its side, and the ratio of its round in the lesson's headline. gpu and folder: as for `recorded_comparison`.
    """
    found = [(rung, recorded_comparison(rung.number, gpu=gpu, folder=folder)) for rung in LESSONS if rung.changes]
    return " ".join(said for rung, one in found if one is not None for said in _sentences(rung, one))


def _sentences(rung: Lesson, recorded: RecordedComparison) -> Iterator[str]:
    for number, side in zip((recorded.numbers["before"], rung.number), recorded.sides, strict=True):
        prefills = [1e3 * run.stats.prefill_seconds for run in side.runs]
        for place, ms in enumerate(prefills):
            if ms > ODD * median(prefills):
                before, after = recorded.pairs[place]
                alone = replace(recorded, before=before, after=after).ratio(*rung.headline)
                yield (
                    f"In round {place + 1} of {len(prefills)} of the recording of {rung.number}, {number} spent "
                    f"{ms:.0f} ms in prefill, where its median is {median(prefills):.0f} ms: the ratio of that round "
                    f"alone is {alone.value:.2f}, and widens the interval."
                )
