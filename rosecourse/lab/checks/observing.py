"""One step of a part in a situation, watched: all that its costs are counted from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ...errors import RosecourseError
from ...measure.counters import watch
from ..course.costs import Binary, Seen
from ..world.causes import Cause
from ..world.fault import Fault, PartIsWrong
from ..world.learner import Learner
from ..world.oracle import Oracle
from ..world.pool import Tracked
from ..world.situations import Situation
from ..world.worlds import World
from .calls_seen import Calls
from .operations_seen import Operations
from .stores_seen import Stores


@lru_cache
def observe_course(part: type, world: World, situation: Situation, device: str) -> Seen:
    """The same as `observe`, of a part of the course; once is enough."""
    return observe(Learner(part, world.called_with), world, situation, device)


def observe(learner: Learner, world: World, situation: Situation, device: str) -> Seen:
    """One step in a situation, and the same with half as many sessions. Raises `PartIsWrong` if one goes wrong.

    device: where steps with kernels are made; all others are made in the host's memory, which can be looked at.

    A step is made again, on a pool of its own, for each way of looking at it that would disturb the others.
    """

    def fresh(n: int) -> tuple[Oracle, list[Tracked]]:
        oracle = world.oracle(learner, situation.sizes(device if situation.with_kernels else "cpu"))
        return oracle, situation.batch(oracle, n)

    try:
        oracle, batch = fresh(situation.n)
        seen = observe_step(oracle, batch)
        if situation.once:
            return seen
        if situation.can_be_halved:
            seen = replace(seen, half_moves=observe_step(*fresh(situation.n // 2)).moves)
        if situation.with_kernels:
            return replace(seen, binaries=seen.binaries | _binaries(oracle, batch))
        return replace(seen, stores=_stores(*fresh(situation.n)))
    except PartIsWrong as wrong:
        raise PartIsWrong(replace(wrong.fault, tried=str(situation))) from None
    except RosecourseError as error:  # of the pool: such as a block that is taken where none is left
        raise PartIsWrong(
            Fault(f"the part raised {type(error).__name__}: {error}", tried=str(situation), cause=Cause.RAISES)
        ) from None


def observe_step(oracle: Oracle, batch: list[Tracked]) -> Seen:
    """One step of an oracle's part with this batch, which is watched, and then judged like any other."""
    operations = Operations([*oracle.kv.k_layers, *oracle.kv.v_layers], oracle.sizes.heads * oracle.sizes.head_dim)
    calls, watched = Calls(operations), watch()
    oracle.step(*batch, around=lambda: _together(calls, watched, operations))
    return Seen(
        counts=watched.counts,
        moves=operations.moves,
        half_moves=operations.moves,
        stores=0,
        copies=operations.copies,
        index_tensors=operations.index_tensors,
        list_tensors=operations.list_tensors,
        indexed=operations.indexed,
        arrays=calls.arrays,
        launched=len(calls.kernels),
        codes=frozenset(calls.codes),
        kernels=frozenset(calls.kernels),
        binaries=frozenset(calls.binaries),
        ops=oracle.ops_seen(),
    )


@contextmanager
def _together(*watchers: AbstractContextManager[Any]) -> Iterator[None]:
    """All of them, the last one nearest to what is watched."""
    with ExitStack() as stack:
        for watcher in watchers:
            stack.enter_context(watcher)
        yield


def _stores(oracle: Oracle, batch: list[Tracked]) -> int:
    stores = Stores(oracle.kv.k_layers, oracle.kv.v_layers)
    oracle.step(*batch, around=lambda: stores)
    return stores.number


def _binaries(oracle: Oracle, batch: list[Tracked]) -> frozenset[Binary]:
    """Those of the next step, which is at the next position."""
    calls = Calls(Operations([], 1))
    oracle.step(*batch, around=lambda: calls)
    return frozenset(calls.binaries)
