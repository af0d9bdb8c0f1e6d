"""Situations: steps in which a course counts what its idea saves, each with a batch over a pool of its own.

A part that saves it in some of them only does not have the idea yet. They differ in the number of sessions, in the
blocks that these hold and share, in the size of a block, and in the steps before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...pictures.sheet import counted
from .oracle import Oracle
from .pool import NEVER_FULL, Sizes, Tracked

Lengths = Callable[[int], Sequence[int]]  # of n sessions
SIZES = Sizes(num_blocks=120, max_seq_len=64)


@dataclass(frozen=True)
class Situation:
    """A step of n sessions. batch: makes the sessions, and returns those of the step. gates: as in `Sizes`.

    once: whether nothing is counted for which the step has to be made again.
    """

    name: str
    batch: Callable[[Oracle, int], list[Tracked]]
    n: int = 16
    layers: int = 6
    block_size: int = 8
    gates: tuple[int, int | None] = (NEVER_FULL, None)
    once: bool = False

    def __str__(self) -> str:
        return f"a step of {counted(self.n, 'session')} {self.name}"

    @property
    def with_kernels(self) -> bool:
        """Whether gates may let kernels in."""
        return self.gates[0] < NEVER_FULL

    @property
    def can_be_halved(self) -> bool:
        """Whether half as many sessions differ in nothing else."""
        return self.n >= 7 and not self.with_kernels

    def sizes(self, device: str) -> Sizes:
        return replace(SIZES, layers=self.layers, block_size=self.block_size, gates=self.gates, device=device)


def gated(
    name: str, batch: Callable[[Oracle, int], list[Tracked]], any_rows: int, whole_batches: int | None, *, n: int = 4
) -> Situation:
    """A situation in which gates let kernels in: one for any rows and one for whole batches, as in `Sizes`.

    It is small, because Triton's interpreter is slow.
    """
    return Situation(name, batch, n, layers=2, gates=(any_rows, whole_batches))


# -- lengths, for blocks of 8 slots -----------------------------------------------------------------------------------


def first_blocks(n: int) -> list[int]:
    return [2 + i % 6 for i in range(n)]


def any_blocks(n: int) -> list[int]:
    return [2 + i % 6 + 8 * (i % 4) for i in range(n)]


def half_full(n: int) -> list[int]:
    return [8 - i % 2 + 8 * (i % 3) for i in range(n)]


def always(length: int) -> Lengths:
    return lambda n: [length] * n


def same_slot(slot: int) -> Lengths:
    """Lengths at which the next token has this slot, in first, second and third blocks."""
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


# -- situations in which several lessons count ------------------------------------------------------------------------

INSIDE = Situation("inside their blocks", of(any_blocks))
SIMPLE = (
    INSIDE,
    Situation("inside their first blocks", of(first_blocks)),
    Situation("inside their blocks, 2 of which are shared", of(any_blocks, forks=2)),
    Situation("inside their blocks, behind a full one that all share", with_a_shared_beginning, layers=3),
    Situation("inside their blocks, copies that were made in the step before", after_copies, layers=3),
    Situation("inside their blocks, others than in the step before", others_than_before, n=7, layers=3),
    Situation("inside their blocks, after 49 steps", after_many_steps, n=2, layers=2),
    Situation("inside their blocks", of(any_blocks), n=5, layers=3),
    Situation("inside its block", of(any_blocks), n=1, layers=3),
    Situation("inside their blocks of 16 slots", of(any_blocks), n=9, layers=3, block_size=16),
)
SOME_FULL = Situation("of whose last blocks half are full", of(half_full))
FULL = (
    Situation("whose last blocks are full", of(always(8))),
    Situation("whose last blocks are full, 2 of them shared", of(always(16), forks=2)),
    SOME_FULL,
    Situation("whose last blocks are full, first, second and third ones", of(same_slot(8)), layers=3),
    Situation("without any block yet", without_blocks, n=7, layers=3),
    Situation("whose last blocks are full, but for 2 that share one", copies_and_full, n=9, layers=3),
    Situation("whose last blocks are full", of(always(8)), n=3, layers=3),
    Situation("whose last block is full", of(always(24)), n=1, layers=3),
    Situation("with blocks of one slot", of(first_blocks), n=7, layers=3, block_size=1),
)
