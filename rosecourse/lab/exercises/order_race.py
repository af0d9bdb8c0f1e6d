"""A race where time says nothing: how many weights and biases a step's kernels ask for only after their waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...config import EngineConfig
from ...decode import DecodeParts
from ...errors import ConfigError
from ...kernels import INTERPRETED
from ...models.ops import Ops
from ...models.shape import Model
from ..world.order_log import OrderLog
from .count_race import CountRace
from .counted_step import take_steps

WHAT = (
    "in a decode step, the kernels of `linear_add`, and how often one of them asks for weights or for a bias only after "
    "its wait. What is asked for before it is on its way while the kernel before is still at work"
)
NOT_INTERPRETED = (
    "what a kernel asks for is seen in Triton's interpreter alone: set TRITON_INTERPRET=1 in the environment before "
    "rosecourse is imported"
)


@dataclass(frozen=True)
class Asks:
    """Of one step. kernels: launched by `linear_add`. late: weights and biases that are asked for after a wait."""

    kernels: int
    late: int
