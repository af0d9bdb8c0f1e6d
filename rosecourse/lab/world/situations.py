"""The steps in which it is counted what a lesson's idea saves: each a batch over a pool of its own, as it comes to be.

An idea that holds only in some of them is not yet the lesson's: they differ in how many sessions there are, in which
blocks these are, in what they share, in the size of a block, and in what has gone before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...pictures.sheet import counted
from .oracle import NEVER_FULL, Oracle, Sizes, Tracked

Lengths = Callable[[int], Sequence[int]]  # of n sessions
SIZES = Sizes(num_blocks=120, max_seq_len=64)


@dataclass(frozen=True)
class Situation:
    """A step of n sessions. batch: makes them, and returns those of the step. gates: as in `Sizes`, for n sessions."""

    name: str
    batch: Callable[[Oracle, int], list[Tracked]]
    n: int = 16
    layers: int = 6
    block_size: int = 8
    gates: tuple[int, int | None] = (NEVER_FULL, None)

    def __str__(self) -> str:
        return f"a step of {counted(self.n, 'session')} {self.name}"

    @property
    def with_kernels(self) -> bool:
        return self.gates[0] < NEVER_FULL

    @property
    def can_be_halved(self) -> bool:
        """Whether half as many sessions differ in nothing else."""
        return self.n >= 7 and not self.with_kernels

    def sizes(self, device: str) -> Sizes:
        return replace(SIZES, layers=self.layers, block_size=self.block_size, gates=self.gates, device=device)


# -- lengths, for blocks of 8 slots -----------------------------------------------------------------------------------


def first_blocks(n: int) -> list[int]:
    return [2 + i % 6 for i in range(n)]


def any_blocks(n: int) -> list[int]:
    return [2 + i % 6 + 8 * (i % 4) for i in range(n)]


def six_blocks(n: int) -> list[int]:
    return [42 + i % 6 for i in range(n)]


def half_full(n: int) -> list[int]:
    return [8 - i % 2 + 8 * (i % 3) for i in range(n)]


def always(length: int) -> Lengths:
    return lambda n: [length] * n


def same_slot(slot: int) -> Lengths:
    """That of the next token, in first, second and third blocks."""
    return lambda n: [slot + 8 * (i % 3) for i in range(n)]


# -- how a batch comes to be ------------------------------------------------------------------------------------------


def of(lengths: Lengths, forks: int = 0) -> Callable[[Oracle, int], list[Tracked]]:
    """Sessions that have these lengths after a step; then some share their last blocks with a child that waits."""

    def batch(oracle: Oracle, n: int) -> list[Tracked]:
        made = [oracle.start(length - 1) for length in lengths(n)]
        oracle.step(*made)
        for parent in made[3 : 3 + forks]:
            oracle.fork(parent)
        return made

    return batch


def without_blocks(oracle: Oracle, n: int) -> list[Tracked]:
    return [oracle.start(0) for _ in range(n)]


def with_a_shared_beginning(oracle: Oracle, n: int) -> list[Tracked]:
    """All share a full first block, as the prefix cache does it, and go on in blocks of their own."""
    stem = oracle.start(oracle.sizes.block_size)
    made = [oracle.fork(stem) for _ in range(n)]
    for _ in range(2):
        oracle.step(*made)
    return made


def after_copies(oracle: Oracle, n: int) -> list[Tracked]:
    """Children that have left their parents' last blocks, in the step before."""
    parents = [oracle.start(10 + i % 3) for i in range(n // 2)]
    made = parents + [oracle.fork(parent) for parent in parents]
    oracle.step(*made)
    return made


def copies_and_full(oracle: Oracle, n: int) -> list[Tracked]:
    """Two share a last block and both step; the others' last blocks are full."""
    made = of(lambda n: [13] + [16] * (n - 2))(oracle, n)
    return [*made, oracle.fork(made[0])]


def others_than_before(oracle: Oracle, n: int) -> list[Tracked]:
    """Some of the sessions, in another order than that of the step before, and one that was not in it."""
    made = [oracle.start(9 + i % 6) for i in range(n + 2)]
    oracle.step(*made[1:])
    return [*made[2:n], made[0], made[1]][::-1]


def after_many_steps(oracle: Oracle, n: int) -> list[Tracked]:
    made = [oracle.start(2 + i) for i in range(n)]
    for _ in range(48):
        oracle.step(*made)
    return made


def some_have_grown(oracle: Oracle, n: int) -> list[Tracked]:
    """One in four has got a new block since the step before; they come last."""
    grown = [oracle.start(40) for _ in range(n // 4)]
    made = [oracle.start(41 + i % 6) for i in range(n - len(grown))]
    oracle.step(*made, *grown)
    return made + grown


def in_another_order(oracle: Oracle, n: int) -> list[Tracked]:
    return of(six_blocks)(oracle, n)[::-1]


def some_of_them(oracle: Oracle, n: int) -> list[Tracked]:
    return of(six_blocks)(oracle, 2 * n)[1::2]


# -- the situations ---------------------------------------------------------------------------------------------------

UNCHANGED = Situation("whose block lists have not changed", of(six_blocks))
SOME_GROWN = Situation("for the 12 whose block lists have not changed", some_have_grown)
REORDERED = Situation("whose block lists have not changed, in another order than before", in_another_order)
FEWER = Situation("whose block lists have not changed, and half of those of the step before", some_of_them, n=7)
UNCHANGED_ONE = replace(UNCHANGED, name="whose block list has not changed", n=1)
TABLES = (UNCHANGED, SOME_GROWN, REORDERED, FEWER, UNCHANGED_ONE)

INSIDE = Situation("inside their blocks", of(any_blocks))
WITH_FORKS = Situation("inside their blocks, 2 of which are shared", of(any_blocks, forks=2))
SIMPLE = (
    INSIDE,
    Situation("inside their first blocks", of(first_blocks)),
    WITH_FORKS,
    Situation("inside their blocks, behind a full one that all share", with_a_shared_beginning, layers=3),
    Situation("inside their blocks, copies that were made in the step before", after_copies, layers=3),
    Situation("inside their blocks, others than in the step before", others_than_before, n=7, layers=3),
    Situation("inside their blocks, after 49 steps", after_many_steps, n=2, layers=2),
    Situation("inside their blocks", of(any_blocks), n=5, layers=3),
    Situation("inside its block", of(any_blocks), n=1, layers=3),
    Situation("inside their blocks of 16 slots", of(any_blocks), n=9, layers=3, block_size=16),
)
ROLLOVER = Situation("whose last blocks are full", of(always(8)))
SOME_FULL = Situation("of whose last blocks half are full", of(half_full))
FULL = (
    ROLLOVER,
    Situation("whose last blocks are full, 2 of them shared", of(always(16), forks=2)),
    SOME_FULL,
    Situation("whose last blocks are full, first, second and third ones", of(same_slot(8)), layers=3),
    Situation("without any block yet", without_blocks, n=7, layers=3),
    Situation("whose last blocks are full, but for 2 that share one", copies_and_full, n=9, layers=3),
    Situation("whose last blocks are full", of(always(8)), n=3, layers=3),
    Situation("whose last block is full", of(always(24)), n=1, layers=3),
    Situation("with blocks of one slot", of(first_blocks), n=7, layers=3, block_size=1),
)
IN_STEP = Situation("at the same slot", of(always(5)))
IN_STEP_FORKS = Situation("at the same slot, 2 of them in shared blocks", of(always(5), forks=2))
SAME_SLOT = (
    IN_STEP,
    IN_STEP_FORKS,
    Situation("at the same slot of first, second and third blocks", of(same_slot(5)), layers=3),
    Situation("at the first slot of their second blocks", of(always(9)), n=5, layers=3),
)


def _gated(name: str, batch: Callable[[Oracle, int], list[Tracked]], *gates: int | None, n: int = 4) -> Situation:
    """Smaller, because Triton's interpreter is slow."""
    return Situation(name, batch, n, layers=2, gates=gates)


BOTH, ENOUGH = "as many as both gates ask for", "more than both gates ask for"
WHOLE = (
    _gated(f"at the same slot, {BOTH}", of(always(5)), 4, None),
    _gated("at the same slot, as many as the gate for whole batches asks for", of(always(5)), 5, 4),
    _gated(f"at the same slot of first, second and third blocks, {ENOUGH}", of(same_slot(5)), 2, 4, n=5),
    _gated(f"whose last blocks are full, {ENOUGH}", of(always(8)), 2, None, n=3),
    _gated(f"inside its block, {BOTH}", of(always(11)), 1, None, n=1),
)
NOT_WHOLE = (
    _gated("at the same slot, as many as the first gate asks for, too few for the second", of(always(5)), 4, 5),
    _gated(f"at the same slot, one of them in a shared block, {BOTH}", of(always(13), forks=1), 4, None, n=5),
)
MIXED = (
    _gated(f"inside their blocks, {BOTH}", of(any_blocks), 4, None),
    _gated(f"of whose last blocks half are full, {ENOUGH}", of(half_full), 2, None, n=3),
)
BELOW = (
    _gated("at the same slot, fewer than the gates ask for", of(always(5)), 5, None),
    _gated("inside their blocks, enough for whole batches at one slot alone", of(any_blocks), 5, 4),
    _gated("at the same slot, too few without the one in a shared block", of(always(5), 1), 5, None, n=5),
    _gated("at the same slot, one in a shared block, enough for whole batches alone", of(always(5), 1), 6, 4, n=5),
)
