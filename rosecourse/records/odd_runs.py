"""Recorded runs that stand out, said in a sentence, so that nobody takes what they do to an interval for a lesson's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from ..lessons import LESSONS, Lesson
from ..measure.compare import Comparison
from .comparisons import RecordedComparison, recorded_comparison, recorded_traffic
from .results import RESULTS

ODD = 10  # times the median of its side: a prefill that long had something else in it, such as a compiler
FAR = 0.15  # a run whose share of good requests is so far below the median of its side stands out
SLOW = 2  # times the median of its side: a whole run that took so long stands out
LONG = 2  # times the median of its side: prefills under load that long had something else in them, too
FEWER = (
    "In mixed traffic under load, these runs have a share of good requests that lies more than "
    f"{100 * FAR:.0f} percentage points below the median of their side"
)
SLOWER = f"Runs that took more than {SLOW} times the median of their side"
FIRST_WARM = (
    "Where prefill took that long, round 1 was the first in which requests found prompts in the prefix cache, and "
    "prefilled in shapes that were new to the GPU's libraries; recordings from 066 on warm up once more."
)
NO_REASON = "nothing was recorded that would say why."


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


def slow_runs(found: Mapping[str, RecordedComparison]) -> str:
    """A sentence on the runs that took far longer than others of their side; empty where there is none.

    They are kept, as those of `odd_runs`. found: workload -> its recorded runs before and after a lesson.
    """
    said = list(_slow(found))
    return f"{SLOWER}: {'; '.join(said)}. They are kept, and {NO_REASON}" if said else ""


def slow_runs_of_all(workloads: Iterable[str], gpu: str | None = None, folder: Path = RESULTS) -> str:
    """The same of all lessons, with their numbers, of these workloads and of mixed traffic all at once."""
    slow: dict[str, list[str]] = {rung.number: [] for rung in LESSONS if rung.changes}
    for name in workloads:  # one after the other: a file has several lessons, and is read once
        for number, said in slow.items():
            if (found := recorded_comparison(number, name, gpu, folder)) is not None:
                said += _slow({name: found})
    for number, said in slow.items():
        if (traffic := recorded_traffic(number, gpu, folder)) is not None:
            said += _slow({"D-burst": traffic.burst})
    lessons = ". ".join(f"{number}: {'; '.join(said)}" for number, said in slow.items() if said)
    return f"{SLOWER}: {lessons}. {NO_REASON.capitalize()}" if lessons else ""


def _slow(found: Mapping[str, Comparison]) -> Iterator[str]:
    for workload, one in found.items():
        slow = [sum(seconds > SLOW * median(side.seconds) for seconds in side.seconds) for side in one.sides]
        if any(slow):
            sides = " and ".join(
                f"{n} of {len(side.runs)} {side.name}" for n, side in zip(slow, one.sides, strict=True)
            )
            yield f"{workload}, {sides}"


@dataclass(frozen=True)
class _OddLoad:
    """The odd runs of a side under load.

    side: with the number of its lesson; shares: of good requests, by round from 1; prefills: of round 1, or empty.
    """

    side: str
    shares: Mapping[int, float]
    usual: float
    prefills: str

    def __str__(self) -> str:
        *shares, last = (f"{share:.0%} in round {number}" for number, share in self.shares.items())
        said = f"{', '.join(shares)} and {last}" if shares else last
        return f"{self.side}, {said} (median {self.usual:.0%}){self.prefills}"


def odd_loads(lessons: Iterable[str] = (), gpu: str | None = None, folder: Path = RESULTS) -> str:
    """Sentences on runs under load in which far fewer requests were good than in others of their side; may be empty.

    They are kept, as those of `odd_runs`, and the sentences say what is known of the reason. lessons: the numbers of
    those that are looked at; empty: all. gpu and folder: as for `recorded_traffic`.
    """
    numbers = list(lessons) or [rung.number for rung in LESSONS if rung.changes]
    found = [odd for number in numbers for odd in _odd_loads_of(number, gpu, folder)]
    if not found:
        return ""
    known = [odd for odd in found if odd.prefills]
    reasons = [FIRST_WARM] * bool(known)
    if len(known) < len(found):
        reasons.append(f"For the others {NO_REASON}" if known else NO_REASON.capitalize())
    return " ".join([f"{FEWER}: {'; '.join(map(str, found))}.", *reasons])


def _odd_loads_of(number: str, gpu: str | None, folder: Path) -> Iterator[_OddLoad]:
    traffic = recorded_traffic(number, gpu, folder)
    if traffic is None:
        return
    for side in traffic.load.sides:
        shares = side.shares_good(traffic.limits)
        usual = median(shares)
        odd = {place: share for place, share in enumerate(shares, 1) if share < usual - FAR}
        if odd:
            prefills = _long_prefills([1e3 * run.stats.prefill_seconds for run in side.runs]) if 1 in odd else ""
            yield _OddLoad(f"{number} {side.name}", odd, usual, prefills)


def _long_prefills(milliseconds: Sequence[float]) -> str:
    """What is said where the first round's prefills took far longer than those of the others; else nothing."""
    first, usual = milliseconds[0], median(milliseconds)
    return f", with {first:,.0f} ms of prefill (median {usual:,.0f} ms)" if first > LONG * usual else ""
