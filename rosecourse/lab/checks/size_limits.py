"""Is a part right at some sizes and wrong at others? One story is played at many, one of them changed at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..world.causes import Cause
from ..world.edge_stories import low_bits_alike, slots_apart
from ..world.fault import Fault, PartIsWrong
from ..world.oracle import Oracle
from ..world.pool import NEVER_FULL, Sizes
from .trial import Trial


@dataclass(frozen=True)
class Probe:
    """Sizes at which the story is played. batch: sessions of a step, at least 4. row_blocks: of a session as long as it
    may be, which none is: the longest has two less."""

    batch: int = 6
    block_size: int = 4
    num_blocks: int = 60
    heads: int = 2
    head_dim: int = 4
    layers: int = 2
    row_blocks: int = 4

    @property
    def row(self) -> int:
        return self.heads * self.head_dim


BASE = Probe()
OTHERS = (Probe(heads=3, head_dim=8), Probe(block_size=8), Probe(batch=5))  # where nothing is large either
ROWS = tuple(Probe(head_dim=size) for size in (16, 32, 64, 128))
BLOCKS = tuple(Probe(block_size=size) for size in (8, 16, 32, 64))
MORE_HEADS = 3  # what is right at one size alone is so with any number of heads


def halfway(right: int, wrong: int) -> int:
    return (right + wrong) // 2


def doubled(right: int, wrong: int) -> int:
    return 2 * right if 2 * right < wrong else right


@dataclass(frozen=True)
class Dimension:
    """A size that may have a limit. at(n): the probe of that size. of: that of a pool and its largest batch.

    between: the size to try next, when one is right and a larger one wrong; the right one again if there is none.
    """

    words: str
    at: Callable[[int], Probe]
    of: Callable[[Sizes], int]
    start: int
    between: Callable[[int, int], int] = halfway


DIMENSIONS = (
    Dimension("slots in a block", lambda n: Probe(block_size=n), lambda s: s.block_size, BASE.block_size, doubled),
    Dimension("blocks in a layer", lambda n: Probe(num_blocks=n), lambda s: s.num_blocks, BASE.num_blocks),
    Dimension("numbers in a head", lambda n: Probe(head_dim=n), lambda s: s.head_dim, BASE.head_dim),
    Dimension("heads", lambda n: Probe(heads=n), lambda s: s.heads, BASE.heads),
    Dimension("heads of 64 numbers", lambda n: Probe(heads=n, head_dim=64), lambda s: s.heads, 1),
    Dimension("layers", lambda n: Probe(layers=n), lambda s: s.layers, BASE.layers),
    Dimension("blocks of a session", lambda n: Probe(row_blocks=n + 2), lambda s: s.max_seq_len // s.block_size, 4),
    Dimension("sessions in a step", lambda n: Probe(batch=n), lambda s: MOST_SESSIONS, BASE.batch),
)
MOST_SESSIONS = 128


def limit_of(trial: Trial, sizes: Sequence[Sizes], fault: Fault) -> str:
    """From which size on a part is wrong, in words; empty if that is not what is wrong with it.

    sizes: of the scenarios in which it is wrong.
    """
    if _is_wrong(trial, BASE):
        return _right_at_one_size(trial, fault)
    if any(_is_wrong(trial, probe) for probe in OTHERS):
        return ""
    if fault.cause is Cause.STATE_KEPT and any(map(_is_small, sizes)):  # it came with an address, by chance
        return ""
    for dimension in DIMENSIONS:
        most = max(map(dimension.of, sizes))
        begins = dimension.at(dimension.start)
        if most > dimension.start and _is_wrong(trial, dimension.at(most)):
            limit = "" if begins != BASE and _is_wrong(trial, begins) else _from_where(trial, dimension, most)
            if limit:
                return limit
    return ""


def _is_small(sizes: Sizes) -> bool:
    """Whether no size of a pool is beyond those at which the story is played first."""
    return (
        sizes.block_size <= BASE.block_size
        and sizes.num_blocks <= BASE.num_blocks
        and sizes.heads <= BASE.heads
        and sizes.head_dim <= BASE.head_dim
    )


def _right_at_one_size(trial: Trial, fault: Fault) -> str:
    if trial.keeps_rows or fault.cause is Cause.HALF_WRITTEN:  # what is kept by an address is right by chance
        return ""
    if only := _only_right(trial, BLOCKS):
        return f"everything is right with blocks of {only.block_size} slots, and with no other size of a block"
    if only := _only_right(trial, ROWS):
        return f"everything is right with heads of {only.head_dim} numbers, and with no other size of a head"
    return ""


def _only_right(trial: Trial, probes: Sequence[Probe]) -> Probe | None:
    right = [probe for probe in probes if not _is_wrong(trial, probe)]
    if len(right) != 1 or _is_wrong(trial, replace(right[0], heads=MORE_HEADS)):
        return None
    return right[0]


def _from_where(trial: Trial, dimension: Dimension, most: int) -> str:
    """most: a size at which the part is wrong, where at the start of the dimension it is right."""
    right, wrong = dimension.start, most
    while (middle := dimension.between(right, wrong)) > right:
        if _is_wrong(trial, dimension.at(middle)):
            wrong = middle
        else:
            right = middle
    more = [n for n in (2 * right, 4 * right) if wrong < n <= most]
    if not all(_is_wrong(trial, dimension.at(n)) for n in more):  # it has not to do with how large something is
        return ""
    probe = dimension.at(right)
    row = f", {probe.row} numbers in a row" if "head" in dimension.words else ""
    return f"everything is right up to {right} {dimension.words}{row}, and wrong from {wrong} on"


def _is_wrong(trial: Trial, probe: Probe) -> bool:
    sizes = Sizes(
        layers=probe.layers,
        heads=probe.heads,
        head_dim=probe.head_dim,
        block_size=probe.block_size,
        num_blocks=max(probe.num_blocks, probe.row_blocks * probe.batch + 2),
        max_seq_len=probe.row_blocks * probe.block_size,
        max_batch_size=max(16, probe.batch),
        device=trial.device,
        gates=(1, None) if trial.kernels_on else (NEVER_FULL, None),
    )
    try:
        _story(trial.course.world.oracle(trial.learner, sizes), probe.batch)
        for story in (low_bits_alike, slots_apart):
            story(trial.course.world.oracle(trial.learner, sizes))
    except PartIsWrong:
        return True
    except Exception:  # the pool cannot be played at these sizes, or cannot be read any more: nothing is known
        return False
    return False


def _story(oracle: Oracle, n: int) -> None:
    """n sessions step, on the last blocks of the pool: at one slot, then at two; a few also past a block's end, and two
    of these share their last blocks with children. Where sessions may be long, these are, but for their last block."""
    for free in oracle.layout.free_lists(oracle.kv):
        free.sort()  # the last of them is the next to be taken
    size = oracle.sizes.block_size
    before = oracle.sizes.max_seq_len - BASE.row_blocks * size
    batch = [oracle.start(before + max(0, size - 3)) for _ in range(n)]
    oracle.step(*batch)
    oracle.step(*batch[::2])
    oracle.step(*batch)
    if n > BASE.batch:
        return
    oracle.step(*batch)
    children = [oracle.fork(parent) for parent in batch[:2]]
    oracle.step(*children, *batch[2:])
    oracle.step(*reversed(batch))
