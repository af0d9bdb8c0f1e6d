"""What a part that appends by the block table has to live through: the stories of all appends, and some of its own."""

from __future__ import annotations

from typing import Any

from .by_table_oracle import ByTableOracle
from .far_offsets import far_offsets
from .pool import NEVER_FULL, Sizes
from .scenarios import COMMON, EVERYWHERE, GATES, INTERRUPTED, LARGE, LONG, NARROW, WIDE, Scenario, in_step


def first_and_last_positions(oracle: ByTableOracle) -> None:
    """In one step the first position of a session, both ends of a block, and the last that a session may have."""
    size, most = oracle.sizes.block_size, oracle.sizes.max_seq_len
    for lengths in ((0, size - 1, size, most - 1), (most - 1, 0, size, size - 1), (size, most - 1, most - 2, 0)):
        batch = [oracle.start(n) for n in lengths]
        oracle.step(*batch)
        for t in batch:
            oracle.free(t)


def ends_in_block_zero(oracle: ByTableOracle) -> None:
    """Tables whose last entry is 0, or whose first is; a row is padded with 0, too."""
    size = oracle.sizes.block_size
    for blocks in ((7, 0, 5), (0, 7, 5), (5, 7, 0)):
        oracle.next_blocks(*blocks)
        a, b = oracle.start(size), oracle.start(1)
        oracle.step(a, b)
        oracle.step(b, a)
        for t in (a, b):
            oracle.free(t)


def forks_of_full_blocks(oracle: ByTableOracle) -> None:
    """Shared blocks, full and not: who steps first gets a new block or a copy, and both are in the table by then."""
    size = oracle.sizes.block_size
    a, b = oracle.start(2 * size), oracle.start(size + 2)
    children = [oracle.fork(t) for t in (a, b, b, a)]
    oracle.step(children[1], a, children[0])
    for _ in range(size + 1):
        oracle.step(*children, b, a)


def broken_off(oracle: ByTableOracle) -> None:
    """Steps that are begun and broken off in the forward; then they are made again, or others first."""
    a, b, c = (oracle.start(n) for n in (3, 4, 6))
    for begun, made in (((a, b), (a, b)), ((a, b, c), (c, a)), ((c,), (b, a)), ((b, a), (a, b, c))):
        oracle.break_off(begun)
        oracle.step(*made)


OWN: tuple[Scenario[Any], ...] = (
    Scenario("first and last positions of blocks and of sessions in one step", first_and_last_positions),
    Scenario("tables that end in block 0, or begin with it", ends_in_block_zero),
    Scenario("forks at a full block and behind it", forks_of_full_blocks),
    Scenario("a step that is broken off in the forward, and made again", broken_off),
)
BY_TABLE: tuple[Scenario[Any], ...] = (*OWN, *EVERYWHERE)
BY_TABLE_WITH_KERNELS: tuple[Scenario[Any], ...] = (
    *(s.with_gates(GATES[0] if n % 2 else (NEVER_FULL, None)) for n, s in enumerate((*OWN, *COMMON))),
    *(s.with_gates(GATES[0]) for s in (*LARGE, INTERRUPTED, LONG[-1])),
    Scenario("rows of 3 heads of 8, no power of two, in every block of the pool", in_step, NARROW),
    Scenario("rows of 5 heads of 32", in_step, WIDE),
    Scenario("a cache of more than 2^31 numbers", far_offsets, Sizes(num_blocks=1)),
)
