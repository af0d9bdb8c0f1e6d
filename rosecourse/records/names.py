"""The names of recorded files: of a workload's whole ladder, or of its rungs from one on."""

from __future__ import annotations

from ..lessons import LESSONS
from ..lessons.workloads import ARTICLES
from .results import require_known

BURST, LOAD = "D-burst", "D-load"  # mixed traffic, all at once and over time; a lesson has its own load
FROM = "-from-"


def number_before(number: str) -> str | None:
    """The number of the lesson before one on the ladder; None for the first."""
    numbers = [rung.number for rung in LESSONS]
    place = numbers.index(number)
    return numbers[place - 1] if place else None


def load_of(number: str) -> str:
    """The name of the workload that a lesson's two rungs bear, at a rate of its own."""
    return f"{LOAD}-{number}"


def name_from(workload: str, first: str | None) -> str:
    """The name of a workload's file whose first rung is this one; None: of the file of the whole ladder.

    Raises `ConfigError` for a rung that no part of the ladder can begin with: it must have one before and one after it.
    """
    if first is None:
        return workload
    require_known(first, firsts(), "part of the ladder that begins with")
    return f"{workload}{FROM}{first}"


def firsts() -> list[str]:
    """The rungs that a recording of a part of the ladder can begin with."""
    return [rung.number for rung in LESSONS[1:-1]]


def workload_in(name: str) -> str:
    """The workload that such a name begins with."""
    return name.partition(FROM)[0]


def names_of(workload: str) -> list[str]:
    """The names of all files that a workload's rungs may be in; that of the whole ladder comes first.

    Runs are compared within one file only: in another one the machine had another day.
    """
    return [name_from(workload, first) for first in (None, *firsts())]


def remedy_of(name: str) -> str:
    """The command that records a file of runs."""
    workload, _, first = name.partition(FROM)
    command = f"rosecourse record --workloads {workload if workload in ARTICLES else 'D'}"
    return f"{command} --from {first}" if first else command
