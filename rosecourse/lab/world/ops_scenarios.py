"""What operations have to live through: models of all sizes, batches that change, and streams that are used twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import torch

from .ops_models import EmbeddingAlone, ModelSizes, ParallelGPT2
from .ops_oracle import OpsOracle
from .scenarios import Scenario

Story = Callable[[OpsOracle], None]
SIZES = ModelSizes()


def alone(oracle: OpsOracle) -> None:
    one = oracle.start(0)
    for _ in range(4):
        oracle.step(one)


def together(oracle: OpsOracle) -> None:
    batch = [oracle.start(n) for n in (4, 1, 7, 2)]
    for _ in range(3):
        oracle.step(*batch)


def other_batches(oracle: OpsOracle) -> None:
    """As many as before, more and fewer, and the same ones in another order."""
    batch = [oracle.start(1 + n % 5) for n in range(9)]
    for n in (9, 1, 9, 3, 8, 2):
        oracle.step(*batch[:n])
    oracle.step(*batch[:2])
    oracle.step(*reversed(batch))
    oracle.step(*batch[4:6])


def twice_the_same(oracle: OpsOracle) -> None:
    """Two sessions, of which the first one starts anew: the same token at another position."""
    a, b = oracle.start(2), oracle.start(5)
    oracle.step(a, b)
    oracle.free(a)
    oracle.step(oracle.start(2), b)
    oracle.step(b, oracle.start(2))


def two_streams(oracle: OpsOracle) -> None:
    batches = [[oracle.start(n) for n in lengths] for lengths in ((3, 1, 2), (2, 6, 4))]
    for first, second in (batches, batches[::-1]):
        oracle.step_together(first, second)
    oracle.step_together(batches[0], batches[1][:1])
    oracle.step(*batches[1])


def asked_twice(oracle: OpsOracle) -> None:
    batch = [oracle.start(n) for n in (3, 1, 4)]
    oracle.step(*batch)
    oracle.logits_again(*batch)
    oracle.logits_again(batch[1])
    oracle.step(*batch[:2])


def two_models(oracle: OpsOracle) -> None:
    """One object of the part computes two models, of which only the weights differ."""
    _in_turn(oracle, oracle.of_another_model())


def two_vocabularies(oracle: OpsOracle) -> None:
    _in_turn(oracle, oracle.of_another_model(vocab_size=130))


def two_engines(oracle: OpsOracle) -> None:
    _in_turn(oracle, oracle.twin())


def many_steps(oracle: OpsOracle) -> None:
    oracle.steps_that_leave_nothing(*[oracle.start(n) for n in (2, 4)], number=8)


def _in_turn(oracle: OpsOracle, other: OpsOracle) -> None:
    batches = [(world, [world.start(n) for n in (3, 6, 2)]) for world in (oracle, other)]
    for n in (3, 1, 2, 3):
        for world, batch in batches:
            world.step(*batch[:n])
    for world, batch in batches[::-1]:
        world.step(*batch)


def a_graph(oracle: OpsOracle) -> None:
    batch = [oracle.start(n) for n in (3, 1, 4, 2)]
    oracle.recorded(*batch)
    oracle.recorded(batch[2])
    oracle.step(*batch)


def chance(oracle: OpsOracle) -> None:
    """What nobody thought of: sessions come and go, and steps are of any of them, in an order that the seed decides."""
    dice = random.Random(oracle.sizes.seed)
    for _ in range(4):
        oracle.start(dice.randint(0, 9))
    for _ in range(12):
        action = dice.choice(["start", "end", "step", "step", "step", "twice"])
        some = dice.sample(oracle.sessions, dice.randint(1, len(oracle.sessions)))
        if action == "start":
            oracle.start(dice.randint(0, 9))
        elif action == "end" and len(oracle.sessions) > 2:
            oracle.free(some[0])
        elif action == "twice" and len(some) > 1:
            oracle.step_together(some[:1], some[1:])
        else:
            oracle.step(*some)


def _by_chance(seed: int) -> Scenario[OpsOracle]:
    dice = random.Random(seed)
    sizes = ModelSizes(
        layers=dice.randint(1, 4),
        heads=dice.randint(1, 4),
        head_dim=dice.choice([2, 4, 5, 8]),
        vocab_size=dice.randint(2, 600),
        seed=seed,
    )
    return Scenario(f"a model and traffic by chance, number {seed}", chance, sizes)


OPS: tuple[Scenario[OpsOracle], ...] = (
    Scenario("a session alone", alone, SIZES),
    Scenario("some sessions, in three layers", together, replace(SIZES, layers=3)),
    Scenario("one layer", together, replace(SIZES, layers=1)),
    Scenario("batches that change from step to step", other_batches, SIZES),
    Scenario("sessions that come and go", twice_the_same, SIZES),
    Scenario("norms whose eps is 0.1", together, replace(SIZES, eps=0.1)),
    *(
        Scenario(f"a vocabulary of {words}", together, replace(SIZES, layers=1, vocab_size=words))
        for words in (1, 255, 256, 257, 700)
    ),
    Scenario("three heads of five numbers", together, replace(SIZES, heads=3, head_dim=5)),
    Scenario("a width of 256", together, replace(SIZES, layers=1, heads=4, head_dim=64)),
    Scenario("a stream that is asked for its logits twice", asked_twice, SIZES),
    Scenario("layers that normalise a stream twice, and then add twice", together, replace(SIZES, kind=ParallelGPT2)),
    Scenario("a model that adds nothing to its embedding", together, replace(SIZES, kind=EmbeddingAlone)),
    Scenario("many steps", many_steps, SIZES),
    Scenario("two streams under way", two_streams, SIZES),
    Scenario("two models with one part", two_models, SIZES),
    Scenario("two models of other vocabularies with one part", two_vocabularies, SIZES),
    Scenario("two engines in turn", two_engines, SIZES),
    Scenario("a graph that records a step", a_graph, SIZES),
    Scenario("half precision", other_batches, replace(SIZES, dtype=torch.float16)),
    *map(_by_chance, range(1, 5)),
)
