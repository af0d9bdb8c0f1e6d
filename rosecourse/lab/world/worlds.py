"""The worlds in which parts are tried, one for each kind of part. A course says which world its part belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from ...decode.parts import DecodeParts
from . import ops_guard, ops_in_an_engine
from .learner import CalledWith, Learner, Names, in_an_engine, methods_of
from .ops_kernel_scenarios import NOWHERE, OPS_IN_KERNELS
from .ops_oracle import KernelOpsOracle, OpsOracle
from .ops_scenarios import OPS as OPS_SCENARIOS
from .oracle import Oracle
from .order_oracle import OrderOracle
from .order_scenarios import ORDER
from .scenarios import Scenario

Engine = Callable[[DecodeParts, torch.device], DecodeParts]


def as_they_are(parts: DecodeParts, device: torch.device) -> DecodeParts:
    """The parts themselves."""
    return parts


class WholeEngine(NamedTuple):
    """name: what is tried, in words. play: a learner's part, and what puts a class among the parts of an engine -> what
    came of it, in words; raises `PartIsWrong`."""

    name: str
    play: Callable[[Learner, Callable[[Any], DecodeParts]], str]


Driver = TypeVar("Driver", bound=Oracle)  # the kind of oracle that knows the kind of part


@dataclass(frozen=True, eq=False)
class World(Generic[Driver]):
    """A kind of part, and all that it takes to try one.

    part: its name in `DecodeParts`. words: what the command line calls it. called_with: the names of the arguments that
    a step calls it with, as of a `Learner`. oracle: drives it through steps. scenarios: what it has to live through.
    scenarios_with_kernels: the same for a lesson that brings kernels, on a device where they can be launched; empty
    where they are let in without a gate. in_an_engine: a learner's class as a part of an engine. engine: the parts of
    an engine in which such a part can be tried on a device, out of those of a lesson. holds: what is right of a part
    that has lived through the scenarios, in words. whole: how a whole engine with the part is tried, where that is not
    by the tokens that it makes.
    """

    part: str
    words: str
    called_with: CalledWith
    oracle: type[Driver]
    scenarios: tuple[Scenario[Driver], ...]
    scenarios_with_kernels: tuple[Scenario[Driver], ...] = ()
    in_an_engine: Callable[[Learner], Callable[..., Any]] = in_an_engine
    engine: Engine = as_they_are
    holds: str = "every number in its place, every block with its owners"
    whole: WholeEngine | None = None

    @property
    def methods(self) -> Mapping[str, Names]:
        """The methods that a step calls, the main one first, with the names of their arguments."""
        return methods_of(self.called_with)

    def scenarios_on(self, device: str | None) -> tuple[Scenario[Driver], ...]:
        """The scenarios for kernels on a device; None: for a part without kernels, or where none can be launched."""
        if device is None:
            return self.scenarios
        gated = self.scenarios_with_kernels or self.scenarios
        return tuple(replace(s, sizes=replace(s.sizes, device=device)) for s in gated)


OPS = World(
    "ops",
    "the operations of a layer",
    ops_guard.METHODS,
    OpsOracle,
    OPS_SCENARIOS,
    in_an_engine=ops_guard.in_an_engine,
    holds="each product from the right sum, by the right norm",
)
OPS_WITH_KERNELS = replace(
    OPS,
    words="the operations of a layer, with kernels",
    oracle=KernelOpsOracle,
    scenarios=NOWHERE,
    scenarios_with_kernels=OPS_IN_KERNELS,
    whole=WholeEngine(ops_in_an_engine.NAME, ops_in_an_engine.same_tokens),
)
KERNELS_IN_A_ROW = World(
    "ops",
    "operations whose kernel may start early",
    ops_guard.METHODS,
    OrderOracle,
    ORDER,
    in_an_engine=ops_guard.in_an_engine,
    holds="each sum right, and in each program of each kernel the right order",
    whole=WholeEngine(ops_in_an_engine.NAME, ops_in_an_engine.same_tokens),
)
