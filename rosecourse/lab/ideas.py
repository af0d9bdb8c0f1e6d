"""What a lesson's idea saves, counted while a part works: the learner's against the course's, in the same run.

A part passes that does no more of it than the course's part of the lesson; one that does less passes too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from types import FrameType
from typing import Any

import numpy as np
import torch

from ..bench.counters import Counts, watch
from ..lessons import Lesson, lesson
from .learner import Learner
from .oracle import NEVER_FULL, Oracle, Sizes, TableOracle, Tracked

SIZES = Sizes(block_size=8, num_blocks=120, max_seq_len=64)


@dataclass(frozen=True)
class Seen:
    """One step, watched. half: the same with half as many sessions.

    translated: block ids that the part computed with. arrays: NumPy arrays that it made from lists.
    """

    counts: Counts
    half: Counts
    translated: int
    arrays: int


@dataclass(frozen=True)
class Situation:
    """A step of n sessions. lengths: before it, of n sessions. forks: how many of them share their last block with a
    child that does not step. gates: as in `Sizes`, for n sessions."""

    name: str
    lengths: Callable[[int], Sequence[int]]
    forks: int = 0
    gates: tuple[int, int | None] = (NEVER_FULL, None)
    n: int = 16
    layers: int = 6

    def __str__(self) -> str:
        return f"a step of {self.n} sessions {self.name}"

    @property
    def with_kernels(self) -> bool:
        return self.gates[0] < NEVER_FULL


def _gated(situation: Situation, name: str, *gates: int | None) -> Situation:
    """Smaller, because Triton's interpreter is slow."""
    return replace(situation, name=f"{situation.name}, {name}", gates=gates, n=4, layers=2)


INSIDE = Situation("inside their blocks", lambda n: [2 + i % 6 for i in range(n)])
WITH_FORKS = Situation("inside their blocks, 2 of which are shared", INSIDE.lengths, forks=2)
ROLLOVER = Situation("whose last blocks are full", lambda n: [8] * n)
SHARED_FULL = Situation("whose last blocks are full, 2 of them shared", ROLLOVER.lengths, forks=2)
SOME_FULL = Situation("of whose last blocks half are full", lambda n: [8 - i % 2 for i in range(n)])
IN_STEP = Situation("at the same slot", lambda n: [5] * n)
IN_STEP_FORKS = Situation("at the same slot, 2 of them in shared blocks", IN_STEP.lengths, forks=2)
UNCHANGED = Situation("whose block lists have not changed", lambda n: [41 + i % 6 for i in range(n)])
WHOLE = _gated(IN_STEP, "as many as both gates ask for", 4, None)
WHOLE_ONLY = _gated(IN_STEP, "as many as the gate for whole batches asks for", 5, 4)
NOT_WHOLE = _gated(IN_STEP, "as many as the first gate asks for, too few for the second", 4, 5)
MIXED = _gated(INSIDE, "as many as both gates ask for", 4, None)
BELOW = _gated(IN_STEP, "fewer than the gates ask for", 5, None)


def launches(seen: Seen) -> int:
    """Triton kernels launched: those of the course, by their wrappers, and any other."""
    others = ("GridExecutor.__call__", "JITFunction.run")  # in the interpreter, and on a GPU
    return seen.counts.launches.total() + sum(seen.counts.calls[name] for name in others)


def operations_for_more_sessions(seen: Seen) -> int:
    return seen.counts.operations.total() - seen.half.operations.total()


def rows_copied(seen: Seen) -> int:
    return sum(map(seen.counts.operations_of, ("index_select", "index", "gather", "stack", "cat", "clone")))


def index_tensors(seen: Seen) -> int:
    return seen.counts.list_tensors + sum(map(seen.counts.operations_of, ("full", "full_like", "new_full")))


def append_tokens(seen: Seen) -> int:
    return seen.counts.calls_of("append_token")


def writes_without_kernel(seen: Seen) -> int:
    writes = sum(map(seen.counts.operations_of, ("index_put", "index_copy", "scatter")))
    return writes if launches(seen) else max(1, writes)


@dataclass(frozen=True)
class Idea:
    """What a lesson takes out of a step: `count` of it is left. words: what is counted."""

    lesson: str
    situation: Situation
    words: str
    count: Callable[[Seen], int]


NO_CALLS = ("append_token calls", append_tokens)
NO_LOOP = ("torch operations more than with half as many sessions", operations_for_more_sessions)
NO_COPY = ("copies of rows of K and V, by index_select or the like", rows_copied)
NO_INDEX = ("index tensors built", index_tensors)
LAUNCHED = ("writes of K and V without a Triton kernel", writes_without_kernel)
NOT_LAUNCHED = ("Triton kernels launched", launches)

IDEAS = [
    Idea("036", UNCHANGED, "tensors built from Python lists", lambda seen: seen.counts.list_tensors),
    Idea("036", UNCHANGED, "NumPy arrays built from Python lists", lambda seen: seen.arrays),
    Idea("036", UNCHANGED, "block ids put into rows", lambda seen: seen.translated),
    *(Idea("038", INSIDE, *what) for what in (NO_CALLS, NO_LOOP)),
    Idea("038", WITH_FORKS, *NO_CALLS),
    *(Idea("059", situation, *NO_CALLS) for situation in (ROLLOVER, SHARED_FULL, SOME_FULL)),
    Idea("059", ROLLOVER, *NO_LOOP),
    *(Idea("060", situation, *what) for situation in (IN_STEP, INSIDE) for what in (NO_COPY, NO_INDEX)),
    Idea("060", IN_STEP_FORKS, *NO_INDEX),
    *(Idea("061", situation, *LAUNCHED) for situation in (WHOLE, WHOLE_ONLY, NOT_WHOLE, MIXED)),
    *(Idea("061", situation, *NO_INDEX) for situation in (WHOLE, WHOLE_ONLY, MIXED)),
    Idea("061", BELOW, *NOT_LAUNCHED),
]


class CountedId(int):
    """A block id that counts how often something is computed from one, as for a row of a block table."""

    computed = 0

    def __sub__(self, other: int) -> int:
        CountedId.computed += 1
        return int(self) - other

    def __mod__(self, other: int) -> int:
        CountedId.computed += 1
        return int(self) % other

    def __divmod__(self, other: int) -> tuple[int, int]:
        CountedId.computed += 1
        return divmod(int(self), other)


def ideas_until(changed: Lesson, with_kernels: bool) -> list[Idea]:
    """Those of a lesson, then those of the lessons before it that replace the same part."""
    kind = changed.changes
    return [
        idea
        for idea in sorted(IDEAS, key=lambda idea: idea.lesson, reverse=True)
        if idea.lesson <= changed.number
        and lesson(idea.lesson).changes == kind
        and (with_kernels or not idea.situation.with_kernels)
    ]


@lru_cache
def observe_course(part: type, kind: str, situation: Situation, device: str) -> Seen:
    """The same of a part of the course; once is enough."""
    return observe(Learner(part, kind), situation, device)


def observe(learner: Learner, situation: Situation, device: str = "cpu") -> Seen:
    """One step in a situation, and the same with half as many sessions; the part has made a step before it."""
    oracle_of = TableOracle if learner.kind == "block_tables" else Oracle
    seen = []
    for n in (situation.n, situation.n // 2):
        oracle = oracle_of(learner, replace(SIZES, layers=situation.layers, gates=situation.gates, device=device))
        batch = [oracle.start(length - 1) for length in situation.lengths(n)]
        oracle.step(*batch)
        for parent in batch[3 : 3 + situation.forks]:
            oracle.fork(parent)
        seen.append(_observe_step(oracle, batch))
    return replace(seen[0], half=seen[1].counts)


def _observe_step(oracle: Oracle, batch: list[Tracked]) -> Seen:
    arguments = oracle.arguments(batch, oracle.next_tokens(batch))
    if isinstance(oracle, TableOracle):
        oracle.look(*batch)  # nothing changes between this call and the next
        for tracked in batch:
            for ids in tracked.table:
                ids[:] = map(CountedId, ids)
    CountedId.computed = 0
    with _numpy_arrays() as arrays, watch() as counts:
        oracle.learner.call(oracle.part, *arguments)
    return Seen(counts, counts, CountedId.computed, len(arrays))


@contextmanager
def _numpy_arrays() -> Iterator[list[Any]]:
    """A list that gets an entry for each NumPy array that is made from a list, and each tensor made from an array."""
    makers = (np.array, np.asarray, np.fromiter, np.stack, torch.from_numpy)
    found: list[Any] = []

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and any(arg is maker for maker in makers):
            found.append(arg)

    profiler = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(profiler)
