"""Interrupts at every line of a call.

`strike` makes the call of a scene and sends SIGINT, by `signal.raise_signal`, in front of the n-th line of the package
(or the n-th call of one of its functions, where Python looks for signals too). The scene knows what must be true then.
"""

import inspect
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import rosecourse
from tests.support import right_parts

TRACED = (str(Path(rosecourse.__file__).parent), right_parts.__file__)


class Line:
    """A context that sends SIGINT in front of the n-th line, or never (None), and takes the KeyboardInterrupt.

    count: lines up to there. struck: whether it has come.
    """

    def __init__(self, at: int | None) -> None:
        self.at, self.count, self.struck = at, 0, False

    def __enter__(self):
        self._handler, self._tracer = signal.getsignal(signal.SIGINT), sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, kind, *_):
        sys.settrace(self._tracer)
        assert signal.getsignal(signal.SIGINT) is self._handler
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)  # nothing waits any more, and nothing holds it up
        self.struck = kind is KeyboardInterrupt
        if kind is None or self.struck:
            assert self.struck == (self.at is not None and self.at < self.count), "the interrupt was swallowed"
        return self.struck

    def _trace(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(TRACED):
            return None
        if event == "line" or (event == "call" and not _goes_on(frame)):
            self.count += 1
            if self.count - 1 == self.at:
                signal.raise_signal(signal.SIGINT)
        return self._trace


def _goes_on(frame) -> bool:
    """Whether a generator is resumed or closed. What a tracer raises there skips its `finally`; no handler of a signal
    runs there: Python looks for signals behind it, at the next line."""
    code = frame.f_code
    return bool(code.co_flags & inspect.CO_GENERATOR) and frame.f_lineno != code.co_firstlineno


@dataclass
class Scene:
    """A call, and what must be true after it.

    check: gets whether the call was interrupted, and its result (None if so).
    """

    call: Callable
    check: Callable[[bool, object], None]


def strike(scene: Scene, at: int | None) -> int:
    """Make the call with an interrupt at a line; None is without. Returns how many lines were counted."""
    result = None
    with Line(at) as line:
        result = scene.call()
    scene.check(line.struck, result)
    return line.count


def strike_lines(make: Callable[[], Scene], number: int | None = None, seed: object = "") -> int:
    """Strike a scene, made anew for each, at so many of its lines; None is all of them. Returns at how many."""
    count = strike(make(), None)
    lines = range(count)
    chosen = lines if number is None or number >= count else sorted(random.Random(str(seed)).sample(lines, number))
    for at in chosen:
        try:
            strike(make(), at)
        except BaseException as error:
            error.add_note(f"an interrupt came at line {at} of {count}")
            raise
    return len(chosen)
