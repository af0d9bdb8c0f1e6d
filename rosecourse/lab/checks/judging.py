"""A part lives through the stories, then makes tokens in whole engines, and at last its steps are counted."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import torch

from ...kernels import triton_runs_on
from ...lessons import Lesson, lesson
from ..checking.apart import STEP
from ..checking.by_value import copies_of
from ..checking.costs import Bound, Cost, more_than_the_course, watched
from ..checking.far_offsets import far_offsets
from ..checking.interrupts import look_at_interrupts
from ..checking.kernel_memory import guarded_kernels
from ..checking.layout import LAYOUTS
from ..checking.models.appends import KVAppend
from ..checking.models.operation_stories import OperationStories
from ..checking.models.operations import NO_KERNELS, Operations
from ..checking.models.part_of_a_step import PartOfAStep
from ..checking.models.stops import StopStories
from ..checking.pool_stories import PoolStories
from ..checking.search import first_wrong, outcome, smallest, told_of
from ..checking.whole_engine import same_tokens
from ..course import COURSES, course_of
from ..course.form import Course
from .verdict import Verdict


@dataclass(frozen=True)
class Trial:
    """A lesson, and the machine on which its part is tried. kernels_on: the device on which kernels run; None where the
    lesson has none, or none run here."""

    rung: Lesson
    course: Course
    kernels_on: str | None

    @property
    def device(self) -> str:
        return self.kernels_on or "cpu"

    @cached_property
    def stories(self) -> Any:
        model = self.course.world
        if issubclass(model, PartOfAStep):
            cache = next(layout.cache for layout in LAYOUTS if self.rung.after.cache is layout.kind)
            return PoolStories(model, cache, bool(self.kernels_on), self.device)
        if issubclass(model, Operations):
            return OperationStories(model, self.device)
        return model()

    def parts_with(self, part: Any) -> Any:
        world = self.course.world
        return world.engine(self.rung.after.with_(**{world.part: part}), torch.device(self.device))

    def in_an_engine(self, part: type) -> str:
        """What was compared in whole engines, in words. Raises what goes wrong."""
        whole = getattr(self.course.world, "whole", same_tokens)
        return whole(self.parts_with(part), self.device)

    def missing(self, part: type) -> Iterable[str]:
        """What its steps have more of than those of the course's part, a sentence each."""
        if hasattr(self.stories, "missing"):
            return self.stories.missing(part, self.course.beside, self.ideas)
        return more_than_the_course(cache(partial(self.watch, part)), self.costs_of_the_course, self.ideas)

    @property
    def watch(self) -> Callable[[type, Any], Any]:
        return getattr(self.stories, "watched", partial(watched, self.stories))

    @cached_property
    def costs_of_the_course(self) -> Cost:
        right = self.course.beside or getattr(self.rung.after, self.course.world.part)
        return cache(partial(self.watch, right)) if isinstance(right, type) else lambda step: right

    @property
    def ideas(self) -> tuple[Bound, ...]:
        """What is counted in this lesson, and in those before it about the same part of the same cache."""
        cache, last = self.rung.after.cache, self.rung.number
        courses = [course for n, course in COURSES.items() if n <= last and lesson(n).after.cache is cache]
        return tuple(bound for course in courses if course.world is self.course.world for bound in course.idea)


@dataclass(frozen=True)
class StoriesAlone:
    """A lesson whose part no step of an engine has."""

    stories: Any
    kernels_on: None = None


WITHOUT_AN_ENGINE = {"075": StoriesAlone(StopStories())}


def trial_of(number: str) -> Any:
    """The `Trial` of a lesson, or its `StoriesAlone`."""
    if number in WITHOUT_AN_ENGINE:
        return WITHOUT_AN_ENGINE[number]
    rung, course = lesson(number), course_of(number)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    has_kernels = rung.kernels or course.let_in or getattr(course.world, "kernels", False)
    return Trial(rung, course, device if has_kernels and triton_runs_on(torch.device(device)) else None)


def judged(part: type, number: str, note: Callable[[Any], None]) -> Verdict:
    """The verdict on a class as the part of a lesson. note: keeps the story that is being played."""
    trial = trial_of(number)
    make = copies_of(part) or (lambda: part)
    verdict = Verdict(part.__name__, number)
    alone = isinstance(trial, StoriesAlone)
    untried = "" if alone else getattr(trial.course.world, "untried", lambda kernels_on: "")(trial.kernels_on)
    if untried:
        return replace(verdict, unchecked=(untried,))
    with guarded_kernels() if trial.kernels_on == "cpu" else nullcontext():
        found = first_wrong(trial.stories, make, note)
        if found:
            return replace(verdict, wrong=smallest(trial.stories, *found, partial(outcome, trial.stories, make))[1])
        note(None)
        if alone:
            return replace(verdict, done=(f"{trial.stories.count} stories: {trial.stories.holds}",))
        return replace(verdict, **_beyond_stories(trial, make))


def _beyond_stories(trial: Trial, make: Callable[[], type]) -> dict[str, Any]:
    """What is tried of a part that is right in all stories."""
    stories = trial.stories
    done = [f"{stories.count} stories: {trial.course.world.holds}"]
    unchecked: list[str] = []
    try:
        if trial.kernels_on and trial.course.world is KVAppend:  # others are called in other ways
            far_offsets(stories, make())
        if isinstance(stories, PoolStories):
            look_at_interrupts(stories, make)
        done.append(trial.in_an_engine(make()))
        STEP.end()
        missing = list(trial.missing(make()))
    except Exception as error:
        return {"wrong": told_of(error)}
    if trial.device == "cpu":
        done.append(f"cannot be tested on a CPU: {trial.course.unseen}")
    if trial.rung.kernels and not trial.kernels_on:
        unchecked.append(NO_KERNELS)
    return {"missing": tuple(missing), "done": tuple(done), "unchecked": tuple(unchecked)}
