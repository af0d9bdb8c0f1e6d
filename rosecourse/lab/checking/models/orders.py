"""The part `ops` of lesson 071: kernels that start early, and the order in each program of them.

The agreement between kernels that start early, which is kept by every kernel of a step:

* A kernel may start once all programs of the one before it have said so, or have ended. What that one writes may not be
  there yet, so that it is read after the wait. Nothing is stored before the wait, for others may still read there.
* A program lets the next kernel start after its own wait. Then, whenever a kernel runs, the kernel two before it has
  ended, and what is so old may be read before the wait.
* Every program waits, also one without work: a kernel that has ended says that the kernels before it have ended.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from ....kernels import INTERPRETED
from ....measure.counters import DispatchMode
from .. import Wrong
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
Reads = dict[str, set[int]]  # tensor -> addresses of numbers that were there before the step


class Program:
    """One program of a launch, until now. said: `wait`, `start` and `store`, in their order."""

    def __init__(self, number: tuple[int, ...]) -> None:
        self.number, self.said = number, list[str]()
        self.early, self.late = Reads(), Reads()  # before the wait, and after it

    @property
    def asked_late(self) -> set[str]:
        """The tensors of which less than a sixteenth is read before the wait."""
        late = self.late.items() if "store" in self.said else ()
        return {name for name, read in late if len(self.early.get(name, ())) * A_SIXTEENTH < len(read)}

    @property
    def asked_again(self) -> set[str]:
        """The tensors of which some numbers are read before the wait and once more after it."""
        return {name for name, read in self.late.items() if read & self.early.get(name, set())}

    @property
    def is_silent(self) -> bool:
        """Whether it stores before it lets the next kernel start, or never lets it."""
        return "store" in self.said and "start" not in self.said[: self.said.index("store")]


class Launch:
    """A launch, program by program. early: whether it may start early. newest: what the kernel before has written."""

    def __init__(self, kernel: str, early: bool, newest: set[int]) -> None:
        self.kernel, self.early, self.newest = kernel, early, newest
        self.programs: list[Program] = []
        self.stored: set[int] = set()
        self.wrong = ""  # the first thing

    def say(self, what: str) -> None:
        """`wait`, `start` or `store`, from the program under way."""
        said = self.programs[-1].said
        if what == "start" and "wait" not in said:
            self._blame("lets the next kernel start before its own wait; it must wait first")
        said.append(what)

    def read(self, tensor: str, addresses: set[int], written: set[int]) -> None:
        """written: in this step."""
        program = self.programs[-1]
        before_the_wait = self.early and "wait" not in program.said
        if before_the_wait and not addresses.isdisjoint(self.newest):
            self._blame(f"reads `{tensor}` before its wait; the kernel before writes it, so that it must wait first")
        reads = program.early if before_the_wait else program.late
        reads[tensor] = reads.get(tensor, set()) | (addresses - written)

    def store(self, tensor: str, addresses: set[int]) -> None:
        if "wait" not in self.programs[-1].said:
            self._blame(f"stores into `{tensor}` before its wait; the kernels before may still read there")
        self.say("store")
        self.stored |= addresses

    def ended(self) -> None:
        for program in self.programs:
            if "wait" not in program.said and self.early and not self.wrong:
                self.wrong = f"program {program.number} of `{self.kernel}` ends without a wait; each program must wait "
                self.wrong += "once, also one without work"

    def _blame(self, what: str) -> None:
        if self.early and not self.wrong:
            place = place_now()
            self.wrong = f"program {self.programs[-1].number} of `{self.kernel}` {what}{f': {place}' if place else ''}"


class Orders(Listener, DispatchMode):
    """Launches and operations of PyTorch, one after another; each of these is a kernel, too.

    newest: where the last kernel has written. written: where since `begin`. launches: since then. plain: calls of
    `linear_add` without one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.newest: set[int] = set()
        self._now: Launch | None = None
        self.begin()

    def begin(self) -> None:
        """A step begins. What the last kernel of the one before has written is still the newest."""
        self.written: set[int] = set()
        self.launches: list[Launch] = []
        self.plain = 0

    @contextmanager
    def calling(self, method: str) -> Iterator[None]:
        """In here a method of the part runs. Raises `Wrong` for a wrong order in one of its launches."""
        known = len(self.launches)
        with heard_by(self), self:
            yield
        self.plain += method == "linear_add" and len(self.launches) == known
        for launch in self.launches[known:]:
            if launch.wrong:
                raise Wrong(launch.wrong)

    def _wrote(self, addresses: set[int]) -> None:
        self.newest = addresses
        self.written |= addresses

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if self._now is None and moves_data(func):  # what the interpreter does for itself is no kernel
            self._wrote(set().union(*(_places(one) for one in tree_leaves(made) if isinstance(one, Tensor))))
        return made

    def said(self, what: str) -> None:
        if self._now is not None:
            self._now.say(what)

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
        addresses = set(access.addresses.tolist())
        if self._now is None or not addresses:
            return
        tensor = access.name_of(int(access.addresses[0]))
        if access.verb == "reads":
            self._now.read(tensor, addresses, self.written)
        else:
            self._now.store(tensor, addresses)

    @property
    def held(self) -> int:
        return sum(not launch.early for launch in self.launches)

    def tensors(self, which: str) -> int:
        """Tensors of launches of which a program has that to say."""
        return sum(len(set().union(*(getattr(one, which) for one in launch.programs))) for launch in self.launches)

    @property
    def silent(self) -> int:
        return sum(program.is_silent for launch in self.launches for program in launch.programs)

    def too_many(self, what: str) -> int:
        """Waits or starts of programs beyond their first."""
        return sum(max(0, one.said.count(what) - 1) for launch in self.launches for one in launch.programs)


def _places(tensor: Tensor) -> range:
    """The addresses from the first number of a tensor to its last."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    start, size = tensor.data_ptr(), tensor.element_size()
    return range(start, start + (last + 1) * size if tensor.numel() else start, size)


class OrderedOperations(KernelOperations):
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
