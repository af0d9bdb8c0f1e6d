"""What a step costs, in numbers that are the same on every machine; a lesson's idea takes some of it out of the step.

A learner's part has the idea if it costs no more than the course's part in each situation of the course.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...measure.counters import Counts
from ..world.situations import Situation


@dataclass(frozen=True)
class Seen:
    """One step of a part, watched.

    counts: what happened in it. half: the same with half as many sessions, where these can be halved.
    ids: block ids in lists that had not changed. translated: how often the part computed with one of these.
    arrays: NumPy arrays that it made from lists. kept: whether it keeps rows, or anything else.
    one_free: last blocks of one owner, in all layers, that had one free slot.
    launched: calls of Triton's launchers. copied: rows of another tensor made contiguous.
    indexed: tensors that came of an indexing by a Python list. written: whether any K or V in the cache changed.
    """

    counts: Counts
    half: Counts
    ids: int
    translated: int
    arrays: int
    kept: bool
    one_free: int
    launched: int
    copied: int
    indexed: int
    written: bool


STILL = "still {found} {words} in {situation}; the course's part of lesson {lesson} makes {right}"
GROWING = "the {words} grow with the batch: {situation} makes {found} more than one of {half}; one store makes no more"


def no_hint(at: Situation, seen: Seen, right: int) -> str:
    return ""


@dataclass(frozen=True)
class Cost:
    """Something that a step costs.

    words: what is counted. count: how much of it there was. sentence: what is said of a part that costs more, with the
    fields found, words, situation, half (of its sessions), and right, which the course's part of `lesson` costs.
    hint(situation, seen, right): what it is likely to come from; empty where nothing fits.
    """

    words: str
    count: Callable[[Seen], int]
    sentence: str = STILL
    hint: Callable[[Situation, Seen, int], str] = no_hint


@dataclass(frozen=True)
class Idea:
    """A lesson's idea in one situation: it takes a cost out of that step."""

    situation: Situation
    cost: Cost

    def told(self, found: int, right: int, lesson: str) -> str:
        """What is said of a part that costs `found` where the course's part of a lesson costs `right`."""
        at, words = self.situation, self.cost.words
        return self.cost.sentence.format(
            found=found, right=right, words=words, situation=at, lesson=lesson, half=at.n // 2
        )


def ideas(situations: Iterable[Situation], *costs: Cost) -> tuple[Idea, ...]:
    """Each of these costs, in each of these situations."""
    return tuple(Idea(at, cost) for at in situations for cost in costs)


# -- costs that several lessons count ---------------------------------------------------------------------------------


def append_tokens(seen: Seen) -> int:
    return seen.counts.calls_of("append_token")


def operations_for_more_sessions(seen: Seen) -> int:
    return max(0, seen.counts.operations.total() - seen.half.operations.total())


def stores(seen: Seen) -> int:
    return sum(map(seen.counts.operations_of, ("index_put", "index_copy", "scatter")))


def rows_copied(seen: Seen) -> int:
    counted = sum(map(seen.counts.operations_of, ("index_select", "index", "gather", "stack", "cat", "clone")))
    return max(counted, seen.copied)  # what a kernel's wrapper does is not among the counts


def index_tensors(seen: Seen) -> int:
    return seen.counts.list_tensors + sum(map(seen.counts.operations_of, ("full", "full_like", "new_full")))


def launches(seen: Seen) -> int:
    """Triton kernels launched; the course's own, which are compiled before they run, are seen by their wrappers."""
    return max(seen.counts.launches.total(), seen.launched)


def _index_by_list(at: Situation, seen: Seen, right: int) -> str:
    each = "each indexing by a Python list builds a tensor: build the index tensor once, for K and V"
    return each if seen.indexed > 0 else ""


CALLS = Cost("append_token calls", append_tokens)
LOOP = Cost("torch operations", operations_for_more_sessions, GROWING)
STORES = Cost("indexed stores of K and V", stores)
COPIES = Cost("copies of rows of K and V, by index_select or the like", rows_copied)
INDEX_TENSORS = Cost("index tensors built", index_tensors, hint=_index_by_list)
LAUNCHES = Cost("Triton kernels launched", launches)
NO_LAUNCH = Cost(
    "steps without a Triton kernel",
    lambda seen: int(launches(seen) == 0),
    "no Triton kernel is launched in {situation}; the course's part of lesson {lesson} launches one",
)
