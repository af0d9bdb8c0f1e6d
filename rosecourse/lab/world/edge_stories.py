"""Stories at the edges of what an engine may be: large batches, large blocks, far blocks, long lives, no room.

They serve all kinds of parts, but for those of a pool that has too few blocks.
"""

from __future__ import annotations

import random

from .oracle import Oracle
from .pool import Tracked

EDGES = (63, 64, 127, 128, 255, 256, 511, 512, 32767, 32768, 65535, 65536)  # of numbers of 6 to 16 bits
HIGH_BITS = (1 << 4, 1 << 7, 1 << 8, 1 << 16)
LINES = 30  # of a part, at which interrupts come in a kind of step


def slots_at_edges(oracle: Oracle) -> None:
    """Sessions that come to slots with large numbers, and to block boundaries, in a few steps."""
    size, steps = oracle.sizes.block_size, 3
    lengths = {n - back for n in (16, 32, 64, 128, size, 2 * size, 256) for back in (1, 2)} | {1, size}
    batch = [oracle.start(n) for n in sorted(lengths) if n + steps <= oracle.sizes.max_seq_len]
    for _ in range(steps):
        oracle.step(*batch)
    oracle.step(*(oracle.start(size - 1) for _ in range(3)))


def slots_apart(oracle: Oracle) -> None:
    """Two sessions in a step whose slots differ in one bit alone."""
    for bit in range(oracle.sizes.block_size.bit_length() - 1):
        pair = oracle.start(1), oracle.start(1 + (1 << bit))
        if pair[1].length < oracle.sizes.block_size:
            oracle.step(*pair)
        for t in pair:
            oracle.free(t)


def wide_rows(oracle: Oracle) -> None:
    """Few sessions, for each number of them is one of very many: inside a block, at its end, with a child."""
    size = oracle.sizes.block_size
    a, b, c = oracle.start(1), oracle.start(size - 1), oracle.start(max(2, size // 2))
    oracle.step(a, b, c)
    child = oracle.fork(c)
    oracle.step(c, b, child, a)
    for t in (b, c, child):
        oracle.free(t)
    same = oracle.start(a.length)
    oracle.step(a, same)
    oracle.step(same, a)


def full_batch(oracle: Oracle) -> None:
    """As many sessions as the engine takes, then some of them, in other orders; forks are among them."""
    size, n = oracle.sizes.block_size, oracle.sizes.max_batch_size
    batch = [oracle.start(1 + 7 * i % (2 * size)) for i in range(n)]
    oracle.step(*batch)
    oracle.step(*batch[::-1])
    for part in (17, 33, n - 1):
        oracle.step(*batch[-part:])
    oracle.free(batch.pop())
    batch.insert(n // 2, oracle.fork(batch[3]))
    oracle.step(*batch)


def equal_batch(oracle: Oracle) -> None:
    """The same with sessions of equal length, which come to the end of their blocks together."""
    n = oracle.sizes.max_batch_size
    batch = [oracle.start(oracle.sizes.block_size - 1) for _ in range(n)]
    for _ in range(2):
        oracle.step(*batch)
    oracle.step(*batch[: n // 2])


def far_blocks(oracle: Oracle) -> None:
    """Sessions on blocks whose numbers do not fit into so many bits; then on the next ones, as they grow."""
    far = [index for index in EDGES if index < oracle.sizes.num_blocks]
    oracle.next_blocks(*far)
    batch = [oracle.start(1) for _ in far[::2]]
    for _ in range(oracle.sizes.block_size + 1):
        oracle.step(*batch)
    a = batch[-1]
    child = oracle.fork(a)
    oracle.next_blocks(oracle.sizes.num_blocks - 1)
    oracle.step(a, child)


def low_bits_alike(oracle: Oracle) -> None:
    """A session grows, and a shared block is replaced, by blocks whose numbers differ in one high bit alone.

    None of them is block 0, which a row also shows where it ends. In a small pool other blocks are
    taken, so that as much happens.
    """
    size, blocks = oracle.sizes.block_size, oracle.sizes.num_blocks
    for bit in (high if 3 + high < blocks else 16 + 4 * n for n, high in enumerate(HIGH_BITS)):
        oracle.next_blocks(2 + bit, 2)
        grows = oracle.start(size - 1)
        oracle.next_blocks(3, 2, 3 + bit)
        shared = oracle.start(1)
        for _ in range(2):
            oracle.step(grows, shared)
        child = oracle.fork(shared)
        for _ in range(2):
            oracle.step(grows, shared, child)
        for t in (grows, shared, child):
            oracle.free(t)


def long_life(oracle: Oracle) -> None:
    """Hundreds of steps, up to the last position; a guest comes and goes."""
    a, b = oracle.start(1), oracle.start(3)
    guest = oracle.start(2)
    for n in range(oracle.sizes.max_seq_len - 3):
        if n % 40 == 39:
            oracle.free(guest)
            guest = oracle.start(n % 5)
        oracle.step(*((b, a, guest) if n % 3 else (a, b)))


# -- chance -----------------------------------------------------------------------------------------------------------


def churn(oracle: Oracle) -> None:
    """Sessions start, fork, step, go, and come back on other blocks, or at the same place in memory, by a seed."""
    dice = random.Random(oracle.sizes.seed)
    while oracle.steps < 160:
        action = dice.choice(("start", "fork", "end", "again", "reuse", *["step"] * 6))
        if len(oracle.sessions) < 3:
            _start(oracle, dice)
        elif action != "step":
            CHANGES[action](oracle, dice)
        elif some := _some_that_fit(oracle, dice):
            oracle.step(*some)


def _some_that_fit(oracle: Oracle, dice: random.Random) -> list[Tracked]:
    """Sessions for the next step; those that are at their end go, and so do some when there are too few blocks."""
    for t in [t for t in oracle.sessions if t.length == oracle.sizes.max_seq_len]:
        oracle.free(t)
    some = dice.sample(oracle.sessions, dice.randint(0, len(oracle.sessions)))
    while some and not oracle.kv.can_append([t.table for t in some]):
        oracle.free(some.pop())
    return some


def _start(oracle: Oracle, dice: random.Random) -> None:
    length = dice.randint(0, 2 * oracle.sizes.block_size + 1)
    if len(oracle.sessions) < 12 and oracle.has_room(length):
        oracle.start(length)


def _fork(oracle: Oracle, dice: random.Random) -> None:
    if len(oracle.sessions) < 12:
        oracle.fork(dice.choice(oracle.sessions))


def _end(oracle: Oracle, dice: random.Random) -> None:
    oracle.free(dice.choice(oracle.sessions))


def _again(oracle: Oracle, dice: random.Random) -> None:
    """Back on other blocks, in another order, at once or after others."""
    t = dice.choice(oracle.sessions)
    if not oracle.has_room(t.length):
        return
    oracle.free(t)
    for free in oracle.layout.free_lists(oracle.kv):
        dice.shuffle(free)
    oracle.compute_again(t)


def _reuse(oracle: Oracle, dice: random.Random) -> None:
    """Another session at the place in memory of one that has gone, mostly with as many blocks."""
    t = dice.choice(oracle.sessions)
    length = dice.choice((t.length, t.length, 1))
    if not oracle.has_room(length):
        return
    session = oracle.free_and_reuse(t)
    dice.shuffle(oracle.layout.free_lists(oracle.kv)[0])
    oracle.start_in(session, length)


CHANGES = {"start": _start, "fork": _fork, "end": _end, "again": _again, "reuse": _reuse}


# -- too few blocks ---------------------------------------------------------------------------------------------------


def one_block_less(oracle: Oracle) -> None:
    """Steps for which one block is missing; then there is room again, and they are made after all."""
    size = oracle.sizes.block_size
    for lengths, forks in (((size, 1, size), 0), ((0, 0), 0), ((1, size - 1, 2), 2), ((size,), 0), ((0, 2, size), 1)):
        batch = [oracle.start(n) for n in lengths]
        batch += [oracle.fork(t) for t in batch[1 : 1 + forks]]
        waiting = oracle.fork(batch[0])
        short = oracle.kv.num_available() - oracle.layout.blocks_to_append(oracle.kv, [t.table for t in batch]) + 1
        guest = oracle.start(short * size)
        oracle.step_without_blocks(*batch)
        oracle.free(guest)
        for t in batch:
            oracle.compute_again(t)
        for _ in range(2):
            oracle.step(*batch, waiting)
        for t in (*batch, waiting):
            oracle.free(t)


# -- interrupts -------------------------------------------------------------------------------------------------------


def interrupted(oracle: Oracle) -> None:
    """An interrupt before each of the part's lines, at the first time that a step comes to it."""
    for begin in (_of_all_kinds, _of_one_kind):
        world = oracle.twin()
        lines = world.interrupt(*begin(world)).firsts()
        for at in lines[:: 1 + len(lines) // LINES]:
            world = oracle.twin()
            world.interrupt(*begin(world), at=at)
            oracle.steps += 1


def _of_one_kind(oracle: Oracle) -> list[Tracked]:
    """A whole batch at one slot, which a part may write in a way of its own."""
    return [oracle.start(1) for _ in range(4)]


def _of_all_kinds(oracle: Oracle) -> list[Tracked]:
    """Inside a block, without one, at the end of one, and two that share one; two of them have made a step."""
    size = oracle.sizes.block_size
    a, b, c, d = (oracle.start(n) for n in (1, 0, size, size + 1))
    oracle.step(a, d)
    return [a, b, c, d, oracle.fork(a)]
