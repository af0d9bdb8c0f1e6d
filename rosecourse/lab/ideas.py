"""What a lesson's idea saves, counted while a part works: the learner's against the course's, in the same run.

A part passes that does no more of it than the course's part of the lesson; one that does less passes too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import numpy as np
import torch

from ..bench.counters import Counts, watch
from ..lessons import Lesson, lesson
from .learner import Learner
from .oracle import NEVER_FULL, Oracle, Sizes, TableOracle, Tracked

BATCH = 16
SIX_LAYERS = Sizes(layers=6, block_size=8, num_blocks=120, max_seq_len=64)


@dataclass(frozen=True)
class Seen:
    """One step, watched. half: the same with half as many sessions. translated: block ids that the part computed with. arrays: NumPy
    arrays made from lists."""

    counts: Counts
    half: Counts
    translated: int
    arrays: int


@dataclass(frozen=True)
class Situation:
    """A step of `BATCH` sessions. lengths: of n sessions before it. forks: how many of them have a child that does not
    step. gates: as in `Sizes`."""

    name: str
    lengths: Callable[[int], Sequence[int]]
    forks: int = 0
    gates: tuple[int, int | None] = (NEVER_FULL, None)


INSIDE = Situation("a step of 16 sessions inside their blocks", lambda n: [1 + i % 6 for i in range(n)])
WITH_FORKS = Situation("a step of 16 sessions, 2 of which share their last block", INSIDE.lengths, forks=2)
ROLLOVER = Situation("a step of 16 sessions whose blocks are full", lambda n: [8] * n)
SHARED_FULL = Situation("a step of 16 sessions whose blocks are full, 2 of them shared", ROLLOVER.lengths, forks=2)
SOME_FULL = Situation("a step of 16 sessions, half of whose blocks are full", lambda n: [8 - i % 2 for i in range(n)])
IN_STEP = Situation("a step of 16 sessions at the same slot", lambda n: [5] * n)
IN_STEP_FORKS = Situation("a step of 16 sessions at the same slot, 2 of which share their block", lambda n: [5] * n, 2)
LONG = Situation("a step of 16 sessions in which no list has changed", lambda n: [41 + i % 6 for i in range(n)])
WHOLE = replace(IN_STEP, name=f"{IN_STEP.name}, above the gate", gates=(16, None))
WHOLE_ONLY = replace(IN_STEP, name=f"{IN_STEP.name}, above the gate for whole batches alone", gates=(17, 16))
NOT_WHOLE = replace(IN_STEP, name=f"{IN_STEP.name}, above the gate for other batches alone", gates=(16, 17))
MIXED = replace(INSIDE, name=f"{INSIDE.name}, above the gate", gates=(16, None))
BELOW = replace(IN_STEP, name=f"{IN_STEP.name}, below the gate", gates=(17, None))


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


def layers_without_launch(seen: Seen) -> int:
    return max(0, SIX_LAYERS.layers - launches(seen))


@dataclass(frozen=True)
class Idea:
    """What a lesson takes out of a step: `count` of it is left. words: what is counted."""

    lesson: str
    situation: Situation
    words: str
    count: Callable[[Seen], int]


NO_CALLS = ("append_token calls", append_tokens)
NO_LOOP = ("torch operations for 8 sessions more", operations_for_more_sessions)
NO_COPY = ("copies of rows of K and V (index_select and the like)", rows_copied)
NO_INDEX = ("index tensors built", index_tensors)
LAUNCHED = ("layers of 6 without a Triton kernel", layers_without_launch)
NOT_LAUNCHED = ("Triton kernels launched", launches)

IDEAS = [
    Idea("036", LONG, "tensors built from Python lists", lambda seen: seen.counts.list_tensors),
    Idea("036", LONG, "NumPy arrays built from Python lists", lambda seen: seen.arrays),
    Idea("036", LONG, "block ids put into rows", lambda seen: seen.translated),
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
    """Those of a lesson, and of the lessons before it that replace the same part."""
    kind = changed.changes
    return [
        idea
        for idea in IDEAS
        if idea.lesson <= changed.number
        and lesson(idea.lesson).changes == kind
        and (with_kernels or idea.situation.gates[0] == NEVER_FULL)
    ]


def observe(learner: Learner, situation: Situation, device: str = "cpu") -> Seen:
    """One step in a situation, and the same with half as many sessions; the part has made a step before it."""
    oracle_of = TableOracle if learner.kind == "block_tables" else Oracle
    seen = []
    for n in (BATCH, BATCH // 2):
        oracle = oracle_of(learner, replace(SIX_LAYERS, gates=situation.gates, device=device))
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
