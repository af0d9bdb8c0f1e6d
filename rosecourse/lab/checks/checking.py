"""`check`: is the learner's class the lesson's part? It is tried in a process of its own."""

import signal
from dataclasses import replace
from functools import partial
from typing import Any

from ...desk.noting import note
from ...lessons import Lesson, lesson
from ..checking.apart import Ended, run_apart
from ..checking.search import Outcome, outcome, place_in_trace, smallest
from .judging import WITHOUT_AN_ENGINE, judged, trial_of
from .verdict import PASSED, Verdict, lesson_with_a_part

LONGEST = 600.0  # seconds of a check
LONGEST_STORY = 20.0
TRIES = 10  # smaller stories of one in which a part hangs, or ends the process


def check(part: type, lesson_number: str) -> Verdict:
    """Try a class as the part that a lesson replaces. lesson_number: as on the ladder, such as "038".

    The part lives through stories over a pool in which every number is known, then makes tokens in whole engines, and
    at last its steps are counted beside those of the course's part. The smallest story in which it goes wrong is the
    verdict. Takes a few seconds on a CPU, longer where kernels are interpreted; the same class gets the same verdict.
    Once it has passed, `change` shows the lesson's diff unfolded. Raises `LessonError` for a lesson that is not there,
    or has no part to write.
    """
    rung = lesson(lesson_number) if lesson_number in WITHOUT_AN_ENGINE else lesson_with_a_part(lesson_number)
    if not isinstance(part, type):
        given = f"an object of {type(part).__name__}"
        fact = f"check wants the class itself: check(MyPart, {rung.number!r}), not {given}"
        return Verdict("this", rung.number, Outcome("", (), fact))
    verdict = judged_apart(part, rung)
    if verdict.passed:
        PASSED.add(rung.number)
        note(rung.number, "built")
    return verdict


def judged_apart(part: type, rung: Lesson) -> Verdict:
    """The verdict of another process, or what became of that; a fork cannot use CUDA."""
    trial = trial_of(rung.number)
    fork = trial.kernels_on != "cuda"
    verdict = Verdict(part.__name__, rung.number)
    try:
        found = run_apart(partial(judged, part, rung.number), fork, LONGEST)
    except Exception as error:
        if fork:
            raise
        return replace(verdict, wrong=Outcome("", (), f"the class cannot be sent to a process of its own: {error}"))
    if not isinstance(found, Ended):
        return found
    return replace(verdict, wrong=_ended(trial.stories, part, found, fork))


def _ended(stories: Any, part: type, found: Ended, fork: bool) -> Outcome:
    """A part that hung, crashed or ended the process, in the smallest story in which it does."""

    def try_it(story: Any) -> Outcome | None:
        told = run_apart(lambda note: outcome(stories, lambda: part, story, note), fork, LONGEST_STORY)
        return _told(told, story) if isinstance(told, Ended) else told

    story = found.noted
    if story is None or not fork:
        return _told(found, story)
    again = try_it(story)
    return smallest(stories, story, again, try_it, TRIES)[1] if again else _told(found, story)


def _told(found: Ended, story: Any) -> Outcome:
    fact = f"the part ended the process, with exit code {found.code}"
    if found.hung:
        fact = "the part was still at work after the time that a step may take: it hangs"
    elif found.code < 0:
        fact = f"the part crashed the process ({signal.Signals(-found.code).name})"
    lines = tuple(found.noted) if isinstance(found.noted, list) else ()
    return Outcome(str(story.sizes) if story else "", lines, fact, place_in_trace(found.trace))
