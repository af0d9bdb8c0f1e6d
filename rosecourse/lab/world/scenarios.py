"""The stories that a part has to live through: each with a name in plain words, over a pool of its own.

The same stories serve all kinds of parts: the oracle of a kind knows what a step of it is.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch

from . import edge_stories as edges
from .far_offsets import far_offsets
from .oracle import Oracle
from .pool import NEVER_FULL, Sizes

SMALL = Sizes()
Driver = TypeVar("Driver", bound=Oracle, contravariant=True)  # a story for any oracle is one for each kind too


@dataclass(frozen=True)
class Scenario(Generic[Driver]):
    """story(oracle) lets sessions start, fork, step and go; the oracle raises `PartIsWrong` when something is wrong."""

    name: str
    story: Callable[[Driver], None]
    sizes: Sizes = SMALL

    def with_gates(self, gates: tuple[int, int | None]) -> Scenario[Driver]:
        """The same, with kernels from other batches on; as in `Sizes`."""
        return replace(self, sizes=replace(self.sizes, gates=gates))


# -- lengths ----------------------------------------------------------------------------------------------------------


def alone(oracle: Oracle) -> None:
    one = oracle.start(1)
    for _ in range(2 * oracle.sizes.block_size + 1):
        oracle.step(one)


def from_nothing(oracle: Oracle) -> None:
    first, second = oracle.start(0), oracle.start(0)
    oracle.step(first)
    for _ in range(oracle.sizes.block_size + 1):
        oracle.step(first, second)


def around_a_boundary(oracle: Oracle) -> None:
    size = oracle.sizes.block_size
    batch = [oracle.start(n) for n in (size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1) if n]
    for _ in range(size + 1):
        oracle.step(*batch)


def in_step(oracle: Oracle) -> None:
    batch = [oracle.start(oracle.sizes.block_size - 1) for _ in range(4)]
    for _ in range(oracle.sizes.block_size + 2):
        oracle.step(*batch)


def same_slot_of_other_blocks(oracle: Oracle) -> None:
    size = oracle.sizes.block_size
    batch = [oracle.start(n) for n in (1, size + 1, 2 * size + 1)]
    for _ in range(size):
        oracle.step(*batch)


def to_the_last_position(oracle: Oracle) -> None:
    batch = [oracle.start(oracle.sizes.max_seq_len - n) for n in (2, 3)]
    oracle.step(*batch)
    oracle.step(*batch)


# -- batches ----------------------------------------------------------------------------------------------------------


def some_of_the_sessions(oracle: Oracle) -> None:
    """Also of other sizes than before, and in another order."""
    a, b, c, d = (oracle.start(n) for n in (3, 5, 8, 2))
    for batch in ((d, b), (a, b, c, d), (c,), (b, a, d, c), (c, a), (d, c, b, a)):
        oracle.step(*batch)


def another_order_in_step(oracle: Oracle) -> None:
    a, b, c = (oracle.start(2) for _ in range(3))
    for batch in ((c, a, b), (b, c, a), (a, b, c), (c, b, a)):
        oracle.step(*batch)


def another_in_the_middle(oracle: Oracle) -> None:
    """The ends of the batch stay, and so does its length."""
    a, b, c, d, e = (oracle.start(1) for _ in range(5))
    for batch in ((a, b, c), (a, d, c), (a, b, c, d), (a, c, b, d), (a, e, b, d), (a, b, e, d)):
        oracle.step(*batch)


def one_at_another_slot(oracle: Oracle) -> None:
    """Seven at the same slot and one at the next, which has every place of the batch in turn."""
    batch = [oracle.start(n) for n in (6, *[5] * 7)]
    for _ in batch:
        oracle.step(*batch)
        batch = [*batch[1:], batch[0]]


def slots_with_the_same_mean(oracle: Oracle) -> None:
    """The first has the mean of all; or the ends and the middle are the same, and those between them differ."""
    for lengths in ((2, 1, 3), (2, 2, 2, 2, 1, 2), (1, 2, 1, 0, 1), (2, 3, 1, 2)):
        oracle.step(*(oracle.start(4 + n) for n in lengths))


def blocks_like_a_run(oracle: Oracle) -> None:
    """New blocks whose ends, sum or differences are those of a run, and which are none; then such a run."""
    size = oracle.sizes.block_size
    for blocks in ((5, 7, 6, 8), (8, 6, 7, 5), (5, 6, 8, 9), (5, 7, 9, 11), (9, 5, 6, 7), (4, 6, 9, 7), (5, 6, 7, 8)):
        oracle.next_blocks(20, 22, 24, 26)
        batch = [oracle.start(size) for _ in blocks]
        oracle.next_blocks(*blocks)
        oracle.step(*batch)
        oracle.step(*batch)
        for t in batch:
            oracle.free(t)


# -- forks ------------------------------------------------------------------------------------------------------------


def fork_in_a_block(oracle: Oracle) -> None:
    a, b = oracle.start(6), oracle.start(2)
    child = oracle.fork(a)
    for _ in range(4):
        oracle.step(a, child, b)


def fork_amid_others(oracle: Oracle) -> None:
    """Those that are not simple stand between those that are, all at the same slot."""
    a, b, c = (oracle.start(n) for n in (2, 6, 2))
    child = oracle.fork(b)
    oracle.step(a, child, c, b)
    oracle.step(b, c, child, a)


def only_the_child(oracle: Oracle) -> None:
    a, b = oracle.start(5), oracle.start(7)
    child = oracle.fork(a)
    oracle.step(child, b)
    oracle.step(a, b)
    oracle.step(a, child, b)


def only_the_parent(oracle: Oracle) -> None:
    a = oracle.start(6)
    child = oracle.fork(a)
    oracle.step(a)
    oracle.step(a)
    oracle.step(child)


def three_siblings(oracle: Oracle) -> None:
    a = oracle.start(5)
    b, c = oracle.fork(a), oracle.fork(a)
    oracle.step(c, a)
    d = oracle.fork(b)
    for _ in range(4):
        oracle.step(a, b, c, d)


def two_families(oracle: Oracle) -> None:
    """Shared blocks that are filled to different lengths, written in one step."""
    a, b = oracle.start(5), oracle.start(7)
    children = oracle.fork(a), oracle.fork(b), oracle.fork(b)
    oracle.step(a, *children, b)
    oracle.step(b, *reversed(children), a)


def parent_goes_first(oracle: Oracle) -> None:
    a, other = oracle.start(6), oracle.start(3)
    child = oracle.fork(a)
    oracle.free(a)
    for _ in range(3):
        oracle.step(child, other)


def fork_at_a_full_block(oracle: Oracle) -> None:
    a, b = oracle.start(oracle.sizes.block_size), oracle.start(2)
    child = oracle.fork(a)
    for _ in range(3):
        oracle.step(a, b, child)


def only_one_at_a_full_block(oracle: Oracle) -> None:
    a = oracle.start(2 * oracle.sizes.block_size)
    child = oracle.fork(a)
    oracle.step(child)
    oracle.step(child)
    oracle.step(a, child)


# -- the pool ---------------------------------------------------------------------------------------------------------


def exactly_the_blocks(oracle: Oracle) -> None:
    """The pool has 8 blocks: after one step all are taken, after it nothing more is needed for a while."""
    a, b, d = oracle.start(3), oracle.start(4), oracle.start(6)
    c, e, f = oracle.fork(b), oracle.fork(d), oracle.fork(d)
    oracle.step(a, b, c, d, e, f)
    oracle.step(f, e, d, c, b)


def freed_blocks(oracle: Oracle) -> None:
    """Old numbers lie in the blocks that a session gets."""
    kept = oracle.start(3)
    for length in (9, 4, 7, 8):
        guest = oracle.start(length)
        oracle.step(guest, kept)
        oracle.step(kept, guest)
        oracle.free(guest)


def no_block_left(oracle: Oracle) -> None:
    """3 blocks: two sessions hold them, and one more is needed."""
    a, b = oracle.start(3), oracle.start(8)
    oracle.step(a)
    oracle.step_without_blocks(a, b)


# -- several engines, chance ------------------------------------------------------------------------------------------


def two_engines(oracle: Oracle) -> None:
    other = oracle.twin()
    batches = [(world, [world.start(n) for n in (3, 6)]) for world in (oracle, other)]
    for _ in range(4):
        for world, batch in batches:
            world.step(*batch)


def chance(oracle: Oracle) -> None:
    """What nobody thought of: starts, forks, ends and steps of any batch, in an order that the seed decides."""
    dice = random.Random(oracle.sizes.seed)
    for _ in range(3):
        oracle.start(dice.randint(0, 9))
    for _ in range(14):
        action = dice.choice(["start", "fork", "end", "step", "step", "step", "step"])
        some = dice.sample(oracle.sessions, dice.randint(1, len(oracle.sessions)))
        if action == "start" and oracle.started < 12:
            oracle.start(dice.randint(1, 9))
        elif action == "fork" and oracle.started < 12:
            oracle.fork(some[0])
        elif action == "end" and len(oracle.sessions) > 2:
            oracle.free(some[0])
        else:
            oracle.step(*some)


# -- the list ---------------------------------------------------------------------------------------------------------

COMMON: tuple[Scenario[Any], ...] = (
    Scenario("one session alone, through two block boundaries", alone),
    Scenario("sessions without any block yet", from_nothing),
    Scenario("lengths around a block boundary: some roll over in a step, others do not", around_a_boundary),
    Scenario("sessions of equal length, through a block boundary together", in_step),
    Scenario("the same slot in first, second and third blocks", same_slot_of_other_blocks),
    Scenario("up to the last position that a session may have", to_the_last_position),
    Scenario("a batch of some of the sessions, in another order each time", some_of_the_sessions),
    Scenario("sessions of equal length, in another order each time", another_order_in_step),
    Scenario("another session in the middle of the batch, its ends the same", another_in_the_middle),
    Scenario("one session at another slot than all others, in every place", one_at_another_slot),
    Scenario("slots of which the first is the mean", slots_with_the_same_mean),
    Scenario("a fork in the middle of a block, parent and child in one batch", fork_in_a_block),
    Scenario("a fork in the middle of a block, others around it in the batch", fork_amid_others),
    Scenario("a fork in the middle of a block, first the child alone", only_the_child),
    Scenario("a fork in the middle of a block, first the parent alone", only_the_parent),
    Scenario("three siblings in the middle of a block", three_siblings),
    Scenario("a fork whose parent goes first", parent_goes_first),
    Scenario("a fork exactly at a full block", fork_at_a_full_block),
    Scenario("a fork exactly at a full block, first the child alone", only_one_at_a_full_block),
    Scenario("a pool that has exactly the blocks that are needed", exactly_the_blocks, Sizes(num_blocks=8)),
    Scenario("blocks that others had before", freed_blocks, Sizes(num_blocks=6)),
    Scenario("blocks of one slot", some_of_the_sessions, Sizes(block_size=1, max_seq_len=16, seed=1)),
    Scenario("blocks of 16 slots, 3 layers, 3 heads", around_a_boundary, Sizes(3, 3, 8, 16, 40, 64, seed=2)),
    Scenario("one layer, another session in the middle of the batch", another_in_the_middle, Sizes(layers=1)),
    Scenario("one layer, one head", fork_amid_others, Sizes(layers=1, heads=1, head_dim=2)),
    Scenario("a cache in float16", fork_in_a_block, Sizes(dtype=torch.float16)),
    Scenario("a cache in bfloat16", around_a_boundary, Sizes(heads=3, dtype=torch.bfloat16)),
    Scenario("two engines in turn", two_engines),
    Scenario("new blocks that look like a run of neighbours", blocks_like_a_run),
    Scenario("two families of forks, in the middle of blocks, at other slots", two_families),
    *(Scenario(f"traffic by chance, number {n}", chance, Sizes(seed=n, num_blocks=60)) for n in (3, 4, 5)),
)

# At the edges of the range of sizes: what is right for small ones may be wrong there.
LARGE: tuple[Scenario[Any], ...] = (
    Scenario("blocks of 64 slots, the default", edges.slots_at_edges, Sizes(1, 2, 4, 64, 40, 300)),
    Scenario("blocks of 128 slots", edges.slots_at_edges, Sizes(1, 1, 2, 128, 40, 400)),
    Scenario("slots that differ in one bit alone", edges.slots_apart, Sizes(1, 1, 2, 256, 12, 300)),
    Scenario("blocks of 32 slots, 5 heads of 3", edges.slots_at_edges, Sizes(2, 5, 3, 32, 80, 300)),
    Scenario("rows of GPT-2: 12 layers, 12 heads of 64", edges.wide_rows, Sizes(12, 12, 64, 8, 10)),
    Scenario("rows of the largest GPT-2: 25 heads of 64", edges.wide_rows, Sizes(1, 25, 64, 8, 10)),
    Scenario("rows of 3 heads of 80, in bfloat16", edges.wide_rows, Sizes(1, 3, 80, 8, 10, dtype=torch.bfloat16)),
    Scenario("rows of 1 head of 128", edges.wide_rows, Sizes(2, 1, 128, 16, 10)),
    Scenario("128 sessions in a batch", edges.full_batch, Sizes(1, 1, 2, 4, 420, 32, 128)),
    Scenario(
        "128 sessions of equal length, with blocks of one slot", edges.equal_batch, Sizes(1, 2, 2, 1, 520, 8, 128)
    ),
    Scenario("100 sessions of equal length", edges.equal_batch, Sizes(1, 3, 2, 2, 300, 8, 100)),
    Scenario("a pool of 700 blocks", edges.far_blocks, Sizes(2, 1, 2, 2, 700, 16)),
    Scenario("a pool of 70,000 blocks", edges.far_blocks, Sizes(1, 1, 2, 2, 70_000, 16)),
    Scenario("blocks whose numbers end in the same bits", edges.low_bits_alike, Sizes(1, 1, 2, 4, 70_000, 16)),
)
LONG: tuple[Scenario[Any], ...] = (
    Scenario("a life of 270 tokens", edges.long_life, Sizes(1, 1, 2, 8, 120, 270)),
    Scenario("160 steps of traffic by chance", edges.churn, Sizes(num_blocks=30, seed=11)),
    Scenario("160 steps of traffic by chance, with blocks of 2 slots", edges.churn, Sizes(1, 2, 2, 2, 24, 12, seed=12)),
)
INTERRUPTED = Scenario("an interrupt (Ctrl-C) in the middle of a step", edges.interrupted, Sizes(1, 1, 2, 4, 10, 8))
NO_ROOM: tuple[Scenario[Any], ...] = (
    Scenario("a pool that has no block left", no_block_left, Sizes(num_blocks=3)),
    Scenario("a pool that has one block less than a step needs", edges.one_block_less, Sizes(num_blocks=12)),
)
EVERYWHERE: tuple[Scenario[Any], ...] = (*COMMON, *LARGE, *LONG, INTERRUPTED)
APPEND: tuple[Scenario[Any], ...] = (*EVERYWHERE, *NO_ROOM)

# Where Triton's kernels can be launched they are let in by turns: always, never, or for some batches. For the largest
# sizes they always are, and in the longest life, which the interpreter makes slow, for whole batches alone. There is
# one traffic by chance, for the same reason.
GATES = ((1, None), (2, 3), (NEVER_FULL, 2))
NARROW, WIDE = Sizes(1, 3, 8, num_blocks=12, gates=(1, None)), Sizes(1, 5, 32, num_blocks=12, gates=(1, None))
APPEND_WITH_KERNELS: tuple[Scenario[Any], ...] = (
    *(s.with_gates(GATES[n % 3]) for n, s in enumerate((*COMMON, *NO_ROOM))),
    *(s.with_gates(GATES[0]) for s in (*LARGE, INTERRUPTED)),
    LONG[0].with_gates(GATES[2]),
    LONG[-1].with_gates(GATES[1]),
    Scenario("rows of 3 heads of 8, no power of two, in every block of the pool", in_step, NARROW),
    Scenario("rows of 5 heads of 32", in_step, WIDE),
    Scenario("a cache of more than 2^31 numbers", far_offsets, Sizes(num_blocks=1)),
)
