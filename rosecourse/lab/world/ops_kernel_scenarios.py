"""What operations with kernels of their own have to live through: small models, since an interpreter is slow.

Sizes are such as a kernel goes wrong at: widths that are no multiple of a tile, one row, more rows than a tile has, a
vocabulary that ends in the middle of a tile; and rows whose mean is large beside their deviation.
"""

from __future__ import annotations

from dataclasses import replace

from ...kernels import TRITON_AVAILABLE
from .error_reading import CannotTry
from .ops_models import EmbeddingAlone, ModelSizes, ParallelGPT2
from .ops_oracle import OpsOracle
from .ops_scenarios import (
    a_graph,
    alone,
    asked_twice,
    many_steps,
    other_batches,
    together,
    twice_the_same,
    two_engines,
    two_models,
    two_streams,
    two_vocabularies,
)
from .scenarios import Scenario

SMALL = ModelSizes(layers=1)
FAR = 40.0  # from 0, in deviations of a row: its square has 11 bits more than the variance
NOT_HERE = (
    "the kernels. Triton cannot launch them here: use a GPU, or set TRITON_INTERPRET=1 in the environment before "
    "rosecourse is imported"
)
NO_TRITON = "the kernels. Triton is not installed here; it exists for Linux only"


def some(oracle: OpsOracle) -> None:
    oracle.step(*[oracle.start(n) for n in (4, 1, 7)])


def many(oracle: OpsOracle) -> None:
    """More than a tile has, none of them a multiple of one."""
    batch = [oracle.start(n % 3) for n in range(35)]
    for n in (35, 17, 16):
        oracle.step(*batch[:n])


def cannot(oracle: OpsOracle) -> None:
    """Nothing: a part that launches kernels has to fail."""
    raise CannotTry(NOT_HERE if TRITON_AVAILABLE else NO_TRITON)


OPS_IN_KERNELS: tuple[Scenario[OpsOracle], ...] = (
    Scenario("a session alone", alone, SMALL),
    Scenario("two layers", together, replace(SMALL, layers=2)),
    Scenario("batches that change from step to step", other_batches, SMALL),
    Scenario("sessions that come and go", twice_the_same, SMALL),
    Scenario("norms whose eps is 0.1", some, replace(SMALL, eps=0.1)),
    *(Scenario(f"a vocabulary of {words}", some, replace(SMALL, vocab_size=words)) for words in (1, 256, 300)),
    Scenario("a width of 15", some, replace(SMALL, heads=3, head_dim=5)),
    Scenario("a width of 72", some, replace(SMALL, heads=3, head_dim=24)),
    Scenario("up to 35 sessions", many, SMALL),
    Scenario("rows with a large mean", some, replace(SMALL, mean=FAR)),
    Scenario("a stream that is asked for its logits twice", asked_twice, SMALL),
    Scenario("layers that normalise a stream twice, and then add twice", some, replace(SMALL, kind=ParallelGPT2)),
    Scenario("a model that adds nothing to its embedding", some, replace(SMALL, kind=EmbeddingAlone)),
    Scenario("many steps", many_steps, SMALL),
    Scenario("two streams under way", two_streams, SMALL),
    Scenario("two models with one part", two_models, SMALL),
    Scenario("two models of other vocabularies with one part", two_vocabularies, replace(SMALL, kind=EmbeddingAlone)),
    Scenario("two engines in turn", two_engines, SMALL),
    Scenario("a graph that records a step", a_graph, SMALL),
)
NOWHERE: tuple[Scenario[OpsOracle], ...] = (Scenario("kernels", cannot, SMALL),)  # for where they do not run
