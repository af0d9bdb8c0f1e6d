"""An interrupt in the middle of a part's call, as Ctrl-C brings it: it has to come out of the part."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import FrameType
from typing import Any

import torch

from ...errors import KVCacheExhausted
from .error_reading import NOT_THEIRS, place
from .fault import Fault, PartIsWrong
from .learner import Learner

REASON = "an `except BaseException`, a bare `except`, or a `finally` that returns: catch what you mean to catch"


class Interrupt(KeyboardInterrupt):
    """Told from an interrupt that somebody sends."""


class _Line:
    """A line of a part at which an interrupt comes. raised: the interrupt, once it has come."""

    def __init__(self, number: int) -> None:
        self.number, self.raised = number, None
        self.lost = False  # where Python itself drops what is raised, as in a `__del__`

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.raised or frame.f_code.co_filename.startswith(NOT_THEIRS):
            return None
        if event == "line":
            self.number -= 1
            if self.number < 0:
                self.raised = Interrupt()
                raise self.raised
        return self.trace

    def dropped(self, unraisable: Any) -> None:
        self.lost = self.lost or unraisable.exc_value is self.raised


def look_for_interrupts(learner: Learner, part: Any, arguments: tuple[Any, ...], line: int) -> bool:
    """Call a part, and interrupt it before the `line`-th line of the learner's that it comes to, counted from 0.

    Returns whether it came to so many lines. Raises `PartIsWrong` unless the interrupt comes out.
    """
    at = _Line(line)
    learner.alive()
    ended = "and the call returned as if nothing had happened"
    try:
        with _traced(at), redirect_stdout(learner.printed), torch.inference_mode():
            part(*arguments)
    except Interrupt:
        return True
    except KVCacheExhausted:
        ended = "and KVCacheExhausted came out of the part instead"
    except BaseException as error:
        ended = f"and {type(error).__name__} came out of the part instead"
    if at.raised and not at.lost:
        where = place(at.raised)[1]
        raise PartIsWrong(Fault("the part swallows interrupts", (f"KeyboardInterrupt {where}", ended), REASON))
    return at.raised is not None


@contextmanager
def _traced(at: _Line) -> Iterator[None]:
    tracer, hook = sys.gettrace(), sys.unraisablehook
    sys.unraisablehook = at.dropped
    sys.settrace(at.trace)
    try:
        yield
    finally:
        sys.settrace(tracer)
        sys.unraisablehook = hook
