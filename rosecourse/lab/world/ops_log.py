"""What the operations of a layer cost: torch operations that move data, where the given `add_norm` is a single one, and
launches of kernels, which count as one each.

On a CPU `add_norm` is two operations of PyTorch, and on a GPU it is one kernel. It is known by its code, wherever it is
called from, and what it is called with is looked at: the kernel reads memory that the CPU's form would not read.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from ...decode.ops import MULTIPLE
from ...kernels.reference import add_norm
from ...measure.counters import DispatchMode
from .causes import Cause
from .fault import Fault, PartIsWrong
from .ops_launches import Launches
from .ops_poison import poison
from .runner_log import NO_DATA, moves_data

METHODS = ("embed", "norm_linear", "norm_linear_gelu", "linear_add", "logits")
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "mv", "addmv", "linear")


@dataclass(frozen=True)
class OpsSeen:
    """What was counted in a step.

    operations: that move data. each: operations of a call of each method, the most of all its calls. columns: of the
    product that makes the logits, where these are no multiple of 256; 0 where they are. kept: copies of the embedding
    that the part holds. times_read: how often a launch has read the largest weights, the most of all launches.
    """

    operations: int = 0
    each: tuple[tuple[str, int], ...] = ()
    columns: int = 0
    kept: int = 0
    times_read: int = 0


NO_OPS = OpsSeen()


class OpsLog:
    """What was seen since `begin`. calls: of each method. operations: of each method, in all its calls."""

    def __init__(self, large: int | None = None) -> None:
        """large: of tensors with more numbers, as of `Launches`."""
        self.large = large
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        self.calls: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.most: dict[str, int] = {}
        self.columns = self.times_read = 0

    @contextmanager
    def calling(self, method: str) -> Iterator[None]:
        """In here a method of the part runs."""
        launches = Launches(self.large)
        mode = _Counting(launches)
        with launches.counted(), mode:
            yield
        if mode.fault is not None:
            raise PartIsWrong(mode.fault)
        operations = mode.operations + launches.number
        self.calls[method] += 1
        self.operations[method] += operations
        self.most[method] = max(self.most.get(method, 0), operations)
        self.times_read = max(self.times_read, launches.times_read)
        if method == "logits":
            self.columns = max((columns for columns in mode.columns if columns % MULTIPLE), default=0)

    def seen(self, kept: int = 0) -> OpsSeen:
        return OpsSeen(self.operations.total(), tuple(sorted(self.most.items())), self.columns, kept, self.times_read)


class LoggedOps:
    """Operations of which a log is kept."""

    def __init__(self, ops: Any, log: OpsLog) -> None:
        self._ops, self._log = ops, log

    def __getattr__(self, method: str) -> Any:
        function = getattr(self._ops, method)

        def call(*arguments: Any) -> Any:
            with self._log.calling(method):
                return function(*arguments)

        return call if method in METHODS else function


class _Counting(DispatchMode):
    """Counts operations that move data, and all those of one `add_norm` as one; none in a launch."""

    def __init__(self, launches: Launches) -> None:
        super().__init__()
        self.launches = launches
        self.operations = 0
        self.columns: list[int] = []  # of products
        self.fault: Fault | None = None
        self._added: FrameType | None = None  # of the `add_norm` that was counted last

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.launches.under_way:
            return func(*args, **kwargs)
        if func.has_kernel_for_dispatch_key(torch.DispatchKey.CompositeImplicitAutograd):
            with self:
                return func.decompose(*args, **kwargs)
        if moves_data(func):
            frame = _add_norm_under_way()
            self.operations += frame is None or frame is not self._added
            if frame is not None and frame is not self._added:
                self._added = frame
                self.fault = self.fault or _wrong_arguments(frame.f_locals)
        made = func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        if name in NO_DATA:
            poison(made)
        if name in PRODUCTS:
            self.columns.append(made.shape[-1])
        return made


def _add_norm_under_way() -> FrameType | None:
    """The call of `add_norm` from which an operation comes; None for one that comes from elsewhere."""
    frame = inspect.currentframe()
    while frame is not None and not _is_add_norm(frame):
        frame = frame.f_back
    return frame


def _is_add_norm(frame: FrameType) -> bool:
    """Whether it is a call of `add_norm` itself, and not of its code with other functions in it."""
    return frame.f_code is add_norm.__code__ and frame.f_globals is add_norm.__globals__


def _wrong_arguments(given: dict[str, Any]) -> Fault | None:
    """What `add_norm` is called with that its kernel would read beside; None if all is well."""
    x, delta, C = given["x"], given["delta"], len(given["weight"])
    for name, tensor in (("x", x), ("delta", delta)):
        if tensor.dim() != 2 or tensor.shape != (len(x), C) or not tensor.is_contiguous() or tensor.dtype != x.dtype:
            what = (
                f"`add_norm` is called with a {name} {list(tensor.shape)} of {tensor.dtype} with strides "
                f"{tensor.stride()}, beside a norm of {C} numbers"
            )
            reason = "its kernel reads N rows of C numbers each from x and from delta, one behind another, of one dtype"
            return Fault(what, reason=reason, cause=Cause.OUTSIDE)
    return None
