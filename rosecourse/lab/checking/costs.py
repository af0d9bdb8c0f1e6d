"""What a step costs, counted beside the course's part in the same step: a lesson's idea is a list of bounds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import FrameType, FunctionType
from typing import Any, NamedTuple

from torch import Tensor, equal, int32
from torch.utils._pytree import tree_leaves

from ...measure.counters import TRITON_LAUNCHES, DispatchMode
from .pool import Live, Pool, Sizes
from .pool_stories import PoolStories

WRITERS = ("append_token", "append_token_batch", "write", "_copy_block", "write_tokens")  # of the course: their lines
BLANK = ("zeros", "ones", "empty", "full", "empty_strided")  # of torch
FROM_LISTS = ("array", "fromiter", "from_iter")  # NumPy's functions that make an array of a list


@dataclass(frozen=True)
class Step:
    """A step that is counted. words: which it is. lengths: of its sessions, in tokens, when it begins.

    forks: so many of the sessions are forked just before it; the forks are not in it. parted:
    so many were forked before the step before, and have parted since. joins, leave: sessions that are
    in it and were not in the step before, or the other way round. order: of the batch, the step of a slice.
    """

    words: str
    lengths: tuple[int, ...]
    forks: int = 0
    parted: int = 0
    joins: int = 0
    leave: int = 0
    order: int = 1
    layers: int = 3
    block_size: int = 8
    any_batch: int = Sizes.any_batch
    whole_batch: int | None = None

    @property
    def half(self) -> Step:
        return replace(self, lengths=self.lengths[: len(self.lengths) // 2], forks=self.forks // 2)

    def sizes(self) -> Sizes:
        return Sizes(
            self.block_size, self.layers, 2, 4, 200, 128, "float32", self.any_batch, self.whole_batch, shuffle=1
        )


@dataclass
class Seen:
    """What a step does. calls: of `append_token`. stores: how often K and V in the cache have changed.

    operations: of torch that make numbers. arrays: of NumPy that are made of lists. launches: of kernels. instructions:
    of Python, in the files of the part's class. row_tensors: of K and V, outside of the cache. integers: tensors of
    integers; derived: those of them that are computed of others; all by the addresses of their memory, which they keep.
    """

    calls: int = 0
    stores: int = 0
    operations: int = 0
    arrays: int = 0
    launches: int = 0
    instructions: int = 0
    row_tensors: dict[int, Tensor] = field(default_factory=dict)
    integers: dict[int, Tensor] = field(default_factory=dict)
    derived: dict[int, Tensor] = field(default_factory=dict)
    blank: set[int] = field(default_factory=set)  # of them, those that begin as one number everywhere
    earlier: Seen | None = None  # the same step once before

    @property
    def rows(self) -> int:
        return len(self.row_tensors)

    @property
    def no_launch(self) -> bool:
        return self.launches == 0

    @property
    def index_tensors(self) -> int:
        return len(self.integers.keys() - self.derived.keys())

    @property
    def uploaded(self) -> int:
        """Bytes of the tensors that come of Python's numbers."""
        return sum(self.integers[key].nbytes for key in self.integers.keys() - self.derived.keys() - self._known)

    @property
    def _known(self) -> set[int]:
        return {*self.earlier.integers} if self.earlier else set()

    @property
    def built(self) -> int:
        """Tensors and arrays of integers that come of Python's numbers, and were not there in the step before."""
        return self.arrays + len(self.integers.keys() - self.derived.keys() - self.blank - self._known)


class Watch(DispatchMode):
    """Counts in its block what a part does. pool: in which it works; files: where its code stands."""

    def __init__(self, pool: Pool, files: frozenset[str]) -> None:
        super().__init__()
        self.pool, self.files, self.seen = pool, files, Seen()
        self.row = pool.sizes.heads * pool.sizes.head_dim
        self.first = pool.caches[..., 0].view(int32)  # float32 by its bits: a NaN equals itself
        self.known = self.first.clone()
        self.in_launch = self.looks = False

    def __enter__(self) -> Any:
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        sys.settrace(None)
        sys.setprofile(None)
        super().__exit__(*error)
        self._look()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not (self.in_launch or self.looks):
            given, made = ([t for t in tree_leaves(these) if isinstance(t, Tensor)] for these in (args, result))
            self._count(func.overloadpacket.__name__, "out" in (kwargs or {}), given, made)
        return result

    def _count(self, name: str, out: bool, given: list[Tensor], made: list[Tensor]) -> None:
        old = {_memory(t) for t in given}
        new = [t for t in made if _memory(t) not in old]
        self.seen.operations += bool(name.endswith("_") or out or new)
        from_integers = any(_is_index(t) for t in given)
        for t in (*given, *made):
            if _is_index(t):
                computed = from_integers and _memory(t) not in old
                (self.seen.derived if computed else self.seen.integers).setdefault(_memory(t), t)
        if name.removeprefix("new_").removesuffix("_like") in BLANK:
            self.seen.blank.update(map(_memory, new))
        for t in new:
            if t.is_floating_point() and t.numel() >= self.row:
                self.seen.row_tensors.setdefault(_memory(t), t)

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and frame.f_code.co_filename in self.files and arg.__name__ in FROM_LISTS:
            self.seen.arrays += 1

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if event == "call":
            self.seen.calls += code.co_name == "append_token"
            if code.co_qualname in TRITON_LAUNCHES and not self.in_launch:
                return self._launch()
        if self.in_launch:
            return None
        own = code.co_filename in self.files
        if not own and code.co_name not in WRITERS:
            return self._trace if event == "call" and "rosecourse" in code.co_filename else None
        frame.f_trace_opcodes = own
        self.seen.instructions += event == "opcode"
        if event != "opcode":
            self._look()
        return self._trace

    def _launch(self) -> Any:
        self._look()
        self.seen.launches += 1
        self.in_launch = True

        def leave(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "return":
                self.in_launch = False
                self._look()
            return leave

        return leave

    def _look(self) -> None:
        self.looks = True
        if not equal(self.known, self.first):
            self.seen.stores += 1
            self.known = self.first.clone()
        self.looks = False


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_index(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dim() > 0


def watched(stories: PoolStories, part: type, step: Step) -> Seen:
    engine = stories.model(part, stories.cache, step.sizes(), stories.device)
    pool = engine.pool
    steps_before = int(min(step.lengths) > 0)
    batch = [pool.start(length - steps_before) for length in step.lengths]
    for live in batch:
        engine.started(live)

    for n in range(step.parted):
        engine.started(pool.fork(batch[n]), batch[n])

    def one_step(batch: list[Live]) -> Seen:
        watch = Watch(pool, _files_of(part))
        engine.around = lambda: watch
        engine.step(batch)
        return watch.seen

    earlier = one_step(batch[step.joins :]) if steps_before else None
    for n in range(step.forks):
        parent = batch[(3 + n) % len(batch)]
        engine.started(pool.fork(parent), parent)
    return replace(one_step(batch[step.leave :: step.order]), earlier=earlier)


def _files_of(part: type) -> frozenset[str]:
    methods = [value for base in part.__mro__ for value in vars(base).values()]
    return frozenset(value.__code__.co_filename for value in methods if isinstance(value, FunctionType))


Cost = Callable[[Any], Any]  # a step -> what a part does in it


class Bound(NamedTuple):
    """What a step may cost: as much as the course's part, and `spare` more. words: what is counted, after a number."""

    words: str
    steps: tuple[Any, ...]
    amount: str | Callable[..., int]  # an attribute of what is seen in a step, or a function of all that is
    spare: int = 0

    def of(self, cost: Cost, step: Any) -> int:
        return int(getattr(cost(step), self.amount) if isinstance(self.amount, str) else self.amount(cost, step))


def more_than_the_course(mine: Cost, theirs: Cost, bounds: tuple[Bound, ...]) -> Iterator[str]:
    """What a part has more of than the course's, a sentence each."""
    for bound in bounds:
        for step in bound.steps:
            found, most = bound.of(mine, step), bound.of(theirs, step)
            if found > most + bound.spare:
                yield f"{bound.words} in a step of {step.words}: {found}; with the course's part: {most}"
                break


def longer(cost: Cost, step: Step) -> int:
    """Instructions more than the same step has whose lists are shorter by `LONGER` blocks."""
    shorter = replace(step, lengths=tuple(length - 8 * LONGER for length in step.lengths))
    return cost(step).instructions - cost(shorter).instructions


def growth(cost: Cost, step: Step) -> int:
    return max(0, cost(step).operations - cost(step.half).operations)


N, GATED, LONGER = 12, 4, 8
INSIDE = Step(f"{N} sessions inside their blocks", tuple(2 + i % 6 + 8 * (i % 3) for i in range(N)))
NEARLY_FULL = Step(f"{N} sessions, some of whose blocks are full", tuple(8 - i % 2 + 8 * (i % 3) for i in range(N)))
SAME_SLOT = Step(f"{N} sessions at one slot", tuple(3 + 8 * (i % 3) for i in range(N)))
FULL = Step(f"{N} sessions with full blocks", tuple(8 + 8 * (i % 3) for i in range(N)))
INSIDE_FORKED = replace(INSIDE, words=f"{INSIDE.words}, three of them shared", forks=3)
FEW = Step("5 sessions inside their blocks", (3, 19, 18, 40, 9), block_size=16)
FEW_FULL = Step("5 sessions with full blocks", (16, 32, 16, 48, 32), block_size=16)
ALONE, ALONE_FULL = Step("1 session inside its block", (11,)), Step("1 session with a full block", (16,), block_size=1)
PARTED = replace(INSIDE, words=f"{INSIDE.words}, behind blocks that others own too", parted=6)
FIRST = Step(f"{N} sessions without a block", (0,) * N)
SAME_SLOT_FORKED = replace(SAME_SLOT, words=f"{SAME_SLOT.words}, two of them shared", forks=2)
FULL_SHARED = replace(FULL, words=f"{FULL.words}, three of them shared", forks=3)


def with_gates(step: Step, any_batch: int, whole_batch: int | None) -> Step:
    """The first sessions of a step, where kernels take batches from these thresholds on."""
    gates = f"kernels from {any_batch}" + ("" if whole_batch is None else f", for whole batches from {whole_batch}")
    words = f"{GATED}{step.words.removeprefix(str(N))} ({gates} on)"
    return replace(
        step, words=words, lengths=step.lengths[:GATED], layers=1, any_batch=any_batch, whole_batch=whole_batch
    )
