"""The stories of block tables alone: a row that was kept, and whose list has become another one."""

from __future__ import annotations

from collections.abc import Callable

from .pool import Tracked
from .scenarios import EVERYWHERE, Scenario
from .table_oracle import TableOracle


def asked_twice(oracle: TableOracle) -> None:
    a, b = oracle.start(6), oracle.start(9)
    for _ in range(2):
        oracle.look(a, b)
        oracle.look(b)
    oracle.step(a, b)
    oracle.look(b, a)


def computed_again(oracle: TableOracle) -> None:
    """A session comes back on other blocks, as many as before; the last is the same: [5, 7] becomes [6, 7]."""
    a, other = oracle.start(6), oracle.start(2)
    oracle.step(a, other)
    oracle.free(a)  # its first block will be the next one that is taken, then its second
    third = oracle.start(1)
    oracle.free(other)
    oracle.compute_again(a)
    oracle.step(third, a)


def grown_and_shrunk(oracle: TableOracle) -> None:
    """A long session is computed again as the short one that it was, and grows over other blocks."""
    a = oracle.start(15)
    oracle.look(a)
    oracle.free(a)
    a.dense = a.dense[:, :, :3]
    a.session.num_cached_tokens = 3
    oracle.start(6)
    oracle.compute_again(a)
    for _ in range(6):
        oracle.step(a)


def another_in_its_place(oracle: TableOracle) -> None:
    """A session goes, and the next has as many blocks, ends in the same one, and lies at the same place in memory,
    with its table and its lists."""
    a, guard, third = oracle.start(6), oracle.start(2), oracle.start(4)
    oracle.look(a, guard)
    another = oracle.free_and_reuse(a)
    oracle.step(third)  # takes what was the first block of A
    oracle.free(guard)
    oracle.look(oracle.start_in(another, 6), third)


def tables_of_two_engines(oracle: TableOracle) -> None:
    other = oracle.twin()
    mine, theirs = oracle.start(6), other.start(9)
    tables = oracle.look(mine)
    other.look(theirs)
    oracle.look_again(tables, mine)


# -- lists that look alike --------------------------------------------------------------------------------------------

# The blocks that a session holds, and those on which it, or whoever has its place, goes on.
ALIKE = {
    "the last the same": ((5, 7), (6, 7)),
    "the first the same": ((5, 7), (5, 8)),
    "the ends the same": ((5, 6, 7), (5, 4, 7)),
    "the ends the same, and the others in another order": ((5, 6, 8, 7), (5, 8, 6, 7)),
    "the last the same, and the others in another order": ((5, 6, 7), (6, 5, 7)),
    "the same the other way round": ((5, 7), (7, 5)),
    "with the same sum": ((5, 7), (4, 8)),
    "with the same sum and the last the same": ((5, 6, 7), (3, 8, 7)),
    "one more": ((5, 7), (6, 8, 9)),
    "one less": ((5, 6, 7), (8, 7)),
}


def preempted(oracle: TableOracle) -> None:
    """S and O step; S goes, a newcomer takes its first block, O goes, S comes back: [0, 1] has become [2, 1]."""
    s, other = oracle.start(6), oracle.start(2)
    oracle.step(s, other)
    newcomer = _comes_back(oracle, s, other)
    for _ in range(6):
        oracle.step(s, newcomer)


def preempted_second(oracle: TableOracle) -> None:
    s, other = oracle.start(6), oracle.start(2)
    oracle.step(other, s)
    newcomer = _comes_back(oracle, s, other)
    for _ in range(3):
        oracle.step(newcomer, s)


def preempted_alone(oracle: TableOracle) -> None:
    """No other session is ever in a batch: to the part it looks as if nothing had happened."""
    s, other = oracle.start(6), oracle.start(2)
    oracle.step(s)
    _comes_back(oracle, s, other)
    for _ in range(4):
        oracle.step(s)


def _comes_back(oracle: TableOracle, s: Tracked, other: Tracked) -> Tracked:
    oracle.free(s)
    newcomer = oracle.start(3)
    oracle.free(other)
    oracle.compute_again(s)
    return newcomer


def same_session(before: int, behind: int) -> Callable[[TableOracle], None]:
    """A session is computed again on blocks that look like those it had, and is at the same place of the batch.

    before, behind: how many others are in it.
    """

    def story(oracle: TableOracle) -> None:
        for then, now in ALIKE.values():
            first, session, last = _around(oracle, before, then, behind)
            oracle.step(*first, session, *last)
            oracle.free(session)
            oracle.resize(session, 4 * len(now) - 1)
            oracle.next_blocks(*now)
            oracle.compute_again(session)
            oracle.step(*first, session, *last)
            for each in (*first, session, *last):
                oracle.free(each)

    return story


def another_session(oracle: TableOracle) -> None:
    """Another session has its place in the batch, and as many tokens; its blocks look like the other's."""
    for then, now in ALIKE.values():
        _, session, behind = _around(oracle, 0, then, 1)
        oracle.look(session)
        oracle.look(session, *behind)
        oracle.free(session)
        oracle.next_blocks(*now)
        newcomer = oracle.start(4 * len(now) - 2)
        oracle.look(newcomer, *behind)
        oracle.free(newcomer)
        oracle.free(behind[0])


def another_session_alone(oracle: TableOracle) -> None:
    for then, now in ALIKE.values():
        for blocks in (then, now):
            oracle.next_blocks(*blocks)
            session = oracle.start(4 * len(blocks) - 2)
            oracle.look(session)
            oracle.free(session)


def _around(
    oracle: TableOracle, before: int, blocks: tuple[int, ...], behind: int
) -> tuple[list[Tracked], Tracked, list[Tracked]]:
    """A new session on `blocks`, and short ones to be before and behind it in a batch."""
    oracle.next_blocks(*blocks)
    session = oracle.start(4 * len(blocks) - 2)
    oracle.next_blocks(1)
    return [oracle.start(1) for _ in range(before)], session, [oracle.start(1) for _ in range(behind)]


STORIES: dict[str, Callable[[TableOracle], None]] = {
    "another session in the place of one that has gone": another_in_its_place,
    "tables asked for twice, nothing having changed": asked_twice,
    "a session computed again on other blocks, the last the same": computed_again,
    "a session computed again, shorter, and growing": grown_and_shrunk,
    "a session preempted, and back in its place of the batch": preempted,
    "a session preempted, and back in its place behind another": preempted_second,
    "a session preempted, and back, with nobody else in a batch": preempted_alone,
    "a session computed again on blocks like those that it had": same_session(0, 0),
    "a session computed again on blocks like those that it had, another behind it": same_session(0, 1),
    "a session computed again on blocks like those that it had, another before it": same_session(1, 0),
    "another session on blocks like those of the one before": another_session,
    "another session on blocks like those of the one before, each alone": another_session_alone,
    "tables of two engines at once": tables_of_two_engines,
}

# Their own stories come early: in others an old row shows by chance.
TABLES: tuple[Scenario[TableOracle], ...] = (
    EVERYWHERE[0],
    *(Scenario(name, story) for name, story in STORIES.items()),
    *EVERYWHERE[1:],
)
