"""What rows that stay have to live through: the stories of all parts, and those in which somebody else is in a row."""

from __future__ import annotations

from collections.abc import Callable

from .pool import Sizes, Tracked
from .rows_oracle import RowsOracle
from .scenarios import EVERYWHERE, Scenario
from .table_scenarios import ALIKE

LINES = 25  # of a plan, at which interrupts come


def leave_at_the_end(oracle: RowsOracle) -> None:
    batch = [oracle.start(n) for n in (1, 6, 9, 2, 5)]
    for n in (5, 4, 4, 2, 1):
        oracle.step(*batch[:n])


def leave_in_the_middle(oracle: RowsOracle) -> None:
    a, b, c, d, e = (oracle.start(n) for n in (1, 6, 9, 2, 5))
    for batch in ((a, b, c, d, e), (a, c, d, e), (a, c, e), (c, e), (e,)):
        oracle.step(*batch)
        oracle.step(*batch)


def join(oracle: RowsOracle) -> None:
    """At the end, in front, and in the middle."""
    a, b, c, d, e = (oracle.start(n) for n in (6, 1, 9, 3, 4))
    for batch in ((a,), (a, b), (c, a, b), (c, a, d, b), (e, c, a, d, b)):
        oracle.step(*batch)


def change_places(oracle: RowsOracle) -> None:
    """Two swap; three go round in a circle; all are turned round."""
    a, b, c, d = (oracle.start(n) for n in (6, 1, 9, 3))
    for batch in ((a, b, c, d), (b, a, c, d), (b, c, d, a), (c, d, b, a), (a, b, d, c), (c, d, b, a)):
        oracle.step(*batch)


def away_for_a_step(oracle: RowsOracle) -> None:
    a, b, c = (oracle.start(n) for n in (6, 1, 3))
    for batch in ((a, b, c), (a, c), (a, b, c), (b,), (b, a), (c, b, a)):
        oracle.step(*batch)


def join_as_others_leave(oracle: RowsOracle) -> None:
    """In the same step: newcomers are put where others were, while those behind move up."""
    a, b, c = (oracle.start(n) for n in (6, 1, 9))
    oracle.step(a, b, c)
    oracle.free(a)
    d = oracle.start(3)
    oracle.step(b, c, d)
    oracle.free(c)
    e = oracle.start(5)
    oracle.step(e, d, b)
    oracle.free(d)
    f, g = oracle.start(2), oracle.start(7)
    oracle.step(f, b, g, e)


def freed_between_two_steps(oracle: RowsOracle) -> None:
    """A session is freed and prefilled again, and is in its place in the next step as if nothing had happened.

    Its old tables live on, so that no new one has the address of one of them.
    """
    a, b = oracle.start(6), oracle.start(2)
    oracle.step(a, b)
    old = []
    for t in (a, b, a):
        old.append(t.table)
        oracle.free(t)
        guest = oracle.start(1)
        oracle.compute_again(t)
        oracle.look_at_strangers(a, b)
        oracle.step(a, b)
        oracle.free(guest)


def another_on_the_same_blocks(oracle: RowsOracle) -> None:
    """A session goes, and another is in its place on equal blocks, with another number of tokens."""
    a, b = oracle.start(7), oracle.start(2)
    oracle.step(a, b)
    old = a.table  # it lives on
    blocks = list(old)
    oracle.free(a)
    oracle.next_blocks(*blocks)
    oracle.step(oracle.start(5), b)


def computed_on_the_same_blocks(oracle: RowsOracle) -> None:
    """Freed and prefilled again on equal blocks, with another number of tokens, and another last one."""
    a, b = oracle.start(7), oracle.start(2)
    oracle.step(a, b)
    blocks = list(a.table)
    oracle.free(a)
    oracle.resize(a, 5)
    oracle.next_blocks(*blocks)
    oracle.compute_again(a)
    oracle.look_at_strangers(a, b)
    oracle.step(a, b)


def preempted_and_back(oracle: RowsOracle) -> None:
    """Away for two steps; its row is another's by then, and its blocks are others."""
    a, b, c = (oracle.start(n) for n in (6, 2, 9))
    oracle.step(a, b, c)
    oracle.free(a)
    oracle.step(b, c)
    guest = oracle.start(1)
    oracle.step(guest, c, b)
    oracle.compute_again(a)
    oracle.step(guest, c, b, a)
    oracle.step(a, b, c)


def same_session_on(alike: tuple[tuple[int, ...], tuple[int, ...]], n: int) -> Callable[[RowsOracle], None]:
    """A session comes back, in its place, on blocks that look like those that it had. n: who stand before it."""

    def story(oracle: RowsOracle) -> None:
        then, now = alike
        oracle.next_blocks(*then)
        t = oracle.start(4 * len(then) - 2)
        oracle.next_blocks(1)
        others = [oracle.start(1) for _ in range(n)]
        oracle.step(*others, t)
        oracle.free(t)
        oracle.resize(t, 4 * len(now) - 1)
        oracle.next_blocks(*now)
        oracle.compute_again(t)
        oracle.step(*others, t)

    return story


def another_at_its_address(oracle: RowsOracle) -> None:
    """A session goes, and the next one and its table lie at the same places in memory, on other blocks or on equal
    ones."""
    for take in (True, False):
        a, b = oracle.start(6), oracle.start(2)
        oracle.step(a, b)
        another = oracle.free_and_reuse(a)
        guest = oracle.start(2) if take else None
        tracked = oracle.start_in(another, 6)
        oracle.step(tracked, b)
        for t in filter(None, (guest, tracked, b)):
            oracle.free(t)


def forks_and_copies(oracle: RowsOracle) -> None:
    """Copy-on-write replaces the last block of a row, and its length stays; other rows move in the same step."""
    a, b = oracle.start(5), oracle.start(2)
    oracle.step(b, a)
    child = oracle.fork(a)
    oracle.step(b, a)
    oracle.step(b, a, child)
    second, third = oracle.fork(child), oracle.fork(a)
    oracle.step(second, a, child, third)
    oracle.step(child, third, a, second, b)


def new_blocks(oracle: RowsOracle) -> None:
    """Rows that grow by a block each step, one, some or all of them."""
    size = oracle.sizes.block_size
    batch = [oracle.start(n) for n in (size - 1, size, size, 2 * size - 1, 1)]
    for _ in range(2 * size + 1):
        oracle.step(*batch)
    for _ in range(size + 1):
        oracle.step(*batch[1::2])
    oracle.step(*batch)


def words_put_in_by_hand(oracle: RowsOracle) -> None:
    """A user replaces the last token of one, of all; then the host chooses for a while."""
    a, b, c = (oracle.start(n) for n in (6, 1, 3))
    oracle.step(a, b, c)
    for changed in ((b,), (a, b, c), (c, a)):
        for t in changed:
            oracle.say(t)
        oracle.step(a, b, c)
    for host in (True, True, False, True, False):
        oracle.step(a, b, c, host=host)
    oracle.say(c)
    oracle.step(c, a, b, host=True)


def failed_forwards(oracle: RowsOracle) -> None:
    """Steps that fail, before the rows were advanced or after it; the next is the same one, or another."""
    a, b, c = (oracle.start(n) for n in (3, 4, 6))
    oracle.step(a, b, c)
    for advanced in (False, True):
        for begun, made in (((a, b, c), (a, b, c)), ((a, b), (a, b, c)), ((c, a), (b, a)), ((b,), (b,))):
            oracle.break_off(begun, advanced=advanced)
            oracle.look_at_strangers(*begun)
            oracle.step(*made)
            oracle.step(*made)


def interrupted_plans(oracle: RowsOracle) -> None:
    """An interrupt before a line of a plan in which one joins, one leaves, two swap and one gets a block."""
    world = oracle.twin()
    lines = world.interrupt_plan(_all_kinds(world)).firsts()
    for at in lines[:: 1 + len(lines) // LINES]:
        world = oracle.twin()
        batch = _all_kinds(world)
        world.interrupt_plan(batch, at)
        world.step(*batch)
        world.step(*batch)
        oracle.steps += 2


def _all_kinds(oracle: RowsOracle) -> list[Tracked]:
    a, b, c, d = (oracle.start(n) for n in (3, 1, 6, 2))
    oracle.step(a, b, c)
    oracle.say(c)
    return [c, d, a]


def parameters(oracle: RowsOracle) -> None:
    """All are greedy, then some are not, then none is; those that are not change places."""
    greedy, warm, hot, other = (oracle.start(n) for n in (3, 5, 1, 6))  # the other one is greedy
    for batch in ((greedy, other), (greedy, warm), (hot, warm), (warm, hot), (other, greedy), (hot,), (other,)):
        oracle.step(*batch)
        oracle.step(*batch)
    oracle.free(hot)
    oracle.step(other, warm)


def to_the_ends_of_rows(oracle: RowsOracle) -> None:
    """As many sessions as there are rows, from the first position to the last."""
    most, rows = oracle.sizes.max_seq_len, oracle.sizes.max_batch_size
    batch = [oracle.start(n) for n in (0, most - 2, 1, most - 3, *[2] * (rows - 4))]
    oracle.step(*batch)
    oracle.step(*reversed(batch))
    oracle.step(*batch[2:])


STORIES: dict[str, Callable[[RowsOracle], None]] = {
    "rows that grow by new blocks": new_blocks,
    "sessions that join": join,
    "sessions that leave at the end of the batch": leave_at_the_end,
    "sessions that leave in the middle of the batch": leave_in_the_middle,
    "sessions that change places": change_places,
    "a session that is away for a step": away_for_a_step,
    "sessions that join in the step in which others leave": join_as_others_leave,
    "words that a user puts in the place of tokens": words_put_in_by_hand,
    "forks, and last blocks that are replaced by copies": forks_and_copies,
    "sampling parameters, some of them greedy": parameters,
    "a session freed and prefilled again between two steps": freed_between_two_steps,
    "another session on equal blocks": another_on_the_same_blocks,
    "another session and table at the same places in memory": another_at_its_address,
    "a session computed again on equal blocks": computed_on_the_same_blocks,
    "a session preempted, and back on other blocks": preempted_and_back,
    "steps that fail, and the next ones": failed_forwards,
    "an interrupt (Ctrl-C) in the middle of a plan": interrupted_plans,
}

ROWS: tuple[Scenario[RowsOracle], ...] = (
    *(Scenario(name, story) for name, story in STORIES.items()),
    *(
        Scenario(f"a session computed again, {n} before it, its blocks {what}", same_session_on(alike, n))
        for what, alike in ALIKE.items()
        for n in (0, 2)
    ),
    Scenario("all rows in use, from end to end", to_the_ends_of_rows, Sizes(max_batch_size=6)),
    Scenario("one layer, sessions that leave", leave_in_the_middle, Sizes(layers=1)),
    Scenario("blocks of one slot, sessions that join and leave", join_as_others_leave, Sizes(block_size=1)),
    *EVERYWHERE,
)
