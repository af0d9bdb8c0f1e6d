"""What a step of operations costs: operations that move data, where `add_norm` is one, and launches of kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...decode.ops import MULTIPLE
from ...measure.counters import DispatchMode
from .kernel_memory import Access, heard_by
from .models.operations import Operations, Shape
from .operations_seen import AddNorms, Launches, moves_data

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "mv", "addmv")


@dataclass(frozen=True)
class OpStep:
    """A step that is counted. words: which it is. before: rows of the steps before it. beside: whether another engine
    has stepped in between."""

    words: str
    rows: int
    before: tuple[int, ...]
    shape: Shape
    beside: bool = False


class Moves(Launches):
    """Seen of a step. columns: of the product that makes the logits, where they are no multiple of 256; 0 where they
    are. times_read: how often a launch has read a tensor of more than `large` numbers, the most of all launches."""

    def __init__(self, large: int) -> None:
        self.large = large
        self.operations = self.columns = self.times_read = 0
        self._read: Counter[int] = Counter()  # by the launch under way: address of a tensor's memory -> bytes

    @contextmanager
    def calling(self, method: str) -> Iterator[None]:
        """In here a method of the part runs."""
        adds = AddNorms()
        mode = _Operations(self, adds)
        with heard_by(self), mode, adds:
            yield
        if method != "attention":
            self.operations += mode.number + adds.number
        if method == "logits":
            self.columns = max((columns for columns in mode.columns if columns % MULTIPLE), default=0)

    def launch(self, kernel: str, options: dict[str, Any]) -> None:
        super().launch(kernel, options)
        self.operations += 1
        self._read.clear()

    def access(self, access: Access) -> None:
        """A number that a load reads several times, as one does that keeps its lanes inside, has been read once."""
        for memory in access.launched if access.verb == "reads" else ():
            if memory.tensor.numel() > self.large:
                inside = access.addresses[(access.addresses >= memory.start) & (access.addresses < memory.end)]
                self._read[memory.start] += len(np.unique(inside)) * memory.tensor.element_size()
                self.times_read = max(self.times_read, self._read[memory.start] // (memory.end - memory.start))


class _Operations(DispatchMode):
    """Counts operations that move data. None counts in a launch or in an `add_norm`, which count as one each."""

    def __init__(self, launches: Launches, adds: AddNorms) -> None:
        super().__init__()
        self.launches, self.adds = launches, adds
        self.number = 0
        self.columns: list[int] = []  # of products

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.launches.under_way or self.adds.under_way:
            return func(*args, **kwargs)
        if func.has_kernel_for_dispatch_key(torch.DispatchKey.CompositeImplicitAutograd):
            with self:
                return func.decompose(*args, **kwargs)
        made = func(*args, **kwargs)
        self.number += moves_data(func)
        if func.overloadpacket.__name__ in PRODUCTS:
            self.columns.append(made.shape[-1])
        return made


def watched(model: type[Operations], device: str, part: type, step: OpStep) -> Any:
    """What a step of a part does."""
    played = model(part, step.shape, device)
    for rows in step.before:
        played.step(rows)
    if step.beside:
        played.other(2)
        played.step(3)
        played.other(2)
    seen = played.seen_by(Moves(64 * step.shape.width))  # more than the rows of a step
    played.step(step.rows)
    return seen


Cost = Callable[[OpStep], Any]


def operations(cost: Cost, step: OpStep) -> int:
    return int(cost(step).operations)


def columns(cost: Cost, step: OpStep) -> int:
    return int(cost(step).columns)


def times_read(cost: Cost, step: OpStep) -> int:
    return int(cost(step).times_read)


def no_launch(cost: Cost, step: OpStep) -> int:
    return int(cost(step).number == 0)
