"""A race where time says nothing: how many readers are woken in a step, and how long the others wait, in steps."""

from __future__ import annotations

from dataclasses import dataclass

from ...config import EngineConfig
from ...decode import DecodeParts
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ...pictures.sheet import counted
from ..checking.mailboxes import Box, HandedByHand
from .count_race import CountRace

READERS = 20  # each with a request
SHARED = 4  # requests of one reader more
TOKENS = 14
PROMPT_TOKENS = 5
CONFIG = EngineConfig(block_size=16, max_batch_size=READERS + SHARED, max_seq_len=64, prefix_cache=False)
WHAT = (
    f"how often readers are woken in a decode step, of {READERS} readers with one request each and one reader of "
    f"{SHARED} requests, and after how many steps a token is read that has to wait longest. A reader reads when it is "
    "woken, all that lies in its mailbox"
)


@dataclass(frozen=True)
class Wakes:
    """each: wakes in a step, on average. longest: steps that a token lay in its mailbox, the most of all tokens."""

    each: float
    longest: int


class WakeRace(CountRace):
    """Counts are `Wakes`."""

    what = WHAT
    axis = f"wakes in a step, of {READERS + 1} readers"
    title = "Lesson {number}: how often readers are woken"

    def row(self, counted: Wakes) -> dict[str, float]:
        return {"wakes in a step": counted.each, "longest wait, in steps": counted.longest}

    def figure(self, counted: Wakes) -> float:
        return counted.each

    def claim(self) -> str:
        before, yours, course = (
            f"{figure}, and no token waits longer than {counted(one.longest, 'step')}"
            for figure, one in zip(self.figures, self.counts.values(), strict=True)
        )
        return f"Wakes in a step, before: {before}; by your part: {yours}; by the course's: {course}."

    def not_timed(self) -> str:
        return f"Nothing is timed: {self.untimed}."


def wakes_of(parts: DecodeParts, model: Model) -> Wakes:
    """How often the delivery among these parts wakes readers while all of them have tokens in each step."""
    served, boxes = _submitted(parts, model, TOKENS)
    for _ in range(4):  # until everything runs
        served.step()
    before, steps, longest = sum(box.wakes for box in boxes), TOKENS - 6, 0
    lying = dict.fromkeys(boxes, 0)  # for how many steps there has been something
    for _ in range(steps):
        served.step()
        for box in boxes:
            lying[box] = lying[box] + 1 if box.items else 0
        longest = max(longest, *lying.values())
    each = (sum(box.wakes for box in boxes) - before) / steps
    served.run()
    return Wakes(each, longest)


def completions_read(model: Model, parts: DecodeParts) -> list[list[int]]:
    """The tokens that the readers have read, in two bursts of requests with a pause between them; of each reader."""
    served, boxes = _submitted(parts, model, 5)
    served.run()
    _submit(served, boxes[::-3], 3)
    served.run()
    return [box.tokens for box in boxes]


def _submitted(parts: DecodeParts, model: Model, tokens: int) -> tuple[HandedByHand, list[Box]]:
    served = HandedByHand(InferenceEngine(model, CONFIG, parts))
    boxes = [Box(str(n)) for n in range(READERS + 1)]
    _submit(served, [*boxes, *boxes[-1:] * (SHARED - 1)], tokens)
    return served, boxes


def _submit(served: HandedByHand, boxes: list[Box], tokens: int) -> None:
    for n, box in enumerate(boxes):
        served.submit(box, [3 * n + 1] * PROMPT_TOKENS, tokens)
