"""The learner's part beside the course's: does it cost more in some step than the lesson's idea leaves?

A part passes that costs no more than the course's part, but for what a cost lets it spare; one that costs less passes
too. What runs in these steps also tells whether the part is the learner's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from ...lessons import LESSONS, Lesson
from ..course import COURSES
from ..course.costs import LAUNCHES, Idea, Seen, ideas, launches
from ..course.form import Course
from ..world.situations import Situation
from .observing import observe, observe_course
from .own_process import Report
from .own_work import not_its_own
from .trial import Trial

Asked = tuple[Lesson, Idea]
NOTHING_LAUNCHED = "no Triton kernel is launched in any step that is counted"


@dataclass(frozen=True)
class Comparison:
    """What came of it.

    missing, partly, hint, not_own: as in a verdict. counted: what there is never more of than the lesson allows, in
    words.
    """

    missing: tuple[str, ...] = ()
    partly: bool = False
    hint: str = ""
    not_own: tuple[str, ...] = ()
    counted: str = ""


def compare(trial: Trial, report: Report) -> Comparison:
    """Count the learner's part in all situations of the lesson, and of those before it in the same world.

    The first lesson of which something is missing is enough: the others build on it. Raises `PartIsWrong` if a step
    goes wrong.
    """
    groups = ideas_until(trial)
    seen: dict[Situation, tuple[Seen, Seen]] = {}  # the learner's, and the course's
    words: list[str] = []  # in the end those of the last lesson that could be counted
    report("begin", "kinds of steps", len({idea.situation for group in groups for _, idea in group}))
    for group in groups:
        for at in dict.fromkeys(idea.situation for _, idea in group):
            if at not in seen:
                seen[at] = _seen_beside(trial, at)
                report("done")
        words = [idea.cost.many for _, idea in group]
        lacking = _lacking(trial, group, seen)
        if lacking:
            return replace(lacking, not_own=_not_its_own(trial, seen))
    if trial.kernels_on and not any(launches(mine) for mine, _ in seen.values()):
        return Comparison(missing=(NOTHING_LAUNCHED,), not_own=_not_its_own(trial, seen))
    where = f"counted in {len(seen)} kinds of steps, never more than the lesson allows: "
    return Comparison(counted=where + ", ".join(dict.fromkeys(words)), not_own=_not_its_own(trial, seen))


def _not_its_own(trial: Trial, seen: dict[Situation, tuple[Seen, Seen]]) -> tuple[str, ...]:
    return not_its_own(trial, (mine for mine, _ in seen.values()))


def _seen_beside(trial: Trial, at: Situation) -> tuple[Seen, Seen]:
    """A step of the learner's part, and one of the course's."""
    mine = observe(trial.learner, trial.course.world, at, trial.device)
    return mine, observe_course(trial.course.ends_as(trial.rung.after), trial.course.world, at, trial.device)


def _lacking(trial: Trial, group: list[Asked], seen: dict[Situation, tuple[Seen, Seen]]) -> Comparison | None:
    """What the learner's part has more of than the course's; None if nothing."""
    missing: dict[str, str] = {}  # words -> what is said; the first situation of each cost says enough
    hints: list[str] = []
    met: list[Idea] = []
    for rung, idea in group:
        mine, right = seen[idea.situation][0], idea.cost.count(seen[idea.situation][1])
        found = idea.cost.count(mine)
        if found <= right + idea.cost.spare:
            met.append(idea)
        elif idea.cost.words not in missing:
            missing[idea.cost.words] = idea.told(found, right, rung.number)
            hints.append(idea.cost.hint(idea.situation, mine, right))
    if not missing:
        return None
    partly = group[0][0] is trial.rung and any(_is_the_lessons(trial, idea) for idea in met)
    return Comparison(tuple(missing.values()), partly, next(filter(None, hints), ""))


def _is_the_lessons(trial: Trial, idea: Idea) -> bool:
    """Whether the part before the lesson costs more in the same situation than a part may."""
    course = trial.course
    before, after = (
        observe_course(part, course.world, idea.situation, trial.device)
        for part in (course.begins_as(trial.rung.before), course.ends_as(trial.rung.after))
    )
    return idea.cost.count(before) > idea.cost.count(after) + idea.cost.spare


# -- what is asked ----------------------------------------------------------------------------------------------------


def ideas_until(trial: Trial) -> list[list[Asked]]:
    """The ideas of the lesson, and of the lessons before it in the same world, lesson by lesson.

    Where several lessons count the same in a situation, the last of them does. What must not be launched comes first
    of all: it takes long where kernels are interpreted.
    """
    latest: dict[tuple[Situation, str], Asked] = {}  # (situation, the words of a cost) -> who asks for it
    for rung in LESSONS[: LESSONS.index(trial.rung) + 1]:
        course = COURSES.get(rung.number)
        if course and course.world is trial.course.world:
            for idea in _ideas_of(rung, course, trial):
                latest.pop((idea.situation, idea.cost.words), None)
                latest[idea.situation, idea.cost.words] = rung, idea
    launched = [asked for asked in latest.values() if asked[1].cost is LAUNCHES]
    others = [asked for asked in latest.values() if asked[1].cost is not LAUNCHES]
    by_lesson = [list(group) for _, group in groupby(others, key=lambda asked: asked[0].number)]
    return [launched, *by_lesson] if launched else by_lesson


def _ideas_of(rung: Lesson, course: Course, trial: Trial) -> Iterator[Idea]:
    """A lesson's ideas that can be counted here.

    To those of a lesson with kernels comes that a part launches one wherever the lesson's own part does.
    """
    here = [idea for idea in course.ideas if trial.kernels_on or not idea.situation.with_kernels]
    if rung.kernels and trial.kernels_on:
        situations = dict.fromkeys(idea.situation for idea in here)
        launched = {
            at: launches(observe_course(course.ends_as(rung.after), course.world, at, trial.device))
            for at in situations
        }
        yield from ideas((at for at in situations if launched[at]), course.no_launch)
    yield from here
