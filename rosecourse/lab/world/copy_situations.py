"""Steps in which copies are counted: so many of them, from as many blocks or from a few that several sessions share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .oracle import Oracle
from .pool import Tracked
from .situations import Situation


@dataclass(frozen=True)
class Copying(Situation):
    """A step of n sessions, each of which gets a copy of a block that others own too."""

    @property
    def can_be_halved(self) -> bool:
        """Two copies are fewer than five, and one is a case that a part may treat in a way of its own."""
        return self.n >= 4


def children(families: int) -> Callable[[Oracle, int], list[Tracked]]:
    """The children of so many parents, or of as many as there are children; the parents wait."""

    def batch(oracle: Oracle, n: int) -> list[Tracked]:
        parents = [oracle.start(2 + i % 6 + 8 * (i % 2)) for i in range(min(n, families))]
        return [oracle.fork(parents[i % len(parents)]) for i in range(n)]

    return batch


def samples(oracle: Oracle, n: int) -> list[Tracked]:
    """Children of one parent that steps with them, so that one of all has the block to itself in the end."""
    parent = oracle.start(13)
    return [*(oracle.fork(parent) for _ in range(n)), parent]


OTHERS, SHARED = "that write into blocks of others", "that write into 2 blocks of others"
SIXTEEN = (Copying(OTHERS, children(99), layers=3), Copying(SHARED, children(2), layers=3))
FIVE = (Copying(OTHERS, children(99), n=5, layers=3), Copying(SHARED, children(2), n=5, layers=3))
SAMPLES = Copying("and their parent, which share its last block", samples, n=7, layers=3)
