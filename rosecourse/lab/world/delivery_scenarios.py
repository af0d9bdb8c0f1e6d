"""What a delivery has to live through: more readers than are woken at once, who join, sleep, stop reading and go."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from .delivery_oracle import DeliveryOracle
from .in_turns import MOST_WAKES
from .pool import Sizes, Tracked
from .scenarios import Scenario

Story = Callable[[DeliveryOracle], None]
KINDS = ("asleep", "awake", "gone")

# -- readers ----------------------------------------------------------------------------------------------------------


def of_own(oracle: DeliveryOracle, n: int, kind: str = "asleep") -> list[Tracked]:
    """So many requests, each with a reader of its own."""
    return [oracle.start(reader=oracle.reader(kind)) for _ in range(n)]


def of_one(oracle: DeliveryOracle, n: int) -> list[Tracked]:
    """So many requests of one reader."""
    reader = oracle.reader()
    return [oracle.start(reader=reader) for _ in range(n)]


def each_with_a_reader(n: int, steps: int = 12) -> Story:
    def story(oracle: DeliveryOracle) -> None:
        batch = of_own(oracle, n)
        for _ in range(steps):
            oracle.step(*batch)
        oracle.flush()
        for _ in range(steps):
            oracle.step(*batch)
        oracle.end(*batch)
        oracle.flush()

    return story


def one_reader_of_all(oracle: DeliveryOracle) -> None:
    batch = of_one(oracle, 12)
    for n in (12, 1, 5, 12):
        oracle.step(*batch[:n])
    oracle.end(batch[0], others=batch[1:])
    oracle.flush()
    oracle.step(*batch[1:])
    oracle.end(*batch[1:])
    oracle.flush()


def readers_of_one_and_of_many(oracle: DeliveryOracle) -> None:
    """The requests of a reader do not stand side by side in a step."""
    first, second, own = of_one(oracle, 6), of_one(oracle, 4), of_own(oracle, 11)
    mixed = [t for group in zip(first, own, [*second, *second[:2]], strict=False) for t in group]
    batch = [*dict.fromkeys(mixed), *own[6:]]
    for _ in range(7):
        oracle.step(*batch)
    oracle.end(*first, others=own)
    for _ in range(3):
        oracle.step(*second, *own[::-1])
    oracle.flush()


def readers_who_do_not_read(oracle: DeliveryOracle) -> None:
    """Of some the mailboxes fill up, others have read everything before they are woken."""
    batch = [t for kind in KINDS for t in of_own(oracle, 6, kind)]
    for n in (18, 18, 7, 18, 12, 18, 18):
        oracle.step(*batch[-n:])
    oracle.flush()
    oracle.step(*batch)
    oracle.end(*batch[::2], others=batch[1::2])
    oracle.flush()


# -- turns ------------------------------------------------------------------------------------------------------------


def one_token_amid_many(oracle: DeliveryOracle) -> None:
    """Some have one token, and others have one in each step."""
    busy, rare = of_own(oracle, 14), of_own(oracle, 6)
    for t in rare:
        oracle.step(*busy[:7], t, *busy[7:])
        oracle.step(*busy)
    for _ in range(4):
        oracle.step(*busy)


def newcomers(oracle: DeliveryOracle) -> None:
    """In each step two more readers, who come first in the step, or last."""
    batch = of_own(oracle, 9)
    for n in range(10):
        new = of_own(oracle, 2)
        batch = [*new, *batch] if n % 2 else [*batch, *new]
        oracle.step(*batch)
    oracle.end(*batch[::2], others=batch[1::2])
    for _ in range(4):
        oracle.step(*batch[1::2])
    oracle.flush()


def crowds(oracle: DeliveryOracle) -> None:
    """New readers with one token each, more of them than are woken; then nothing comes for some time."""
    for _ in range(3):
        for n in (MOST_WAKES + 2, MOST_WAKES + 5, 3, MOST_WAKES):
            oracle.step(*of_own(oracle, n))
        for _ in range(3):
            oracle.hand([])
    oracle.flush()


def nothing_comes(oracle: DeliveryOracle) -> None:
    """Hand-overs that bring nothing go on with the turns."""
    oracle.hand([])
    batch = of_own(oracle, 3 * MOST_WAKES + 1)
    for _ in range(2):
        oracle.step(*batch)
        for _ in range(4):
            oracle.hand([])
    oracle.step(*batch[:5])
    oracle.hand([])


def others_in_each_step(oracle: DeliveryOracle) -> None:
    batch = of_own(oracle, 20)
    for n in range(12):
        oracle.step(*batch[n % 3 :: 3], *batch[: n % 5])
        oracle.step(*batch[:: -1 - n % 2])
    oracle.flush()


# -- ends and pauses --------------------------------------------------------------------------------------------------


def all_end_at_once(oracle: DeliveryOracle) -> None:
    """Whoever is not woken then sleeps until the flush; nothing comes after it."""
    batch = of_own(oracle, 19)
    oracle.step(*batch)
    oracle.end(*batch)
    oracle.flush()
    oracle.flush()


def ends_one_by_one(oracle: DeliveryOracle) -> None:
    batch = of_own(oracle, 21)
    while batch:
        oracle.step(*batch)
        oracle.end(batch.pop(len(batch) // 2), others=batch)
    oracle.flush()


def cancelled(oracle: DeliveryOracle) -> None:
    """Ends that come alone, many at once; some of the requests have had no token yet."""
    batch = of_own(oracle, 24)
    oracle.step(*batch[:16])
    oracle.cancel(*batch[4:20])
    rest = batch[:4] + batch[20:]
    oracle.step(*rest)
    oracle.cancel(*rest)
    oracle.flush()


def pauses(oracle: DeliveryOracle) -> None:
    """All work ends, with a few asleep or with many, and begins again for readers who were there before."""
    oracle.flush()
    reader = oracle.reader()
    for n in (4, MOST_WAKES, 2 * MOST_WAKES + 3):
        for before in (0, n):
            own = of_own(oracle, n)
            shared = [oracle.start(reader=reader) for _ in range(2)]
            batch = [*own[:before], *shared, *own[before:]]
            for _ in range(2):
                oracle.step(*batch)
            oracle.end(*batch)
            oracle.flush()


def work_after_a_flush(oracle: DeliveryOracle) -> None:
    batch = of_own(oracle, 13)
    for n in (13, 1, 9, 13, 8):
        oracle.step(*batch[:n])
        oracle.step(*batch[-n:])
        oracle.flush()
    oracle.step(*batch)
    oracle.hand([])


def readers_who_go(oracle: DeliveryOracle) -> None:
    """A server has new readers all day; one stays."""
    kept = oracle.start()
    for n in (1, 5, MOST_WAKES, 2 * MOST_WAKES + 1):
        batch = of_own(oracle, n)
        oracle.step(kept, *batch)
        oracle.step(kept, *batch)
        oracle.gone(oracle.last_items(*batch))
    oracle.step(kept)


def two_engines(oracle: DeliveryOracle) -> None:
    other = oracle.twin()
    batches = [(world, of_own(world, n)) for world, n in ((oracle, 10), (other, 12))]
    for n in (10, 3, 9, 10):
        for world, batch in batches:
            world.step(*batch[:n])
    oracle.flush()
    for world, batch in batches:
        world.step(*batch)
    other.flush()
    oracle.flush()


def chance(oracle: DeliveryOracle) -> None:
    """What nobody thought of, in an order by chance."""
    play_by_chance(oracle, random.Random(oracle.sizes.seed), 60)
    oracle.flush()


def play_by_chance(oracle: DeliveryOracle, dice: random.Random, actions: int) -> None:
    """So many hand-overs and flushes; requests of new readers and of old ones come and go."""
    readers = [oracle.reader(dice.choice(KINDS)) for _ in range(3)]
    of_own(oracle, 5)
    for _ in range(actions):
        action = dice.choice(["start", "start", "many", "end", "cancel", "nothing", "flush", *["step"] * 6])
        live = oracle.sessions
        some: list[Tracked] = dice.sample(live, dice.randint(0, len(live)))
        if action == "start":
            oracle.start(reader=dice.choice([*readers, None]))
        elif action == "many" and len(live) < 40:
            of_own(oracle, dice.randint(1, 12), dice.choice(KINDS))
        elif action == "end" and some:
            oracle.end(*some[::3], others=[t for n, t in enumerate(some) if n % 3])
        elif action == "cancel" and some:
            oracle.cancel(*some[::4])
        elif action == "nothing":
            oracle.hand([])
        elif action == "flush":
            oracle.flush()
        else:
            oracle.step(*some)


SIZES = Sizes(layers=1, max_batch_size=32)
DELIVERIES: tuple[Scenario[DeliveryOracle], ...] = (
    Scenario("a reader alone", each_with_a_reader(1), SIZES),
    Scenario(f"{MOST_WAKES} readers", each_with_a_reader(MOST_WAKES), SIZES),
    Scenario(f"{MOST_WAKES + 1} readers", each_with_a_reader(MOST_WAKES + 1), SIZES),
    Scenario("30 readers", each_with_a_reader(30), SIZES),
    Scenario("150 readers", each_with_a_reader(150, 5), replace(SIZES, max_batch_size=150)),
    Scenario("one reader of all requests", one_reader_of_all, SIZES),
    Scenario("readers of one request and of many", readers_of_one_and_of_many, SIZES),
    Scenario("readers who stop reading, and such as never sleep", readers_who_do_not_read, SIZES),
    Scenario("readers with one token amid those with many", one_token_amid_many, SIZES),
    Scenario("readers who join", newcomers, SIZES),
    Scenario("more new readers than are woken", crowds, SIZES),
    Scenario("hand-overs that bring nothing", nothing_comes, SIZES),
    Scenario("others in each step", others_in_each_step, SIZES),
    Scenario("all requests end at once", all_end_at_once, SIZES),
    Scenario("requests that end one by one", ends_one_by_one, SIZES),
    Scenario("requests that are cancelled", cancelled, SIZES),
    Scenario("pauses, and readers who were there before", pauses, SIZES),
    Scenario("work after a flush", work_after_a_flush, SIZES),
    Scenario("readers who go", readers_who_go, SIZES),
    Scenario("two engines in turn", two_engines, SIZES),
    *(Scenario("traffic by chance", chance, Sizes(layers=1, max_batch_size=64, seed=seed)) for seed in range(1, 7)),
)
