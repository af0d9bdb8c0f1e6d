"""What a part that copies blocks has to live through: copies of its own kinds, and the stories of all parts."""

from __future__ import annotations

import random
from typing import Any

import torch

from . import edge_stories as edges
from .copy_oracle import CopyOracle
from .pool import Sizes
from .scenarios import COMMON, INTERRUPTED, LONG, Scenario

MANY = Sizes(num_blocks=80)


def families(oracle: CopyOracle) -> None:
    """Parents whose last blocks are filled to different lengths wait, and all children step: a copy for each."""
    size = oracle.sizes.block_size
    parents = [oracle.start(size + 1 + n % (size - 1)) for n in range(4)]
    for order in (1, -1):
        children = [oracle.fork(parent) for parent in parents][::order]
        oracle.step(*children)
        oracle.step(*parents[::order], *children)


def one_copy(oracle: CopyOracle) -> None:
    """A child steps and its parent waits, in each state of fill of a block."""
    for filled in range(1, oracle.sizes.block_size):
        parent = oracle.start(oracle.sizes.block_size + filled)
        child, other = oracle.fork(parent), oracle.start(2)
        oracle.step(other, child)
        oracle.step(parent, child, other)
        for t in (parent, child, other):
            oracle.free(t)


def sixteen_copies(oracle: CopyOracle) -> None:
    """A whole batch of copies from sixteen blocks; then one of fifteen from four, in an order of chance."""
    size, dice = oracle.sizes.block_size, random.Random(oracle.sizes.seed)
    parents = [oracle.start(1 + n % (size - 1)) for n in range(16)]
    children = [oracle.fork(parent) for parent in parents]
    oracle.step(*children)
    for t in (*parents[4:], *children):
        oracle.free(t)
    again = [oracle.fork(parents[n % 4]) for n in range(15)]
    dice.shuffle(again)
    oracle.step(*again)


def one_source_several_times(oracle: CopyOracle) -> None:
    """Samples of one prompt: all write into its last block at once, and one of them may keep it."""
    size = oracle.sizes.block_size
    for samples, parent_steps in ((3, True), (3, False), (6, True), (2, False)):
        parent, other = oracle.start(size + 2), oracle.start(3)
        children = [oracle.fork(parent) for _ in range(samples - 1)]
        guest = oracle.fork(other)
        oracle.step(*children[:1], guest, *children[1:], *([parent] if parent_steps else []))
        oracle.step(parent, *children, other, guest)
        for t in (parent, other, guest, *children):
            oracle.free(t)


def forks_of_forks(oracle: CopyOracle) -> None:
    """A child is forked before it has a block of its own, and once more behind its copy."""
    first = oracle.start(oracle.sizes.block_size + 1)
    second = oracle.fork(first)
    third = oracle.fork(second)
    oracle.step(third, first)
    fourth, fifth = oracle.fork(third), oracle.fork(first)
    oracle.step(fifth, second, fourth, third)
    sixth = oracle.fork(fourth)
    oracle.step(first, sixth, fifth, fourth, second, third)


def first_and_last_blocks(oracle: CopyOracle) -> None:
    """Block 0 and the last block of the pool, as sources and as destinations, near each other in the list or alone."""
    last = oracle.sizes.num_blocks - 1
    for blocks in ((0, last, 5, 6), (5, 6, 0, last), (last, 7, 6, 0), (6, 0, last, 7)):
        oracle.next_blocks(*blocks)
        parents = [oracle.start(2), oracle.start(3)]
        children = [oracle.fork(parent) for parent in parents]
        oracle.step(*children)
        for t in (*parents, *children):
            oracle.free(t)


def destinations_in_any_order(oracle: CopyOracle) -> None:
    """Runs of neighbours, upwards and downwards, and numbers without an order, as sources and as destinations."""
    for sources, destinations in (
        ((3, 4, 5, 6), (10, 11, 12, 13)),
        ((6, 5, 4, 3), (10, 11, 12, 13)),
        ((3, 4, 5, 6), (13, 12, 11, 10)),
        ((20, 3, 11, 7), (8, 19, 2, 12)),
        ((8, 10, 12, 14), (9, 11, 13, 15)),
    ):
        oracle.next_blocks(*sources, *destinations)
        parents = [oracle.start(1 + n % (oracle.sizes.block_size - 1)) for n in range(4)]
        children = [oracle.fork(parent) for parent in parents]
        oracle.step(*children)
        for t in (*parents, *children):
            oracle.free(t)


def no_copies(oracle: CopyOracle) -> None:
    """Steps without a copy: before the first one, between two, and of nobody."""
    parent, other = oracle.start(2), oracle.start(5)
    oracle.step()
    oracle.step(parent, other)
    child = oracle.fork(parent)
    oracle.step(child, other)
    oracle.step(parent, child, other)
    oracle.step()
    oracle.step(child)


def lists_of_all_lengths(oracle: CopyOracle) -> None:
    """Few copies after many, and many after few: nothing may be left of the list before."""
    parents = [oracle.start(1 + n % (oracle.sizes.block_size - 1)) for n in range(6)]
    for number in (1, 2, 6, 3, 5, 1, 4):
        children = [oracle.fork(parent) for parent in parents[:number]]
        oracle.step(*children)
        for child in children:
            oracle.free(child)


OWN: tuple[Scenario[Any], ...] = (
    Scenario("four blocks that are filled to different lengths are copied together", families),
    Scenario("one copy, of a block that is filled to each length", one_copy),
    Scenario("one source with several destinations", one_source_several_times),
    Scenario("16 copies at once, then 15 from 4 sources", sixteen_copies, MANY),
    Scenario("forks of forks", forks_of_forks),
    Scenario("block 0 and the last block, as sources and as destinations", first_and_last_blocks),
    Scenario("sources and destinations in any order", destinations_in_any_order),
    Scenario("steps without a copy", no_copies),
    Scenario("longer and shorter lists by turns", lists_of_all_lengths),
    Scenario("one layer, four copies", families, Sizes(layers=1)),
    Scenario("5 layers, 3 heads of 8, blocks of 8 slots", families, Sizes(5, 3, 8, 8)),
    Scenario("12 layers, 1 head of 2, blocks of 2 slots", sixteen_copies, Sizes(12, 1, 2, 2, 80)),
    Scenario(
        "a cache in float16, one source with several destinations", one_source_several_times, Sizes(dtype=torch.float16)
    ),
    Scenario(
        "a cache in bfloat16, 16 copies at once", sixteen_copies, Sizes(heads=1, num_blocks=80, dtype=torch.bfloat16)
    ),
)
# Of the sizes at the edges those at which copies may differ: large blocks, long rows, many sessions, far blocks.
EDGES: tuple[Scenario[Any], ...] = (
    Scenario("blocks of 64 slots, the default", families, Sizes(2, 2, 4, 64, 40, 300)),
    Scenario("rows of GPT-2: 12 layers, 12 heads of 64", one_source_several_times, Sizes(12, 12, 64, 8, 24)),
    Scenario("128 sessions in a batch", edges.full_batch, Sizes(1, 1, 2, 4, 420, 32, 128)),
    Scenario("a pool of 70,000 blocks", edges.far_blocks, Sizes(1, 1, 2, 2, 70_000, 16)),
    Scenario("blocks whose numbers end in the same bits", edges.low_bits_alike, Sizes(1, 1, 2, 4, 70_000, 16)),
)
COPIES: tuple[Scenario[Any], ...] = (
    *OWN,
    *(s for s in COMMON if s.sizes.block_size > 1),
    *EDGES,
    *LONG[1:],
    INTERRUPTED,
)
