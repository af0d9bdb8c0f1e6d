"""The part `ops` of lesson 071: kernels that start early, and the order in each program of them.

The agreement between kernels that start early, which is kept by every kernel of a step:

* A kernel may start once all programs of the one before it have said so, or have ended. What that one writes may not be
  there yet, so that it is read after the wait. Nothing is stored before the wait, for others may still read there.
* A program lets the next kernel start after its own wait. Then, whenever a kernel runs, the kernel two before it has
  ended, and what is so old may be read before the wait.
* Every program waits, also one without work: a kernel that has ended says that the kernels before it have ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ....kernels import INTERPRETED
from ....measure.counters import DispatchMode
from ..early_start import told_to
from ..facts import Wrong
from ..kernel_memory import Access, Listener, heard_by
from ..operations_seen import moves_data
from ..search import place_now
from .operations import KernelOperations, Shape, Stream

EARLY = "launch_pdl"  # Triton's option of a launch that may start before the kernel before it has ended
A_SIXTEENTH = 16
NOT_INTERPRETED = (
    "the order within a kernel. It is seen in Triton's interpreter alone: set TRITON_INTERPRET=1 in the environment "
    "before rosecourse is imported"
)


class Places:
    """Places in memory: whole tensors, and addresses of single numbers."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []  # first byte, and the one behind the last
        self._addresses: list[np.ndarray] = []

    def add(self, *others: Tensor | np.ndarray | Places) -> None:
        for other in others:
            if isinstance(other, Places):
                self._spans += other._spans
                self._addresses += other._addresses
            elif isinstance(other, Tensor):
                if other.numel():
                    last = sum((size - 1) * step for size, step in zip(other.shape, other.stride(), strict=True))
                    start = other.data_ptr()
                    self._spans.append((start, start + (last + 1) * other.element_size()))
            else:
                self._addresses.append(other)

    def has(self, addresses: np.ndarray) -> np.ndarray:
        """Which of some addresses are among the places."""
        found = np.zeros(len(addresses), dtype=bool)
        for start, end in self._spans:
            found |= (addresses >= start) & (addresses < end)
        for some in self._addresses:
            found |= np.isin(addresses, some)
        return found


@dataclass
class Program:
    """One program of a launch, until now. early, late: tensor -> numbers of it that are read before the wait, and those
    after it that were there before the step. asked: where it reads before the wait; again: what of it after it, too."""

    number: tuple[int, ...]
    waits: int = 0
    starts: int = 0
    stored: bool = False
    starts_late: bool = False  # the next kernel may start, and all but the end is done
    early: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    asked: dict[str, list[np.ndarray]] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)

    @property
    def asked_late(self) -> set[str]:
        """The tensors of which less than a sixteenth is read before the wait."""
        late = self.late.items() if self.stored else ()
        return {name for name, many in late if self.early.get(name, 0) * A_SIXTEENTH < many}


class Launch:
    """A launch, program by program. early: whether it may start early. newest: what the kernel before has written."""

    def __init__(self, kernel: str, early: bool, newest: Places) -> None:
        self.kernel, self.early, self.newest = kernel, early, newest
        self.programs: list[Program] = []
        self.stored = Places()
        self.wrong = ""  # the first thing

    def hear(self, what: str) -> None:
        """`wait` or `start`, from the program under way."""
        program = self.programs[-1]
        if what == "wait":
            program.waits += 1
            return
        if not program.waits:
            self._blame("lets the next kernel start before its own wait; it must wait first")
        program.starts += 1
        program.starts_late |= program.stored and program.starts == 1

    def read(self, access: Access, tensor: str, old: np.ndarray) -> None:
        """old: which of the addresses were there before the step."""
        program, many = self.programs[-1], int(old.sum())
        if program.waits or not self.early:
            if many:
                program.late[tensor] = program.late.get(tensor, 0) + many
            if program.waits and any(np.isin(access.addresses, one).any() for one in program.asked.get(tensor, ())):
                program.again.add(tensor)
            return
        if self.newest.has(access.addresses).any():
            self._blame(f"reads `{tensor}` before its wait; the kernel before writes it, so that it must wait first")
        program.early[tensor] = program.early.get(tensor, 0) + len(access.addresses)
        program.asked.setdefault(tensor, []).append(access.addresses[old])

    def store(self, access: Access, tensor: str) -> None:
        program = self.programs[-1]
        if not program.waits:
            self._blame(f"stores into `{tensor}` before its wait; the kernels before may still read there")
        program.stored = True
        self.stored.add(access.addresses)

    def ended(self) -> None:
        for program in self.programs:
            if not program.waits:
                self._blame("ends without a wait; each program must wait once, also one without work", program, "")

    def _blame(self, what: str, program: Program | None = None, place: str | None = None) -> None:
        number = (program or self.programs[-1]).number
        place = place_now() if place is None else place
        if self.early and not self.wrong:
            self.wrong = f"program {number} of `{self.kernel}` {what}{f': {place}' if place else ''}"


class Orders(Listener, DispatchMode):
    """Launches and operations of PyTorch, one after another; each of these is a kernel, too.

    newest: what the last kernel has written. step: what has been written since `begin`. launches: since then. plain:
    calls of `linear_add` without one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.newest = Places()
        self._now: Launch | None = None
        self.begin()

    def begin(self) -> None:
        """A step begins. What the last kernel of the one before has written is still the newest."""
        self.step = Places()
        self.launches: list[Launch] = []
        self.plain = 0

    @contextmanager
    def calling(self, method: str) -> Iterator[None]:
        """In here a method of the part runs. Raises `Wrong` for a wrong order in one of its launches."""
        known = len(self.launches)
        with heard_by(self), told_to(self._hear), self:
            yield
        self.plain += method == "linear_add" and len(self.launches) == known
        for launch in self.launches[known:]:
            if launch.wrong:
                raise Wrong(launch.wrong)

    def _wrote(self, places: Places) -> None:
        self.newest = places
        self.step.add(places)

    # -- what is heard ------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if self._now is None and moves_data(func):  # what the interpreter does for itself is no kernel
            places = Places()
            places.add(*(tensor for tensor in tree_leaves(made) if isinstance(tensor, Tensor)))
            self._wrote(places)
        return made

    def _hear(self, what: str) -> None:
        if self._now is not None:
            self._now.hear(what)

    def launch(self, kernel: str, options: dict[str, Any]) -> None:
        self._now = Launch(kernel, bool(options.get(EARLY)), self.newest)
        self.launches.append(self._now)

    def ended(self) -> None:
        if self._now is not None:
            self._now.ended()
            self._wrote(self._now.stored)
            self._now = None

    def program(self, number: tuple[int, ...]) -> None:
        if self._now is not None:
            self._now.programs.append(Program(number))

    def access(self, access: Access) -> None:
        if self._now is None or not len(access.addresses):
            return
        tensor = access.name_of(int(access.addresses[0]))
        if access.verb == "reads":
            self._now.read(access, tensor, ~self.step.has(access.addresses))
        else:
            self._now.store(access, tensor)

    # -- what is counted ----------------------------------------------------------------------------------------------

    @property
    def programs(self) -> list[Program]:
        return [program for launch in self.launches for program in launch.programs]

    @property
    def held(self) -> int:
        """Launches that may not start early."""
        return sum(not launch.early for launch in self.launches)

    @property
    def late(self) -> int:
        """Tensors of launches of which less than a sixteenth is read before the wait."""
        return sum(len(set().union(*(program.asked_late for program in one.programs))) for one in self.launches)

    @property
    def again(self) -> int:
        """Tensors of launches of which some numbers are read before the wait and once more after it."""
        return sum(len(set().union(*(program.again for program in launch.programs))) for launch in self.launches)

    @property
    def silent(self) -> int:
        """Programs that store before they let the next kernel start, or never let it."""
        return sum(program.stored and (not program.starts or program.starts_late) for program in self.programs)

    @property
    def waits(self) -> int:
        """Those that are one too many."""
        return sum(max(0, program.waits - 1) for program in self.programs)

    @property
    def starts(self) -> int:
        return sum(max(0, program.starts - 1) for program in self.programs)


class OrderedOperations(KernelOperations):
    """Each call of the part is watched."""

    words = "operations whose kernel may start early"
    holds = "each sum right, and in each program of each kernel the right order"

    def __init__(self, part: type, shape: Shape, device: str = "cpu") -> None:
        super().__init__(part, shape, device)
        self.orders = Orders()
        self.around = self.orders.calling

    @classmethod
    def untried(cls, kernels_on: str | None) -> str:
        return super().untried(kernels_on) or ("" if INTERPRETED else NOT_INTERPRETED)

    def embed(self, rows: int) -> Stream:
        self.orders.begin()
        return super().embed(rows)

    def seen_by(self, watch: Any) -> Orders:
        return self.orders
