"""How a delivery wakes readers, simulated: nothing is random, and no thread is there.

All readers get a token at each step, and each has a mailbox of its own. A reader that is woken reads all that lies
there at once, and sleeps again. The clock stands still but for the steps. Before the first one it has long been
running, so that a delivery that counts the time since the last step may wake everybody for the first tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..checks import is_count, is_within, require, shown

MOST = 10_000  # readers, and steps
LONGEST = 60.0  # seconds of a step
# A clock that starts here and goes on in such ticks loses nothing in a float64, so that all its differences are exact.
START, TICK = 2.0**20, 2.0**-30  # seconds


class Wake(NamedTuple):
    """A reader is woken, at the end of a step, and reads so many tokens."""

    reader: int
    step: int
    tokens: int


@dataclass(frozen=True)
class Deliveries:
    """What a simulated run came to. waited: of each token, how many steps ended before it was read."""

    num_readers: int
    num_steps: int
    step_seconds: float
    wakes: tuple[Wake, ...]
    waited: tuple[int, ...]

    @property
    def wakes_of_step(self) -> list[int]:
        """How many readers each step woke."""
        counts = Counter(wake.step for wake in self.wakes)
        return [counts[step] for step in range(self.num_steps)]

    @property
    def delays(self) -> list[float]:
        """Of each token: seconds from the step that made it to the reader."""
        return [steps * self.step_seconds for steps in self.waited]


@dataclass
class _Clock:
    now: float = START


@dataclass(eq=False)
class _Reader:
    """A mailbox and its reader in one."""

    number: int
    step_now: Callable[[], int]
    wakes: list[Wake]
    waited: list[int]
    lying: list[int] = field(default_factory=list)  # the steps that made what lies here

    def put(self, item: Any) -> None:
        self.lying.append(item)

    def wake(self) -> None:
        step = self.step_now()
        self.wakes.append(Wake(self.number, step, len(self.lying)))
        self.waited += [step - made for made in self.lying]
        self.lying.clear()


def simulate_delivery(
    delivery_on: Callable[[Callable[[], float]], Any], num_readers: int, num_steps: int, step_seconds: float
) -> Deliveries:
    """A run of so many steps; after the last one, the delivery is flushed at the same moment.

    delivery_on: makes the delivery, for a clock that gives seconds. Raises `ConfigError`.
    """
    for name, count in (("num_readers", num_readers), ("num_steps", num_steps)):
        require(is_count(count) and count <= MOST, f"{name} is {shown(count)}: give 1 to {MOST:,}")
    require(is_within(step_seconds, 0, LONGEST), f"step_seconds is {shown(step_seconds)}: give 0 to {LONGEST:g}")
    clock, wakes, waited = _Clock(), list[Wake](), list[int]()
    delivery = delivery_on(lambda: clock.now)
    tick, step = math.ceil(step_seconds / TICK) * TICK, 0
    readers = [_Reader(number, lambda: step, wakes, waited) for number in range(num_readers)]
    for step in range(num_steps):
        clock.now += tick
        delivery.hand_over([(reader, step) for reader in readers])
    delivery.flush()
    return Deliveries(num_readers, num_steps, step_seconds, tuple(wakes), tuple(waited))
