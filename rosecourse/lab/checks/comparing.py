"""The learner's part beside the course's, in the situations of a lesson: does a step of it cost more?"""

from __future__ import annotations

from typing import Any

from ..course.costs import launches
from ..course.form import Course
from ..world.learner import Learner
from .observing import observe, observe_course

NOTHING_LAUNCHED = "no Triton kernel is launched in any step that is counted"


def lacking(course: Course, part: type, right: Any, kernels_on: str | None) -> list[str]:
    """What the learner's part has more of than the course's, a sentence for each cost. Raises `PartIsWrong`."""
    told: dict[str, str] = {}
    learner, launched = Learner(part, course.world.called_with), False
    for idea in course.ideas:
        if idea.situation.with_kernels and not kernels_on:
            continue
        device = kernels_on or "cpu"
        mine = observe(learner, course.world, idea.situation, device)
        most = idea.cost.count(observe_course(right, course.world, idea.situation, device))
        found = idea.cost.count(mine)
        launched |= launches(mine) > 0
        if found > most + idea.cost.spare:
            told.setdefault(idea.cost.words, idea.told(found, most, course.number))
    if kernels_on and not launched:
        told.setdefault("", NOTHING_LAUNCHED)
    return list(told.values())
