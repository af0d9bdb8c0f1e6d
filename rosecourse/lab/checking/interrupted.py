"""Steps with an interrupt before one of the learner's lines: Ctrl-C comes out of a part, whatever it catches."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .apart import STEP
from .facts import Wrong
from .interrupts import Interrupt, Lines
from .pool import Sizes
from .stories import PoolStories

SIZES = Sizes(layers=2)
MOST_LINES = 40  # of a part, at which interrupts come


@torch.inference_mode()
def look_at_interrupts(stories: PoolStories, make: Callable[[], type]) -> None:
    """An interrupt at each line of a step: sessions in all states, a cache and a part of its own. Raises `Wrong`."""
    for at in _step(stories, make(), Lines()).firsts()[:MOST_LINES]:
        _step(stories, make(), Lines(at))


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
    if lines.raised and not lines.came_out:
        file, number = lines.seen[-1]
        raise Wrong(f"an interrupt came at line {number} of {file.rpartition('/')[2]} and must come out; {ended}")
    return lines
