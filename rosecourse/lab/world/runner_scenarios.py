"""What a runner has to live through: batches that grow and shrink, sessions that sample and that do not, long ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from .pool import Sizes, Tracked
from .runner_oracle import RunnerOracle
from .scenarios import Scenario

# One layer, since a runner does not look into the work. Most engines have few rows: each graph takes time to capture.
ROOM = Sizes(layers=1, num_blocks=80, max_seq_len=48)


def alone(oracle: RunnerOracle) -> None:
    one = oracle.start(1)
    for _ in range(2 * oracle.sizes.block_size + 1):
        oracle.step(one)


def grow(oracle: RunnerOracle) -> None:
    """From one session to as many as there are rows: in the end every bucket has been used."""
    batch: list[Tracked] = []
    for n in range(oracle.sizes.max_batch_size):
        batch.append(oracle.start(1 + n % 5))
        oracle.step(*batch)


def shrink(oracle: RunnerOracle) -> None:
    """At the end, in front, and in the middle: in the end one is left."""
    batch = [oracle.start(1 + n % 7) for n in range(oracle.sizes.max_batch_size)]
    for n in range(len(batch), 0, -1):
        oracle.step(*batch)
        oracle.free(batch.pop((0, n - 1, n // 2)[n % 3]))


def up_and_down(oracle: RunnerOracle) -> None:
    """A large batch, a small one, and the large one again: the small one must not leave anything to the large one."""
    batch = [oracle.start(2 + n % 3) for n in range(9)]
    for n in (9, 1, 9, 3, 4, 8, 2, 9, 5):
        oracle.step(*batch[:n])
        oracle.step(*batch[:n])


def not_full(oracle: RunnerOracle) -> None:
    """Batches that have fewer sessions than their bucket has rows; then as many."""
    batch = [oracle.start(n) for n in (3, 8, 5, 1, 6, 2, 7, 4)]
    for n in (3, 3, 4, 5, 7, 8, 6, 3, 1, 2):
        oracle.step(*batch[:n])


def short_then_long(oracle: RunnerOracle) -> None:
    """Sessions grow over many blocks, while newcomers are short."""
    batch = [oracle.start(1), oracle.start(2)]
    for _ in range(3 * oracle.sizes.block_size):
        oracle.step(*batch)
    oracle.step(batch[0], oracle.start(1))
    oracle.step(*reversed(batch))


def a_long_one_joins(oracle: RunnerOracle) -> None:
    most = oracle.sizes.max_seq_len
    short = [oracle.start(1), oracle.start(3)]
    oracle.step(*short)
    oracle.step(*short)
    long = oracle.start(most - 6)
    for batch in ((short[0], long), (long, short[1]), (long,), (*short, long)):
        oracle.step(*batch)


def change_places(oracle: RunnerOracle) -> None:
    a, b, c, d = (oracle.start(n) for n in (6, 1, 9, 3))
    for batch in ((a, b, c, d), (b, a, c, d), (d, c, b, a), (a, c), (c, a), (d, b)):
        oracle.step(*batch)


def forks(oracle: RunnerOracle) -> None:
    """Blocks are copied, in the middle of a block and at its end, before the graph runs."""
    a, b = oracle.start(6), oracle.start(4)
    oracle.step(a, b)
    child = oracle.fork(a)
    oracle.step(a, child, b)
    others = [oracle.fork(child), oracle.fork(b)]
    for _ in range(oracle.sizes.block_size + 1):
        oracle.step(*others, a, child, b)


def all_sample(oracle: RunnerOracle) -> None:
    batch = [oracle.start(1 + n, sampled=True) for n in range(5)]
    for n in (1, 2, 3, 5, 5, 2, 4, 1, 5):
        oracle.step(*batch[:n])


def some_sample(oracle: RunnerOracle) -> None:
    """Greedy steps, then steps in which some sample, then greedy ones again, at equal sizes of the batch."""
    greedy = [oracle.start(n) for n in (5, 2, 7)]
    hot = [oracle.start(n, sampled=True) for n in (3, 6)]
    for batch in (greedy, [*greedy[:2], hot[0]], greedy, [*hot, greedy[0]], greedy, hot, greedy[:2], hot[:1]):
        oracle.step(*batch)
        oracle.step(*batch)


def other_parameters_in_the_same_step(oracle: RunnerOracle) -> None:
    """One leaves and one joins that asks for something else; the size of the batch stays."""
    a, b, c = (oracle.start(n) for n in (4, 2, 6))
    oracle.step(a, b, c)
    oracle.step(a, b, c)
    oracle.free(b)
    hot = oracle.start(3, sampled=True)
    for _ in range(3):
        oracle.step(a, hot, c)
    oracle.free(hot)
    other = oracle.start(5, sampled=True)
    for _ in range(2):
        oracle.step(a, other, c)
    oracle.free(other)
    cold = oracle.start(3)
    oracle.step(a, cold, c)
    oracle.step(cold, c)


def sampled_after_many_greedy_steps(oracle: RunnerOracle) -> None:
    """The first step that samples comes in the middle of a stream."""
    batch = [oracle.start(n) for n in (3, 5, 4)]
    for _ in range(5):
        oracle.step(*batch)
    batch.append(oracle.start(2, sampled=True))
    for _ in range(4):
        oracle.step(*batch)


def freed_blocks(oracle: RunnerOracle) -> None:
    """Blocks that others had before; sessions come and go while one stays."""
    kept = oracle.start(3)
    for n, length in enumerate((9, 4, 7, 8)):
        guest = oracle.start(length, sampled=n % 2 == 1)
        oracle.step(guest, kept)
        oracle.step(kept, guest)
        oracle.free(guest)
        oracle.step(kept)


def two_engines(oracle: RunnerOracle) -> None:
    other = oracle.twin()
    batches = [(world, [world.start(n) for n in (3, 6, 2)]) for world in (oracle, other)]
    for n in (3, 1, 2, 3):
        for world, batch in batches:
            world.step(*batch[:n])


def chance(oracle: RunnerOracle) -> None:
    """What nobody thought of: starts, forks, ends and steps of any batch, in an order that the seed decides."""
    dice = random.Random(oracle.sizes.seed)
    for n in range(3):
        oracle.start(dice.randint(1, 9), sampled=n == 1)
    for _ in range(22):
        action = dice.choice(["start", "fork", "end", "step", "step", "step"])
        some = dice.sample(oracle.sessions, dice.randint(1, len(oracle.sessions)))
        if action == "start" and oracle.started < 14:
            oracle.start(dice.randint(1, 9), sampled=dice.random() < 0.4)
        elif action == "fork" and oracle.started < 14:
            oracle.fork(some[0])
        elif action == "end" and len(oracle.sessions) > 2:
            oracle.free(some[0])
        else:
            oracle.step(*some)


STORIES: dict[str, tuple[Callable[[RunnerOracle], None], int]] = {  # name -> story, and the rows of its engine
    "one session alone, through two block boundaries": (alone, 8),
    "batches that do not fill their bucket": (not_full, 8),
    "a batch that grows to the largest there is": (grow, 16),
    "a batch that shrinks to one session": (shrink, 16),
    "large batches after small ones": (up_and_down, 16),
    "short sessions that become long": (short_then_long, 4),
    "a long session that joins short ones": (a_long_one_joins, 4),
    "sessions that change places": (change_places, 8),
    "forks, and blocks that are copied": (forks, 8),
    "sessions that all sample": (all_sample, 8),
    "steps that sample between steps that do not": (some_sample, 8),
    "the first step that samples, in the middle of a stream": (sampled_after_many_greedy_steps, 4),
    "one that samples joins in the step in which another leaves": (other_parameters_in_the_same_step, 4),
    "blocks that others had before": (freed_blocks, 4),
    "two engines in turn": (two_engines, 4),
}

RUNNERS: tuple[Scenario[RunnerOracle], ...] = (
    *(Scenario(name, story, replace(ROOM, max_batch_size=rows)) for name, (story, rows) in STORIES.items()),
    Scenario("traffic by chance, number 3", chance, Sizes(num_blocks=90, seed=3)),
    Scenario("traffic by chance, number 4", chance, Sizes(layers=1, num_blocks=90, seed=4)),
    Scenario("11 rows, which is no multiple of 8", grow, Sizes(layers=1, num_blocks=90, max_batch_size=11)),
    Scenario("an engine of one row", alone, Sizes(max_batch_size=1)),
    Scenario("one layer, blocks of one slot", up_and_down, Sizes(1, 1, 8, 1, 300, 32, 9)),
)
