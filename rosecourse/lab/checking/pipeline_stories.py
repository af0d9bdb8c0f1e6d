"""The stories of pipelines: batches that change, waits that fail, and devices that are late in three ways."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import torch

from ...config import SamplingParams
from ...decode.parts import DecodeParts
from ...kv.blocks import BlockTable
from ...lessons.l067 import Pipeline
from ...request.session import InferenceSession
from .costs import Bound
from .events import PACES
from .models.pipeline import Flights, PipelineOfSteps
from .stories import Op, Playing, Stories, Story

STORIES = 250


class OneBehind(Pipeline):
    """One step behind on every device: on a CPU the lesson's own waits, as there is nothing to run ahead of."""

    def ahead_on(self, device: torch.device) -> int:
        return 1


class Played(Playing):
    """A story of pipelines. Sessions begin when a batch names them."""

    def __init__(self, part: type, sizes: Flights) -> None:
        super().__init__()
        self.part, self.sizes = part, sizes
        self.numbered: dict[int, InferenceSession] = {}
        self.sessions: list[InferenceSession] = []  # in the order of their names

    def begin(self) -> None:
        self.engines.append(PipelineOfSteps(self.part, self.sizes, self.sessions))

    def end(self) -> None:
        for at in range(len(self.engines)):
            self.at = at
            self.do(("settle",))

    def _batch(self, numbers: tuple[int, ...]) -> list[InferenceSession]:
        return [self._session(number) for number in [*dict.fromkeys(numbers)][: self.sizes.rows]]

    def _session(self, number: int) -> InferenceSession:
        if number not in self.numbered:
            self.numbered[number] = InferenceSession([1] * (1 + (5 * number + 3) % 7), SamplingParams())
            self.numbered[number].table = BlockTable([0])
            self.sessions.append(self.numbered[number])
        return self.numbered[number]

    def _launch(self, numbers: tuple[int, ...], times: int = 1) -> None:
        for _ in range(times):
            self._make_room()
            batch = self._batch(numbers)
            self.say(f"launch step {self.engine.step.number + 1} of {self._names(batch)}")
            self.engine.launch(batch, None)

    def _make_room(self) -> None:
        while len(self.engine.flights) > self.engine.ahead:
            self._land()

    def _land(self, failure: BaseException | None = None) -> None:
        if self.engine.flights:
            how = f"; the wait raises {type(failure).__name__}" if failure else ""
            self.say(f"land step {self.engine.flights[0].number}{how}")
            self.engine.land(failure)

    def _settle(self) -> None:
        while self.engine.flights:
            self._land()

    def _interrupt(self, kind: int) -> None:
        """A wait fails; the same step may land later."""
        self._land(KeyboardInterrupt("Ctrl-C") if kind else RuntimeError("the device has failed"))

    def _fail(self, numbers: tuple[int, ...], kind: int) -> None:
        """A step that cannot be launched."""
        self._make_room()
        failure = KeyboardInterrupt("Ctrl-C") if kind else RuntimeError("the step failed")
        batch = self._batch(numbers)
        self.say(f"launch a step of {self._names(batch)}, which raises {type(failure).__name__}")
        self.engine.launch(batch, failure)

    def _abandon(self, dead: int) -> None:
        flights = [flight for engine in self.engines for flight in engine.flights]
        self.say(f"abandon{'; each wait raises RuntimeError' if dead else ''}")
        self.engine.abandon(RuntimeError("the device has failed") if dead else None)
        for session in {session for flight in flights for session in flight.sessions}:
            session.table = BlockTable([0])

    def _again(self, number: int) -> None:
        if self.sessions:
            session = self.sessions[number % len(self.sessions)]
            self.say(f"free {self.engine.step.name_of(session)}, and prefill it again")
            session.table = BlockTable([0])

    def _names(self, batch: list[InferenceSession]) -> str:
        return f"[{', '.join(map(self.engine.step.name_of, batch))}]"


class PipelineStories(Stories):
    """The stories of pipelines: batches that change, waits that fail, and devices that are late in three ways."""

    part, words = "pipeline", "a pipeline of steps"
    holds = "each step lands once, in its turn and with its own tokens"
    KINDS = ("land", "settle", "interrupt", "fail", "abandon", "again", "other")
    count = STORIES
    at_least_one = frozenset({("launch", 1)})

    def number(self, n: int) -> Story:
        dice = random.Random(n)
        rows = dice.choice([3, 2, 4, 1] if n % 4 else [3, 8, 16, 40])
        kinds = dice.sample(self.KINDS, dice.choice([0, 1, 2, len(self.KINDS)]))
        ops = [
            self._draw(dice, rows, kind) for kind in dice.choices(["launch", "launch", *kinds], k=dice.randint(2, 16))
        ]
        return Story(Flights(rows, dice.choice(PACES)), (self._draw(dice, rows, "launch"), *ops))

    @staticmethod
    def _draw(dice: random.Random, rows: int, kind: str) -> Op:
        batch = tuple(dice.sample(range(rows + 2), dice.randint(1, rows)))
        batch = tuple(sorted(batch)) if dice.random() < 0.5 else batch
        arguments: dict[str, tuple[Any, ...]] = {
            "launch": (batch, dice.choice([1, 1, 2, 3, 5])),
            "fail": (batch, dice.randrange(2)),
            "interrupt": (dice.randrange(2),),
            "abandon": (dice.randrange(2),),
            "again": (dice.randrange(rows),),
        }
        return (kind, *arguments.get(kind, ()))

    def played(self, part: type, sizes: Flights) -> Played:
        return Played(part, sizes)

    @staticmethod
    def engine(parts: DecodeParts, device: torch.device) -> DecodeParts:
        """The parts of a whole engine, with the lesson's own pipeline one step behind on this device too."""
        return parts.with_(pipeline=OneBehind) if parts.pipeline is Pipeline else parts

    # -- what a step costs --------------------------------------------------------------------------------------------

    def watched(self, part: type, step: Behind) -> Seen:
        played = Played(part, Flights(rows=16))
        played.begin()
        engine = played.engine
        if step.before:
            played.do(("launch", tuple(range(step.before)), 3))
        played.do(("settle",) if step.settled else ("make_room",))
        told = 0 if engine.step.told_of == engine.step.number or not step.settled else step.before
        waits, copies = engine.device.idle_waits, engine.device.copies
        played.do(("launch", tuple(range(step.now))))
        played.do(("make_room",))
        return Seen(engine.device.idle_waits - waits, engine.device.copies - copies, told)


class Behind(NamedTuple):
    """A step that is counted. before, now: sessions of the steps before it, and of itself."""

    words: str
    before: int
    now: int
    settled: bool = False  # whether all steps before it have landed


class Seen(NamedTuple):
    idle_waits: int
    copies: int
    untold: int


STEPS = (
    Behind("1 session, as before", 1, 1),
    Behind("3 sessions, as before", 3, 3),
    Behind("16 sessions, as before", 16, 16),
    Behind("5 sessions, after one of 1", 1, 5),
    Behind("2 sessions, after one of 6", 6, 2),
)
SETTLED = (Behind("4 sessions, after all before it have landed", 4, 4, settled=True),)
IDEA = (
    Bound("waits for the step launched last", STEPS, "idle_waits"),
    Bound("copies of tokens to the host", STEPS, "copies"),
    Bound(
        "tokens of which the rows are not told that the device has them",
        SETTLED,
        "untold",
    ),
)
