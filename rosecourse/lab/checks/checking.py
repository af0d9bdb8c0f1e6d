"""`check`: is the learner's class the lesson's part? It is tried in a process of its own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from signal import Signals
from typing import Any

from ...desk.noting import note
from ...lessons import Lesson
from ...measure.progress import progress
from ..world.causes import Cause
from ..world.error_reading import place_in_trace
from ..world.fault import Fault, PartIsWrong
from ..world.patches import look_for_patches
from .edited_since import edited_since
from .judging import judged
from .names_used import cannot_be_sent
from .own_process import CannotBeSent, Ended, run_apart
from .passed import PASSED
from .trial import lesson_with_a_part, runs_kernels_on
from .verdict import Verdict

MEMORY_FAULTS = [  # signals that a process gets for what it does to memory, by itself or as the C library sees it
    getattr(signal, name) for name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE") if hasattr(signal, name)
]


def check(part: type, lesson_number: str) -> Verdict:
    """Try a class as the part that a lesson replaces. lesson_number: as on the ladder, a text.

    The part lives through scenarios over a real pool in which every number is known, then makes tokens in a whole
    engine, and at last is counted beside the course's part. Takes a few seconds on a CPU, longer where kernels are
    interpreted; the same class gets the same verdict. Once it has passed, `change` shows the lesson's diff unfolded.
    Raises `LessonError` for a lesson that is not there, or has no part to write.
    """
    rung = lesson_with_a_part(lesson_number)
    if not isinstance(part, type):
        return _no_class(part, rung)
    verdict = _judged_apart(part, rung)
    if verdict.passed:
        PASSED.add(rung.number)
        note(rung.number, "built")
    return replace(verdict, remarks=(*verdict.remarks, *edited_since(part)))


def _no_class(part: Any, rung: Lesson) -> Verdict:
    given = f"an object of {type(part).__name__}"
    what = f"check wants the class itself: check(MyPart, {rung.number!r}), not {given}"
    fault = Fault(what, cause=Cause.INTERFACE)
    return Verdict("this", rung.number, (fault,))


def _judged_apart(part: type, rung: Lesson) -> Verdict:
    """The verdict of another process, or what became of that; a fork cannot use CUDA."""
    try:
        look_for_patches()  # made where the class is defined
    except PartIsWrong as wrong:
        return Verdict(part.__name__, rung.number, (wrong.fault,))
    fork = runs_kernels_on(rung) != "cuda"
    try:
        with _bars() as hear:
            found = run_apart(partial(judged, part, rung.number), hear, fork)
    except CannotBeSent as why:
        return Verdict(part.__name__, rung.number, (cannot_be_sent(part, str(why)),))
    return Verdict(part.__name__, rung.number, (_told(found),)) if isinstance(found, Ended) else found


@contextmanager
def _bars() -> Iterator[Callable[..., None]]:
    """Yields what draws the bars of what another process reports."""
    with ExitStack() as stack:
        advance: list[Callable[[], object]] = []

        def hear(what: str, *more: Any) -> None:
            if what == "begin":
                stack.close()
                advance[:] = [stack.enter_context(progress(*more))]
            elif what == "done":
                advance[0]()

        yield hear


def _told(ended: Ended) -> Fault:
    """A process that ended without a verdict, in plain words."""
    where = place_in_trace(ended.trace)
    if ended.silent:
        what = f"the part was still at work after {ended.silent:g} seconds"
        reason = "a loop that does not end, or a wait for something that never comes"
        return Fault(what, where, reason, cause=Cause.HANGS)
    if ended.signal in MEMORY_FAULTS:
        what = f"the part crashed the process ({Signals(ended.signal).name})"
        reason = "memory was read or written that is not its: look at the addresses, and at the masks"
        return Fault(what, where, reason, cause=Cause.OUTSIDE)
    reason = "a part returns, or raises an exception; it never ends the program"
    how = f"by the signal {Signals(ended.signal).name}" if ended.signal else f"with exit code {ended.code}"
    return Fault(f"the part ended the process, {how}", where, reason, cause=Cause.EXITS)
