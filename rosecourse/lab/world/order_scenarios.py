"""What operations with kernels that start early live through: few and small steps, for the interpreter is slow."""

from __future__ import annotations

from dataclasses import replace

import torch

from .ops_models import ModelSizes, ParallelGPT2
from .ops_scenarios import alone, asked_twice, two_models, two_streams
from .order_oracle import OrderOracle
from .scenarios import Scenario

SIZES = ModelSizes(layers=1)


def together(oracle: OrderOracle) -> None:
    batch = [oracle.start(n) for n in (4, 1, 7, 2)]
    for n in (4, 2, 3):
        oracle.step(*batch[:n])


def once(oracle: OrderOracle) -> None:
    oracle.step(*[oracle.start(n) for n in (3, 1, 2)])


def twice(oracle: OrderOracle) -> None:
    batch = [oracle.start(n) for n in (2, 5)]
    oracle.step(*batch)
    oracle.step(*batch[::-1])


def many_sessions(oracle: OrderOracle) -> None:
    """As many as a tile of rows has room for, one more, and more than the grid is made for."""
    batch = [oracle.start(1 + n % 3) for n in range(35)]
    for n in (16, 17, 35):
        oracle.step(*batch[:n])


def many_steps(oracle: OrderOracle) -> None:
    oracle.steps_that_leave_nothing(oracle.start(2), number=4)


ORDER: tuple[Scenario[OrderOracle], ...] = (
    Scenario("some sessions", together, SIZES),
    Scenario("layers that normalise a stream twice, and then add twice", twice, replace(SIZES, kind=ParallelGPT2)),
    Scenario("a session alone, in two layers", alone, replace(SIZES, layers=2)),
    Scenario("three heads of five numbers", once, replace(SIZES, heads=3, head_dim=5)),
    Scenario("a width of 70", once, replace(SIZES, heads=7, head_dim=10)),
    Scenario("17 sessions, and 35", many_sessions, SIZES),
    Scenario("a stream that is asked for its logits twice", asked_twice, SIZES),
    Scenario("two streams under way", two_streams, SIZES),
    Scenario("two models with one part", two_models, SIZES),
    Scenario("many steps", many_steps, SIZES),
    Scenario("half precision", once, replace(SIZES, layers=2, dtype=torch.float16)),
)
