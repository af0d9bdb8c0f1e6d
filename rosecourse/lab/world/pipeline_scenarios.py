"""What a pipeline has to live through: batches that change while a step is in flight, waits that fail, and requests
that end at any moment. Some are driven step by step, others by a scheduler."""

from __future__ import annotations

import random
from collections.abc import Callable

from .interrupts import Interrupt
from .pipeline_oracle import Flights, PipelineOracle, Script
from .pool import Tracked
from .scenarios import Scenario
from .server import DeviceFailed, Server

Story = Callable[[PipelineOracle], None]

# -- step by step -----------------------------------------------------------------------------------------------------


def alone(oracle: PipelineOracle) -> None:
    one = oracle.start(1)
    for _ in range(2 * oracle.sizes.block_size + 1):
        oracle.step(one)
    oracle.settle()


def shrink(oracle: PipelineOracle) -> None:
    """In front, at the end, and in the middle: each size has one step, then two, then three."""
    batch = [oracle.start(1 + n % 7, sampled=n % 3 == 1) for n in range(6)]
    for n in range(len(batch), 0, -1):
        for _ in range(1 + n % 3):
            oracle.step(*batch)
        oracle.settle()
        oracle.free(batch.pop((0, n - 1, n // 2)[n % 3]))


def grow_and_shrink(oracle: PipelineOracle) -> None:
    """While a step is in flight, the next one has more sessions, or fewer."""
    batch = [oracle.start(1 + n % 5, sampled=n % 2 == 1) for n in range(oracle.sizes.max_batch_size)]
    for n in (1, 2, 5, 8, 8, 3, 3, 3, 8, 1, 1, 1, 4, 4, 2, 7, 1):
        oracle.step(*batch[:n])
    oracle.settle()


def change_places(oracle: PipelineOracle) -> None:
    """Two steps in flight have the same sessions in other rows, or other sessions."""
    a, b, c, d = (oracle.start(n, sampled=n > 5) for n in (6, 1, 9, 3))
    for batch in ((a, b, c, d), (b, a, c, d), (d, c, b, a), (a, c), (b, d), (c, a), (d, b), (d,), (a, b, c)):
        oracle.step(*batch)
    oracle.settle()


def forks(oracle: PipelineOracle) -> None:
    a, b = oracle.start(6), oracle.start(4, sampled=True)
    oracle.step(a, b)
    oracle.step(a, b)
    child = oracle.fork(a)
    oracle.step(a, child, b)
    others = [oracle.fork(child), oracle.fork(b)]
    for _ in range(oracle.sizes.block_size + 1):
        oracle.step(*others, a, child, b)
    oracle.settle()


def come_and_go(oracle: PipelineOracle) -> None:
    """Blocks that others had before; sessions come and go while one stays."""
    kept = oracle.start(3)
    for n, length in enumerate((9, 4, 7, 8)):
        guest = oracle.start(length, sampled=n % 2 == 1)
        oracle.step(guest, kept)
        oracle.step(kept, guest)
        oracle.step(kept)
        oracle.free(guest)
        oracle.step(kept)
    oracle.settle()


def interrupted(oracle: PipelineOracle) -> None:
    """The wait of a landing is interrupted; the same step lands afterwards."""
    batch = [oracle.start(n, sampled=n == 5) for n in (3, 5, 2)]
    for n in (3, 2, 3, 1, 3, 3):
        oracle.step(*batch[:n])
        oracle.interrupt_landing(Interrupt())
    for n in (3, 3, 2, 2, 3):
        oracle.step(*batch[:n])
    oracle.settle()


def failing_launches(oracle: PipelineOracle) -> None:
    batch = [oracle.start(n) for n in (3, 5, 2)]
    for _ in range(3):
        oracle.step(*batch)
        oracle.failing_launch(*batch)
        oracle.failing_launch(*batch[:2])
        oracle.step(*batch[1:])
    oracle.settle()


def abandoned(oracle: PipelineOracle) -> None:
    """Steps in flight that nobody wants any more; their sessions are computed anew."""
    batch = [oracle.start(n, sampled=n == 5) for n in (3, 5, 2)]
    for n in (3, 2, 3):
        oracle.step(*batch)
        oracle.step(*batch[:n])
        oracle.abandon(*batch)
    for _ in range(3):
        oracle.step(*batch)
    oracle.settle()


def dead_device(oracle: PipelineOracle) -> None:
    """The same when the device fails: each wait raises."""
    batch = [oracle.start(n) for n in (3, 5, 2)]
    for n in (3, 2, 3):
        oracle.step(*batch)
        oracle.step(*batch[:n])
        oracle.abandon(*batch, dead=DeviceFailed("the device has failed"))
    for _ in range(3):
        oracle.step(*batch)
    oracle.settle()


def two_engines(oracle: PipelineOracle) -> None:
    other = oracle.twin()
    batches = [(world, [world.start(n) for n in (3, 6, 2)]) for world in (oracle, other)]
    for n in (3, 1, 2, 3, 3):
        for world, batch in batches:
            world.step(*batch[:n])
    oracle.settle()
    other.settle()


def chance(oracle: PipelineOracle) -> None:
    """What nobody thought of: starts, forks, ends, interrupts and steps of any batch, in an order by chance."""
    dice = random.Random(oracle.sizes.seed)
    for n in range(3):
        oracle.start(dice.randint(1, 9), sampled=n == 1)
    for _ in range(40):
        action = dice.choice(["start", "fork", "end", "settle", "interrupt", *["step"] * 5])
        some: list[Tracked] = dice.sample(oracle.sessions, dice.randint(1, len(oracle.sessions)))
        room = len(oracle.sessions) < oracle.sizes.max_batch_size
        if action == "start" and room:
            oracle.start(dice.randint(1, 9), sampled=dice.random() < 0.5)
        elif action == "fork" and room:
            oracle.fork(some[0])
        elif action == "end" and len(oracle.sessions) > 2:
            oracle.free(some[0])
        elif action == "settle":
            oracle.settle()
        elif action == "interrupt":
            oracle.interrupt_landing(Interrupt())
        else:
            oracle.step(*some)
    oracle.settle()


# -- by a scheduler ---------------------------------------------------------------------------------------------------


def served(script: Script) -> Story:
    def story(oracle: PipelineOracle) -> None:
        oracle.serve(script)

    return story


def of_all_lengths(server: Server) -> None:
    """Requests that may have 1 to 7 tokens, more of them than the batch has places for."""
    for n in range(11):
        server.submit(1 + 3 * n % 8, 1 + n % 7, temperature=0.9 * (n % 2))
        server.step(n % 2)


def ends_of_text(oracle: PipelineOracle) -> None:
    """A text ends at its first token, at its second, and so on; the others go on."""

    def script(server: Server) -> None:
        for n in range(4):
            server.submit(2 + n, 9, temperature=0.8 * (n % 2), stop_on_eos=True)
        server.step(2)
        server.submit(3, 6, temperature=1.1, stop_on_eos=True)

    made = oracle.serve(script)["B"].completion_ids
    for token in dict.fromkeys(made[:6]):
        oracle.serve(script, eos=token)


def cancelled(server: Server) -> None:
    """While a step is in flight, while it waits, in its first step and its last."""
    names = [server.submit(2 + n, 8, temperature=0.9 * (n % 2)) for n in range(6)]
    server.step()
    server.cancel(names[1])
    server.step(3)
    server.cancel(names[0])
    server.cancel(names[0])
    server.submit(4, 5)
    server.step()
    server.cancel(names[3])
    server.cancel(names[5])


def several_samples(server: Server) -> None:
    server.submit(5, 7, samples=3, temperature=1.0)
    server.step(2)
    server.submit(3, 5, samples=2, temperature=0.7)


def forked_while_in_flight(server: Server) -> None:
    first = server.submit(5, 9)
    server.submit(3, 9, temperature=0.9)
    server.step(3)
    server.fork(first, word=11)
    server.step(2)
    server.fork(first, word=12)


def too_few_blocks(server: Server) -> None:
    for n in range(5):
        server.submit(3 + n, 12, temperature=0.9 * (n % 2))
        server.step()


def shared_beginnings(server: Server) -> None:
    stem = [5, 9, 2, 7, 1, 8, 3, 6]
    for n in range(5):
        server.submit(9 + n, 6, prompt=stem, temperature=0.9 * (n % 2))
        server.step(2)


def without_a_token(server: Server) -> None:
    """Sessions come to a position at which no token can be chosen, while others are short of it."""
    for n in (12, 3, 9, 5):
        server.submit(n, 14, temperature=0.9 * (n % 2))
        server.step()


def interrupts_and_failures(server: Server) -> None:
    """Ctrl-C in a wait, steps that cannot be launched, a device that fails: the requests are served all the same."""
    for n in range(4):
        server.submit(2 + n, 16, temperature=0.9 * (n % 2))
    for what in (server.interrupt_wait, server.fail_launch, server.fail_device, server.interrupt_wait):
        server.step(3)
        what()
        server.step(2)


SMALL = {"layers": 1, "num_blocks": 60, "max_seq_len": 40, "max_batch_size": 8}
STORIES: dict[str, tuple[Story, dict[str, int | bool]]] = {  # name -> story, and what its engine has of its own
    "one session alone": (alone, {}),
    "batches that grow and shrink while a step is in flight": (grow_and_shrink, {}),
    "a batch that shrinks to one session": (shrink, {}),
    "sessions that change places": (change_places, {}),
    "waits that are interrupted": (interrupted, {}),
    "steps that cannot be launched": (failing_launches, {}),
    "steps that nobody wants any more": (abandoned, {}),
    "a device that fails": (dead_device, {}),
    "sessions that come and go": (come_and_go, {}),
    "forks": (forks, {}),
    "requests of all lengths": (served(of_all_lengths), {"max_batch_size": 4}),
    "texts that end at any token": (ends_of_text, {}),
    "requests that are cancelled": (served(cancelled), {}),
    "several samples of a prompt": (served(several_samples), {"max_batch_size": 4}),
    "requests that are forked while a step is in flight": (served(forked_while_in_flight), {}),
    "too few blocks for all": (served(too_few_blocks), {"num_blocks": 9}),
    "prompts with a shared beginning": (served(shared_beginnings), {"cached": True}),
    "logits of NaN": (served(without_a_token), {"nan_at": 16}),
    "interrupts and failures amid requests": (served(interrupts_and_failures), {}),
    "two engines in turn": (two_engines, {}),
}
# Told with a device that is never late, too: it overwrites at once what it may overwrite.
NEVER_LATE = (
    "one session alone",
    "batches that grow and shrink while a step is in flight",
    "a batch that shrinks to one session",
    "sessions that change places",
    "waits that are interrupted",
    "steps that cannot be launched",
    "steps that nobody wants any more",
    "forks",
    "requests of all lengths",
    "interrupts and failures amid requests",
)
BY_CHANCE = (  # and with one that is neither
    "batches that grow and shrink while a step is in flight",
    "requests of all lengths",
    "interrupts and failures amid requests",
)
PACES = {
    "late": "a device that is late",
    "prompt": "a device that is never late",
    "by chance": "a device that is late by chance",
}


def _flights(pace: str, own: dict[str, int | bool], seed: int = 0) -> Flights:
    return Flights(pace=pace, seed=seed, **{**SMALL, **own})  # type: ignore[arg-type]


PIPELINES: tuple[Scenario[PipelineOracle], ...] = (
    *(
        Scenario(f"{name}, {PACES[pace]}", story, _flights(pace, own))
        for name, (story, own) in STORIES.items()
        for pace, told in (("late", STORIES), ("prompt", NEVER_LATE), ("by chance", BY_CHANCE))
        if name in told
    ),
    *(
        Scenario(f"traffic by chance, {PACES[pace]}", chance, _flights(pace, {}, seed))
        for seed, pace in ((3, "late"), (4, "prompt"), (5, "by chance"), (6, "by chance"))
    ),
    Scenario("an engine of one row, a device that is late", alone, _flights("late", {"max_batch_size": 1})),
)
