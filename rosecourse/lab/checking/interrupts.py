"""Steps with an interrupt before one of the learner's lines: Ctrl-C comes out of a part, whatever it catches."""

import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from . import Wrong
from .apart import STEP
from .pool import Sizes
from .pool_stories import PoolStories

SIZES = Sizes(layers=2)
MOST_LINES = 40  # of a part, at which interrupts come
NOT_THEIRS = (str(Path(__file__).parents[2]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib")))


class Interrupt(KeyboardInterrupt):
    """Told from an interrupt that somebody sends."""


class Lines:
    """The lines of the learner's to which one call of a part comes, in their order: (file, number).

    at: the line before which an interrupt comes, at the first time; None for no interrupt.
    """

    def __init__(self, at: tuple[str, int] | None = None) -> None:
        self.at = at
        self.seen: dict[tuple[str, int], None] = {}
        self.raised: Interrupt | None = None

    @contextmanager
    def traced(self) -> Iterator[None]:
        tracer = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(tracer)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.raised or frame.f_code.co_filename.startswith(NOT_THEIRS):
            return None
        line = frame.f_code.co_filename, frame.f_lineno
        if event == "line":
            self.seen[line] = None
            if line == self.at:
                self.raised = Interrupt()
                raise self.raised
        return self._trace


@torch.inference_mode()
def look_at_interrupts(stories: PoolStories, make: Callable[[], type]) -> None:
    """An interrupt at each line of a step: sessions in all states, a cache and a part of its own. Raises `Wrong`."""
    for line in [*_step(stories, make(), Lines()).seen][:MOST_LINES]:
        _step(stories, make(), Lines(line))


def _step(stories: PoolStories, part: type, lines: Lines) -> Lines:
    STEP.begin()
    engine = stories.model(part, stories.cache, SIZES, stories.device)
    for length in (1, 3, 4):
        engine.started(engine.pool.start(length))
    engine.step(engine.pool.live)
    engine.started(engine.pool.fork(engine.pool.live[0]), engine.pool.live[0])
    engine.around = lines.traced
    ended = "the call returned"
    try:
        engine.call(engine.pool.live[:])
    except Interrupt:
        return lines
    except BaseException as error:
        ended = f"{type(error).__name__} came out"
    if lines.at and lines.raised:
        file, number = lines.at
        raise Wrong(f"an interrupt came at line {number} of {file.rpartition('/')[2]} and must come out; {ended}")
    return lines
