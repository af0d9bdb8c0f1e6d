"""An interrupt in the middle of a part's call, as Ctrl-C brings it: it has to come out of the part."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from types import FrameType
from typing import Any

import torch

from .causes import Cause
from .error_reading import NOT_THEIRS, place
from .fault import Fault, PartIsWrong
from .learner import Learner

REASON = "an `except BaseException`, a bare `except`, or a `finally` that returns: catch what you mean to catch"


class Interrupt(KeyboardInterrupt):
    """Told from an interrupt that somebody sends."""


class Lines:
    """The lines of the learner's to which one call of a part comes, in their order: (file, number).

    at: the place in this order before which an interrupt comes; None for no interrupt.
    """

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.seen: list[tuple[str, int]] = []
        self.raised: Interrupt | None = None
        self._dropped = False  # by Python itself, as what is raised in a `__del__` is

    @property
    def came_out(self) -> bool:
        """Whether nobody has to answer for an interrupt that did not come out."""
        return self.raised is None or self._dropped

    def firsts(self) -> list[int]:
        """For each line the place at which it comes first."""
        places = {line: n for n, line in reversed(list(enumerate(self.seen)))}
        return sorted(places.values())

    @contextmanager
    def traced(self) -> Iterator[None]:
        """A context in which lines are seen, and the interrupt comes."""
        tracer, hook = sys.gettrace(), sys.unraisablehook
        sys.unraisablehook = self._hear
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(tracer)
            sys.unraisablehook = hook

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.raised or frame.f_code.co_filename.startswith(NOT_THEIRS):
            return None
        if event == "line":
            self.seen.append((frame.f_code.co_filename, frame.f_lineno))
            if len(self.seen) - 1 == self.at:
                self.raised = Interrupt()
                raise self.raised
        return self._trace

    def _hear(self, unraisable: Any) -> None:
        self._dropped = self._dropped or unraisable.exc_value is self.raised


def call_interrupted(learner: Learner, call: Callable[[], Any], lines: Lines) -> None:
    """Call a part by `call`, with an interrupt at one of its lines. Raises `PartIsWrong` unless it comes out."""
    learner.alive()
    ended = "and the call returned as if nothing had happened"
    try:
        with lines.traced(), redirect_stdout(learner.printed), torch.inference_mode():
            call()
    except Interrupt:
        return
    except BaseException as error:
        ended = f"and {type(error).__name__} came out of the part"
    if lines.raised and not lines.came_out:
        where = f"expected: the KeyboardInterrupt that came {place(lines.raised)[1]}"
        raise PartIsWrong(
            Fault("the part swallows interrupts", (where, f"found:    {ended[4:]}"), REASON, cause=Cause.EXITS)
        )
