"""Is the part the learner's own? What of the course's work on the lesson ran in its steps, however it came there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from ... import kernels
from ...lessons import LESSONS, Lesson
from ..course import COURSES
from ..course.costs import Seen
from .trial import Trial

MADE_OF_A_TEXT = "<string>"  # the file of code that `exec` has made: nobody's file or cell
Shape = tuple[str, bytes, tuple[str, ...], tuple[str, ...]]
Place = tuple[CodeType, str]  # with its file: code of the same lines in another file is equal to it


def not_its_own(trial: Trial, seen: Iterable[Seen]) -> tuple[str, ...]:
    """The functions of the course's part of this lesson, or of a later one, that ran in some steps; in plain words.

    What an earlier lesson has brought is there to be used.
    """
    answers = _answers(trial)
    start = trial.course.begins_as(trial.rung.before)
    is_written_for_it = start is not trial.course.part(trial.rung.before)
    given = {_shape(code) for code, _ in _codes_of(start)} if is_written_for_it else set()  # by the exercise
    of_texts = {shape: name for (code, _), name in answers.items() if (shape := _shape(code)) not in given}
    found: set[str] = set()
    for step in seen:
        found |= {answers[place] for code in step.codes if (place := _place(code)) in answers}
        found |= {of_texts[_shape(code)] for code in step.codes if _is_of_a_text(code) and _shape(code) in of_texts}
        answering = _kernels(trial)
        found |= {f"the kernel `{name}`" for module, name in step.kernels if answering & {(module, name), (module, "")}}
    return tuple(sorted(found))


def _answers(trial: Trial) -> dict[Place, str]:
    """The functions that make up the answers, with their names; those that were there before are none."""
    earlier = {code for rung in LESSONS[: LESSONS.index(trial.rung)] for code, _ in _work_of(rung, trial)}
    from_here_on = {_place(code): name for rung in _from_here_on(trial) for code, name in _work_of(rung, trial)}
    return {(code, file): name for (code, file), name in from_here_on.items() if code not in earlier}


def _from_here_on(trial: Trial) -> list[Lesson]:
    """The lesson, and the later ones whose part is of the same kind."""
    of_the_kind = {number for number, course in COURSES.items() if course.world is trial.course.world}
    rungs = LESSONS[LESSONS.index(trial.rung) :]
    return [rung for rung in rungs if rung is trial.rung or rung.number in of_the_kind]


def _work_of(rung: Lesson, trial: Trial) -> Iterator[tuple[CodeType, str]]:
    yield from _codes_of(trial.course.part(rung.after))
    if rung is trial.rung:
        yield from _codes_of(trial.course.ends_as(rung.after))
    wrappers = {name: getattr(kernels, name) for name in rung.kernels if hasattr(kernels, name)}
    yield from ((code, f"`{name}`") for name, code in _codes(wrappers))
    if rung is trial.rung:
        yield from _codes_of(trial.course.exercise.beside.launched_by)


def _codes_of(part: Any) -> Iterator[tuple[CodeType, str]]:
    """The functions of a part; none of one that the step does without."""
    for base in part.__mro__ if part else ():
        if base.__module__ == part.__module__:
            yield from ((code, f"`{part.__name__}.{name}`") for name, code in _codes(vars(base)))


def _codes(functions: Any) -> Iterator[tuple[str, CodeType]]:
    for name, function in functions.items():
        if isinstance(function, FunctionType) and name != "__init__":
            yield name, function.__code__


def _kernels(trial: Trial) -> set[tuple[str, str]]:
    """(module, name) of the kernels that the lesson's exercise asks for, or that of a later one; "" is any name."""
    found = set()
    for rung in _from_here_on(trial):
        course = COURSES[rung.number]
        asked, beside = course.exercise.kernel_code, course.exercise.beside
        found |= {(f"{kernels.__name__}.{asked.module}", name) for name in asked.kernels}
        found |= {(f"{kernels.__name__}.{module}", "") for module in beside.answers}
        if beside.ends:
            found.add((f"{course.ends_as(rung.after).__module__.rpartition('.')[0]}.{beside.ends}", ""))
    return found


def _place(code: CodeType) -> Place:
    return code, code.co_filename


def _is_of_a_text(code: CodeType) -> bool:
    return code.co_filename == MADE_OF_A_TEXT


def _shape(code: CodeType) -> Shape:
    """What two functions of one source have in common, wherever it is compiled."""
    return code.co_name, code.co_code, code.co_names, code.co_varnames
