"""An interrupt in the middle of a part's call, as Ctrl-C brings it: it has to come out of the part."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

NOT_THEIRS = (
    str(Path(__file__).parents[2]),
    *(str(Path(sysconfig.get_path(name))) for name in ("stdlib", "purelib")),
)


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
