"""One step of a part in a situation, watched: all that its costs are counted from."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from types import FrameType
from typing import Any

import numpy as np
import torch

from ...measure.counters import TRITON_LAUNCHES, watch
from ..course.costs import Seen
from ..world.fault import PartIsWrong
from ..world.learner import Learner
from ..world.oracle import Oracle
from ..world.pool import Tracked
from ..world.situations import Situation
from ..world.worlds import World

ARRAYS = ("array", "asarray", "fromiter", "stack", "from_numpy")
TENSORS = ("tensor", "as_tensor")
MAKERS = (np.array, np.asarray, np.fromiter, np.stack, torch.from_numpy, torch.tensor, torch.as_tensor)


class CountedId(int):
    """A block id that counts how often something is computed from one, as for a row of a block table."""

    computed = 0

    def __sub__(self, other: int) -> int:
        CountedId.computed += 1
        return int.__sub__(self, other)

    def __mod__(self, other: int) -> int:
        CountedId.computed += 1
        return int.__mod__(self, other)

    def __divmod__(self, other: int) -> tuple[int, int]:
        CountedId.computed += 1
        return int.__divmod__(self, other)


@lru_cache
def observe_course(part: type, world: World[Any], situation: Situation, device: str) -> Seen:
    """The same as `observe`, of a part of the course; once is enough."""
    return observe(Learner(part, world.called_with), world, situation, device)


def observe(learner: Learner, world: World[Any], situation: Situation, device: str) -> Seen:
    """One step in a situation, and the same with half as many sessions. Raises `PartIsWrong` if one goes wrong."""
    seen = []
    try:
        for n in (situation.n, situation.n // 2)[: 1 + situation.can_be_halved]:
            oracle = world.oracle(learner, situation.sizes(device))
            seen.append(observe_step(oracle, situation.batch(oracle, n)))
    except PartIsWrong as wrong:
        raise PartIsWrong(replace(wrong.fault, tried=str(situation))) from None
    return replace(seen[0], half=seen[-1].counts)


def observe_step(oracle: Oracle, batch: list[Tracked]) -> Seen:
    """One step of an oracle's part with this batch, which is watched and not judged."""
    arguments = oracle.arguments(batch, oracle.next_tokens(batch))
    unchanged = oracle.unchanged_lists(batch)
    for ids in unchanged:
        ids[:] = map(CountedId, ids)
    last = [oracle.info_in_use(ids[-1]) for t in batch for ids in t.table if ids]
    one_free = sum(info.owners == 1 and info.length == oracle.sizes.block_size - 1 for info in last)
    before = oracle.caches().clone()
    CountedId.computed = 0
    with _calls_of_makers() as made, watch() as counts:
        oracle.learner.call(oracle.part, *arguments)
    own = getattr(oracle.part, "__dict__", {}).values()
    kept = any(t.table.row_cache is not None for t in batch) or any(isinstance(x, list | dict) and x for x in own)
    return Seen(
        counts=counts,
        half=counts,
        ids=sum(map(len, unchanged)),
        translated=CountedId.computed,
        arrays=sum(made[maker] for maker in ARRAYS),
        kept=kept,
        one_free=one_free,
        launched=sum(made[name] for name in TRITON_LAUNCHES),
        copied=made["contiguous"],
        indexed=counts.list_tensors - sum(made[maker] for maker in TENSORS),
        written=not torch.equal(before.nan_to_num(), oracle.caches().nan_to_num()),
    )


@contextmanager
def _calls_of_makers() -> Iterator[Counter[str]]:
    """How often something is called that makes arrays or tensors of lists, or launches a kernel."""
    calls: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code.co_name == "__torch_function__":  # a counter, which calls it once more
            return
        if event == "c_call" and any(arg is maker for maker in MAKERS):
            calls[arg.__name__] += 1
        elif event == "c_call" and arg.__name__ == "contiguous" and isinstance(arg.__self__, torch.Tensor):
            calls["contiguous"] += not arg.__self__.is_contiguous()
        elif event == "call" and frame.f_code.co_qualname in TRITON_LAUNCHES:
            calls[frame.f_code.co_qualname] += 1

    profiler = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(profiler)
