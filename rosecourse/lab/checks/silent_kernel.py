"""A kernel that is launched and writes nothing: it is said plainly, since whatever else is wrong follows from it."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...measure.counters import watch
from ..world.causes import Cause
from ..world.fault import Fault, PartIsWrong
from .trial import Trial

WHAT = "the kernel writes nothing: it is launched, and no K or V in the cache changes"
PROMPT = 3  # tokens
REASON = "its body is still empty, or every lane of it is masked"


def plainly(trial: Trial, faults: list[Fault]) -> list[Fault]:
    """The faults of a part; where its kernel writes nothing, that alone, with what was found of it."""
    if not trial.kernels_on or faults[0].cause is not Cause.NOTHING_WRITTEN or not _writes_nothing(trial):
        return faults
    first = faults[0]
    return [replace(first, what=WHAT, details=(first.what, *first.details), reason=REASON)]


def _writes_nothing(trial: Trial) -> bool:
    """Whether the part launches a kernel for equal sessions, in the first step of their lives, and writes nothing."""
    world = trial.course.world
    at = next((idea.situation for idea in trial.course.ideas if idea.situation.with_kernels), None)
    if at is None:
        return False
    try:
        oracle = world.oracle(trial.learner, at.sizes(trial.device))
        batch = [oracle.start(PROMPT) for _ in range(at.n)]
        oracle.make_room(batch)
        before = oracle.caches().clone()
        with watch() as counts:
            oracle.work(batch)
    except PartIsWrong:
        return False
    return counts.launches.total() > 0 and torch.equal(before.nan_to_num(), oracle.caches().nan_to_num())
