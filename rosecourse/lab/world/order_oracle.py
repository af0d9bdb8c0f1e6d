"""The oracle of kernels that start early: that of operations, and the order in each program is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ...kernels import INTERPRETED, TRITON_AVAILABLE
from ...models.ops import Linear
from .causes import Cause
from .error_reading import CannotTry
from .fault import PartIsWrong
from .judged_ops import JudgedOps
from .kernel_memory import guarded_kernels
from .learner import Learner
from .ops_guard import GuardedOps
from .ops_kernel_scenarios import NO_TRITON
from .ops_log import OpsSeen
from .ops_oracle import OpsOracle
from .pool import Sizes, Tracked
from .program_order import Launched
from .watched_launches import Watch
from .written_memory import Written

NOT_INTERPRETED = (
    "the order within a kernel. It is seen in Triton's interpreter alone: set TRITON_INTERPRET=1 in the environment "
    "before rosecourse is imported"
)
LOOK_AT_MASKS = "look at the grid, at the masks, and at the offsets"


@dataclass(frozen=True)
class OrderSeen(OpsSeen):
    """What was seen in a step, beside what operations cost.

    plain: calls of `linear_add` that launch no kernel. held: launches that may not start early. late: (kernel, tensor,
    line) for each tensor of each launch that was there before the step, and is asked for only after the wait. again:
    the same for each tensor of which a part is read before the wait and once more after it. silent: programs that store
    and do not let the next kernel start before. waits, starts: those that are one too many.
    """

    plain: int = 0
    held: int = 0
    late: tuple[tuple[str, str, str], ...] = ()
    again: tuple[tuple[str, str, str], ...] = ()
    silent: int = 0
    waits: int = 0
    starts: int = 0


class OrderedOps(GuardedOps):
    """The learner's operations, whose launches are watched. Raises `PartIsWrong` where the order in one is wrong."""

    def __init__(self, guard: GuardedOps, written: Written) -> None:
        self.learner, self.made, self.written = guard.learner, guard.made, written
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        self.written.begin()
        self.launched: list[Launched] = []
        self.plain = 0

    def linear_add(self, h: Tensor, linear: Linear, x: Any) -> Any:
        self.written.step.add_tensor(h)  # whoever has made it, it was in this step
        return super().linear_add(h, linear, x)

    def _stream(self, method: str, *arguments: Any) -> Any:
        with self._watched() as watch:
            returned = super()._stream(method, *arguments)
        self.plain += method == "linear_add" and not watch.launched
        return returned

    def _rows(self, method: str, width: int, weight: Tensor, *arguments: Any) -> Tensor:
        with self._watched():
            return super()._rows(method, width, weight, *arguments)

    @contextmanager
    def _watched(self) -> Iterator[Watch]:
        watch = Watch(self.written)
        try:
            with guarded_kernels(), self.written, watch.watching():
                yield watch
        except PartIsWrong as wrong:
            if wrong.fault.cause is not Cause.OUTSIDE:
                raise
            raise PartIsWrong(replace(wrong.fault, reason=LOOK_AT_MASKS)) from None
        self.launched += watch.launched
        for launched in watch.launched:
            fault = launched.fault()
            if fault is not None:
                raise PartIsWrong(fault)

    def seen(self) -> OrderSeen:
        programs = [program for launched in self.launched for program in launched.programs]
        late: dict[tuple[int, str, str], str] = {}
        again: dict[tuple[int, str, str], str] = {}
        for n, launched in enumerate(self.launched):
            for program in launched.programs:
                if program.stored:
                    late |= {(n, launched.kernel, name): program.late_lines[name] for name in program.asked_late}
                again |= {(n, launched.kernel, name): line for name, line in program.again.items()}
        return OrderSeen(
            plain=self.plain,
            held=sum(not launched.early for launched in self.launched),
            late=_named(late),
            again=_named(again),
            silent=sum(program.stored and (not program.starts or program.late_start) for program in programs),
            waits=sum(max(0, program.waits - 1) for program in programs),
            starts=sum(max(0, program.starts - 1) for program in programs),
        )


def _named(found: dict[tuple[int, str, str], str]) -> tuple[tuple[str, str, str], ...]:
    """(kernel, tensor, line) of each (launch, kernel, tensor) -> line."""
    return tuple((kernel, tensor, line) for (_, kernel, tensor), line in found.items())


class OrderOracle(OpsOracle):
    """For a part `ops` with kernels that may start early."""

    unknown = "look at the pointers and the masks, and at what a round of the loop leaves for the next one"

    def __init__(self, learner: Learner, sizes: Sizes, guard: GuardedOps | None = None) -> None:
        if not INTERPRETED:
            raise CannotTry(NOT_INTERPRETED if TRITON_AVAILABLE else NO_TRITON)
        super().__init__(learner, sizes, guard)
        self.ordered = self.guard if isinstance(self.guard, OrderedOps) else OrderedOps(self.guard, Written())
        self.guard = self.ordered
        self.ops = JudgedOps(self.guard, self.log, self.judge)

    def _begin(self, batch: Sequence[Tracked]) -> None:
        super()._begin(batch)
        self.ordered.begin()

    def _attention(self, batch: Sequence[Tracked], keys_values: list[list[Tensor]]) -> Callable[..., Tensor]:
        """Attention is a kernel as well: what it writes is noted."""
        attend = super()._attention(batch, keys_values)

        def noted(layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with self.ordered.written:
                return attend(layer_idx, q, k, v)

        return noted

    def ops_seen(self) -> OrderSeen:
        return self.ordered.seen()
