"""What a lesson's idea saves, counted while a part works: the learner's against the course's, in the same run.

A part passes that does no more of it than the course's part of the lesson; one that does less passes too.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from types import FrameType
from typing import Any

import numpy as np
import torch

from ...lessons import LESSONS, Lesson, lesson
from ...measure.counters import Counts, watch
from ..world import situations
from ..world.fault import PartIsWrong
from ..world.learner import Learner
from ..world.oracle import Oracle, TableOracle, Tracked
from ..world.situations import Situation


@dataclass(frozen=True)
class Seen:
    """One step, watched. half: the same with half as many sessions, where they can be halved.

    ids, translated: block ids in lists that had not changed, and how often the part computed with one. arrays: NumPy
    arrays that it made from lists. kept: whether it keeps rows, or anything else. one_free: last blocks of one owner,
    in all layers, that had one free slot. launched: calls of Triton's launchers. copied: rows of another tensor made
    contiguous. indexed: tensors that came of an indexing by a Python list.
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


def launches(seen: Seen) -> int:
    """Triton kernels launched; the course's own, which are compiled before they run, are seen by their wrappers."""
    return max(seen.counts.launches.total(), seen.launched)


def operations_for_more_sessions(seen: Seen) -> int:
    return max(0, seen.counts.operations.total() - seen.half.operations.total())


def rows_copied(seen: Seen) -> int:
    counted = sum(map(seen.counts.operations_of, ("index_select", "index", "gather", "stack", "cat", "clone")))
    return max(counted, seen.copied)  # what a kernel's wrapper does is not among the counts


def index_tensors(seen: Seen) -> int:
    return seen.counts.list_tensors + sum(map(seen.counts.operations_of, ("full", "full_like", "new_full")))


def ids_put_into_rows(seen: Seen) -> int:
    return seen.translated


def append_tokens(seen: Seen) -> int:
    return seen.counts.calls_of("append_token")


def stores(seen: Seen) -> int:
    return sum(map(seen.counts.operations_of, ("index_put", "index_copy", "scatter")))


def writes_without_kernel(seen: Seen) -> int:
    return stores(seen) if launches(seen) else max(1, stores(seen))


@dataclass(frozen=True)
class Idea:
    """What a lesson takes out of a step: `count` of it is left. words: what is counted. sentence: what to say of
    `found`, where the course's part of `lesson` makes `right`."""

    lesson: str
    situation: Situation
    words: str
    count: Callable[[Seen], int]
    sentence: str = "still {found} {words} in {situation}; the course's part of lesson {lesson} makes {right}"

    def told(self, found: int, right: int) -> str:
        at = self.situation
        return self.sentence.format(
            found=found, right=right, words=self.words, situation=at, lesson=self.lesson, half=at.n // 2
        )

    def hint(self, seen: Seen, right: int) -> str:
        """What so many of it are likely to come from; empty where nothing fits."""
        found = self.count(seen)
        inside = self.situation is situations.INSIDE and self.count is append_tokens
        if inside and found - right == seen.one_free > 0:
            return "a block with one free slot is simple too"
        if self.count is index_tensors and seen.indexed > 0:
            return "each indexing by a Python list builds a tensor: build the index tensor once, for K and V"
        if (
            self.situation is situations.UNCHANGED
            and seen.kept
            and self.count is ids_put_into_rows
            and found == seen.ids
        ):
            return "rows are kept, but no kept signature was ever equal: is what is stored what is compared?"
        return ""


GROWING = "the {words} grow with the batch: {situation} makes {found} more than one of {half}; one store makes no more"
NO_CALLS = ("append_token calls", append_tokens)
NO_LOOP = ("torch operations", operations_for_more_sessions, GROWING)
ONE_STORE = ("indexed stores of K and V", stores)
NO_COPY = ("copies of rows of K and V, by index_select or the like", rows_copied)
NO_INDEX = ("index tensors built", index_tensors)
LAUNCHED = ("writes of K and V without a Triton kernel", writes_without_kernel)
LAUNCHES = ("Triton kernels launched", launches)
ROWS = (
    ("tensors built from Python lists", lambda seen: seen.counts.list_tensors),
    ("NumPy arrays built from Python lists", lambda seen: seen.arrays),
)
OLD_IDS = ("block ids put into rows", ids_put_into_rows)

IDEAS = [
    *(Idea("036", at, *what) for at in situations.TABLES if at is not situations.SOME_GROWN for what in ROWS),
    *(Idea("036", at, *OLD_IDS) for at in situations.TABLES),
    *(Idea("038", at, *NO_CALLS) for at in (*situations.SIMPLE, situations.SOME_FULL)),
    *(Idea("038", at, *NO_LOOP) for at in (*situations.SIMPLE, situations.SOME_FULL) if at.can_be_halved),
    *(Idea("038", at, *ONE_STORE) for at in situations.SIMPLE),
    *(Idea("059", at, *NO_CALLS) for at in situations.FULL),
    *(Idea("059", at, *ONE_STORE) for at in situations.FULL),
    *(Idea("059", at, *NO_LOOP) for at in situations.FULL if at.can_be_halved),
    *(
        Idea("060", at, *what)
        for at in (*situations.SAME_SLOT, *situations.SIMPLE, *situations.FULL)
        for what in (NO_COPY, NO_INDEX)
    ),
    *(Idea("061", at, *LAUNCHED) for at in (*situations.WHOLE, *situations.NOT_WHOLE, *situations.MIXED)),
    *(Idea("061", at, *NO_COPY) for at in (*situations.WHOLE, *situations.NOT_WHOLE, *situations.MIXED)),
    *(Idea("061", at, *NO_INDEX) for at in situations.WHOLE),  # how the generic kernel gets its lists is left open
    *(Idea("061", at, *LAUNCHES) for at in (*situations.WHOLE, *situations.NOT_WHOLE, *situations.MIXED)),
    *(Idea("061", at, *LAUNCHES) for at in situations.BELOW),
]


class CountedId(int):
    """A block id that counts how often something is computed from one, as for a row of a block table."""

    computed = 0

    def __sub__(self, other: int) -> int:
        CountedId.computed += 1
        return int.__sub__(self, other)

    def __mod__(self, other: int) -> int:
        CountedId.computed += 1
        return int.__mod__(self, other)

    def __divmod__(self, other: int) -> tuple[int, int]:
        CountedId.computed += 1
        return int.__divmod__(self, other)


def ideas_until(changed: Lesson, with_kernels: bool) -> list[list[Idea]]:
    """Those of a lesson and of the lessons before it that replace the same part, lesson by lesson.

    What must not be launched comes first of all: it takes long where kernels are interpreted.
    """
    latest = {}  # of what several lessons count in a situation, that of the last of them
    for idea in IDEAS:
        replaces = idea.lesson <= changed.number and lesson(idea.lesson).changes == changed.changes
        if replaces and (with_kernels or not idea.situation.with_kernels):
            latest.pop((idea.situation, idea.words), None)
            latest[idea.situation, idea.words] = idea
    groups: dict[str, list[Idea]] = {"": [], **{rung.number: [] for rung in LESSONS}}
    for idea in latest.values():
        groups["" if idea.count is launches else idea.lesson].append(idea)
    return [group for group in groups.values() if group]


@lru_cache
def observe_course(part: type, kind: str, situation: Situation, device: str) -> Seen:
    """The same of a part of the course; once is enough."""
    return observe(Learner(part, kind), situation, device)


def observe(learner: Learner, situation: Situation, device: str = "cpu") -> Seen:
    """One step in a situation, and the same with half as many sessions. Raises `PartIsWrong` if one goes wrong."""
    oracle_of = TableOracle if learner.kind == "block_tables" else Oracle
    seen = []
    try:
        for n in (situation.n, situation.n // 2)[: 1 + situation.can_be_halved]:
            oracle = oracle_of(learner, situation.sizes(device))
            seen.append(_observe_step(oracle, situation.batch(oracle, n)))
    except PartIsWrong as wrong:
        raise PartIsWrong(replace(wrong.fault, tried=str(situation))) from None
    return replace(seen[0], half=seen[-1].counts)


def _observe_step(oracle: Oracle, batch: list[Tracked]) -> Seen:
    arguments = oracle.arguments(batch, oracle.next_tokens(batch))
    unchanged = oracle.unchanged_lists(batch)
    for ids in unchanged:
        ids[:] = map(CountedId, ids)
    last = [oracle.info(ids[-1]) for t in batch for ids in t.table if ids]
    one_free = sum(info.owners == 1 and info.length == oracle.sizes.block_size - 1 for info in last)
    CountedId.computed = 0
    with _made() as made, watch() as counts:
        oracle.learner.call(oracle.part, *arguments)
    own = getattr(oracle.part, "__dict__", {}).values()
    kept = any(t.table.row_cache is not None for t in batch) or any(isinstance(x, list | dict) and x for x in own)
    return Seen(
        counts=counts,
        half=counts,
        ids=sum(map(len, unchanged)),
        translated=CountedId.computed,
        arrays=sum(made[maker] for maker in ARRAYS),
        kept=kept,
        one_free=one_free,
        launched=sum(made[name] for name in LAUNCHERS),
        copied=made["contiguous"],
        indexed=counts.list_tensors - sum(made[maker] for maker in TENSORS),
    )


ARRAYS = ("array", "asarray", "fromiter", "stack", "from_numpy")
TENSORS = ("tensor", "as_tensor")
LAUNCHERS = ("GridExecutor.__call__", "JITFunction.run")  # in the interpreter, and on a GPU
MAKERS = (np.array, np.asarray, np.fromiter, np.stack, torch.from_numpy, torch.tensor, torch.as_tensor)


@contextmanager
def _made() -> Iterator[Counter[str]]:
    """How often something is called that makes arrays or tensors of lists, or launches a kernel."""
    found: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code.co_name == "__torch_function__":  # a counter, which calls it once more
            return
        if event == "c_call" and any(arg is maker for maker in MAKERS):
            found[arg.__name__] += 1
        elif event == "c_call" and arg.__name__ == "contiguous" and isinstance(arg.__self__, torch.Tensor):
            found["contiguous"] += not arg.__self__.is_contiguous()
        elif event == "call" and frame.f_code.co_qualname in LAUNCHERS:
            found[frame.f_code.co_qualname] += 1

    profiler = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(profiler)
