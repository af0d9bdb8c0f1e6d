"""The part `pipeline` of lesson 067: when the host reads what a step has made. Its device is late.

The step below it is the model's own: it makes tokens that nobody can mix up, in memory that the next step overwrites.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from ...config import EngineConfig, SamplingParams
from ...decode.inputs import Batch
from ...decode.parts import DecodeParts
from ...decode.runner import Outcome
from ...decode.sampling import NO_TOKEN
from ...kv.blocks import BlockTable, KVBlockManager
from ...lessons.l067 import Pipeline
from ...request.session import InferenceSession
from . import Wrong, causes_of, must
from .costs import Bound
from .events import PACES, POISON, LateDevice, LateEvent, cpu_events_by
from .stories import Op, Playing, Stories, Story, told_sizes

FIRST_TOKEN = 40_000  # one that no small integer holds
VOCAB = 8
CPU = torch.device("cpu")
FAILED = object()  # in the place of what a call returns


@dataclass(frozen=True)
class Flights:
    """rows: of the largest batch. device: how late it is."""

    rows: int = 3
    device: str = "late"
    __str__ = told_sizes


class Step:
    """The step that a pipeline gets, and its rows. ran: the batches that it has been run for, in the call that is under
    way, with their tokens. fails: what its next run raises. names: of tokens."""

    def __init__(self, played: Played, device: LateDevice) -> None:
        self.played, self.device, self.rows = played, device, self
        self.tokens = torch.full((played.sizes.rows,), POISON)
        self.scores = torch.full((played.sizes.rows, VOCAB), float("nan"))
        self.names: dict[int, str] = {NO_TOKEN: "no token", POISON: "not there yet"}
        self.number = 0
        self.ran: list[tuple[Batch, list[int]]] = []
        self.known: list[BlockTable] = []
        self.made: list[int] = []
        self.told_of = -1  # the number of the step of which the rows know the tokens
        self.forgotten = True
        self.fails: BaseException | None = None

    def run(self, batch: Batch) -> Outcome:
        failure, self.fails = self.fails, None
        if failure is not None:
            raise failure
        self.number += 1
        made = [FIRST_TOKEN + len(self.names) + row for row in range(len(batch))]
        for token, session in zip(made, batch.sessions, strict=True):
            self.names[token] = f"{self.played.name_of(session)}{self.number}"
        if self.number % 4 == 0:
            made[-1] = NO_TOKEN
        self.ran.append((batch, made))
        self.known, self.made, self.forgotten = batch.tables, made, False
        rows, size = torch.tensor(made), len(made)

        def work() -> None:
            self.tokens[:size] = rows
            self.scores[:size] = torch.eye(VOCAB)[rows % VOCAB]

        self.device.tell_step(work)
        return Outcome(self.device.holds(self.scores[:size]), self.device.holds(self.tokens[:size]))

    def has_read(self, batch: Batch, token_ids: list[int]) -> None:
        """The host has read the tokens of a batch; those of another than the newest say nothing."""
        if batch.tables is self.known:
            must("what has_read is told", self.shown(self.made), self.shown(token_ids))
            self.told_of = self.number

    read = has_read

    def forget(self) -> None:
        self.known, self.forgotten = [], True

    def holds(self, sessions: list[InferenceSession]) -> bool:
        return [id(session.table) for session in sessions] == [*map(id, self.known)]

    def shown(self, token_ids: Any) -> str:
        return f"[{', '.join(self.names.get(token, str(token)) for token in token_ids)}]"


class Flight(NamedTuple):
    """A step in flight: what it was launched for, what it makes, how much the device had been told, its record."""

    number: int
    sessions: list[InferenceSession]
    tables: list[BlockTable]
    made: list[int]
    told: int
    record: Any


class PipelineOfSteps:
    """A pipeline and its device, and what must hold after each call of it."""

    def __init__(self, part: type, played: Played) -> None:
        self.played, self.device = played, LateDevice(played.sizes.device)
        self.step = Step(played, self.device)
        self.kv = KVBlockManager(
            num_layers=1, num_kv_heads=1, head_dim=2, block_size=4, num_blocks=2, dtype=torch.float32, device=CPU
        )
        self.user = SimpleNamespace()
        self.flights: list[Flight] = []
        with self._events():
            self.made: Any = part(self.step, self.kv, EngineConfig(max_batch_size=played.sizes.rows))
        self.ahead: Any = getattr(self.made, "steps_ahead", None)
        if type(self.ahead) is not int or self.ahead not in (0, 1):
            raise Wrong(f"`steps_ahead` must be 0 or 1; found: {self.ahead!r}")
        self._look_at_flights("of a new pipeline")

    def _events(self) -> Any:
        return cpu_events_by(lambda: LateEvent(self.device))

    def launch(self, numbers: tuple[int, ...], times: int = 1) -> None:
        for _ in range(times):
            self.make_room()
            batch = self.played.batch(numbers)
            self.played.say(f"launch step {self.step.number + 1} of {self.played.names(batch)}")
            self._launch(batch, None)

    def fail(self, numbers: tuple[int, ...], kind: int) -> None:
        self.make_room()
        batch, failure = self.played.batch(numbers), _failure(kind)
        self.played.say(f"launch a step of {self.played.names(batch)}, which raises {type(failure).__name__}")
        self._launch(batch, failure)

    def land(self, failure: BaseException | None = None) -> None:
        if self.flights:
            how = f"; the wait raises {type(failure).__name__}" if failure else ""
            self.played.say(f"land step {self.flights[0].number}{how}")
            self._land(failure)

    def interrupt(self, kind: int) -> None:
        """A wait fails; the same step may land later."""
        self.land(_failure(kind))

    def make_room(self) -> None:
        while len(self.flights) > self.ahead:
            self.land()

    def settle(self) -> None:
        while self.flights:
            self.land()

    def abandon(self, is_dead: int) -> None:
        self.played.say(f"abandon{'; each wait raises RuntimeError' if is_dead else ''}")
        under_way = {one for engine in self.played.engines for flight in engine.flights for one in flight.sessions}
        self.device.dead = _failure(0) if is_dead else None
        self._call("abandon", None)
        newest = self.flights[-1] if self.flights else None
        self.flights = []
        self._look_at_flights("after abandon")
        if newest and not is_dead and self.device.done < newest.told:
            raise Wrong(f"after abandon the device must have come to the end of step {newest.number}; it still writes")
        if newest and not self.step.forgotten:
            raise Wrong("abandon must tell the rows to forget what is on the device; it did not")
        self.device.revive()
        for session in under_way:
            session.table = BlockTable([0])

    def _launch(self, batch: list[InferenceSession], failure: BaseException | None) -> None:
        given, told = Batch.of(batch, self.user), self.device.told + 1
        tables, self.step.ran = given.tables[:], []
        if self._call("launch", failure, given) is FAILED:
            return
        must("the number of times that launch runs the step", 1, len(self.step.ran))
        ran, made = self.step.ran[0]
        self._same_sessions("the step must run for", batch, ran.sessions)
        if not len(self.made.in_flight):
            raise Wrong("after launch the step must be in `in_flight`; it is empty")
        self.flights.append(Flight(self.step.number, batch, tables, made, told, self.made.in_flight[-1]))
        self._look_at_flights("after launch")

    def _land(self, failure: BaseException | None) -> None:
        returned = self._call("land", failure)
        if returned is FAILED:
            return
        flight = self.flights.pop(0)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise Wrong(f"land must return a batch and its tokens; it returned: {type(returned).__name__}")
        record, token_ids = returned
        if not isinstance(token_ids, list | tuple) or any(type(token) is not int for token in token_ids):
            raise Wrong(f"the tokens that land returns must be a list of int; found: {token_ids!r}")
        for other in self.flights:
            if other.record is record:
                raise Wrong(f"step {flight.number} must land, which is the oldest; step {other.number} has landed")
        self._look_at_record(flight, record)
        must(f"the tokens of step {flight.number}", self.step.shown(flight.made), self.step.shown(token_ids))
        for session, token in zip(flight.sessions, flight.made, strict=True):
            session.token_ids.append(token)
        self._look_at_flights("after land")

    def _call(self, method: str, failure: BaseException | None, *arguments: Any) -> Any:
        """What a call returns, or `FAILED`: the failure has come out of it, and it has changed nothing."""
        what, fails = ("the step", self.step) if method == "launch" else ("the wait", self.device)
        before, fails.fails = [*self.made.in_flight], failure
        try:
            with self._events():
                returned = getattr(self.made, method)(*arguments)
            if failure is not None and fails.fails is None:
                raise Wrong(f"{what} raised {type(failure).__name__}, which must come out of {method}")
        except BaseException as error:
            if failure is None or failure not in causes_of(error):
                raise
            returned = FAILED
        fails.fails = None
        if returned is FAILED and [*map(id, self.made.in_flight)] != [*map(id, before)]:
            found = len(self.made.in_flight)
            raise Wrong(f"{what} failed: `in_flight` must have {len(before)} step(s) still; found {found}")
        return returned

    def _look_at_flights(self, when: str) -> None:
        """`in_flight` holds a record for each step that has not landed, the oldest first."""
        in_flight = getattr(self.made, "in_flight", None)
        if not hasattr(in_flight, "__len__") or not hasattr(in_flight, "__iter__"):
            raise Wrong(f"`in_flight` {when} must be a deque or a list; found: {type(in_flight).__name__}")
        numbers = {id(flight.record): flight.number for flight in self.flights}
        found = [numbers.get(id(one), "?") for one in self.made.in_flight]
        must(f"the steps in `in_flight` {when}", [flight.number for flight in self.flights], found)
        for flight in self.flights:
            self._look_at_record(flight, flight.record)

    def _look_at_record(self, flight: Flight, record: Any) -> None:
        at = f"the record of step {flight.number}"
        for name in ("sessions", "tables", "user"):
            if not hasattr(record, name):
                raise Wrong(f"{at} must have `{name}`; it is a {type(record).__name__} without it")
        self._same_sessions(f"{at} must have the sessions", flight.sessions, record.sessions)
        if [*map(id, record.tables)] != [*map(id, flight.tables)]:
            raise Wrong(f"{at} must have the tables that its sessions had when it was launched; it has others")
        if record.user is not self.user:
            raise Wrong(f"{at} must have the user that it was launched for; found: {record.user!r}")

    def _same_sessions(self, what: str, wanted: list[InferenceSession], found: Any) -> None:
        if [*map(id, found)] != [*map(id, wanted)]:
            names = self.played.names
            raise Wrong(f"{what} {names(wanted)}, in this order; found: {names(found)}")


def _failure(kind: int) -> BaseException:
    return KeyboardInterrupt("Ctrl-C") if kind else RuntimeError("the device has failed")


class Played(Playing):
    """A story of pipelines. Sessions begin when a batch names them."""

    def __init__(self, part: type, sizes: Flights) -> None:
        super().__init__()
        self.part, self.sizes = part, sizes
        self.sessions: dict[int, InferenceSession] = {}  # by their numbers, in the order of their names

    def begin(self) -> None:
        self.engines.append(PipelineOfSteps(self.part, self))

    def end(self) -> None:
        for at in range(len(self.engines)):
            self.at = at
            self.do(("settle",))

    def batch(self, numbers: tuple[int, ...]) -> list[InferenceSession]:
        return [self._session(number) for number in [*dict.fromkeys(numbers)][: self.sizes.rows]]

    def _session(self, number: int) -> InferenceSession:
        if number not in self.sessions:
            self.sessions[number] = InferenceSession([1] * (1 + (5 * number + 3) % 7), SamplingParams())
            self.sessions[number].table = BlockTable([0])
        return self.sessions[number]

    def name_of(self, session: InferenceSession) -> str:
        return next((chr(ord("A") + n) for n, one in enumerate(self.sessions.values()) if one is session), "?")

    def names(self, batch: Any) -> str:
        return f"[{', '.join(map(self.name_of, batch))}]"

    def _again(self, number: int) -> None:
        if self.sessions:
            session = [*self.sessions.values()][number % len(self.sessions)]
            self.say(f"free {self.name_of(session)}, and prefill it again")
            session.table = BlockTable([0])


class OneBehind(Pipeline):
    """One step behind on every device: on a CPU the lesson's own waits, as there is nothing to run ahead of."""

    def ahead_on(self, device: torch.device) -> int:
        return 1


class PipelineStories(Stories):
    """The stories of pipelines: batches that change, waits that fail, and devices that are late in three ways."""

    part, count = "pipeline", 250
    holds = "each step lands once, in its turn and with its own tokens"
    KINDS = ("land", "settle", "interrupt", "fail", "abandon", "again", "other")
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
        return parts.with_(pipeline=OneBehind) if parts.pipeline is Pipeline else parts

    def watched(self, part: type, step: Behind) -> Any:
        """What a step costs. untold: tokens of which the rows are not told that the device has them."""
        played = Played(part, Flights(rows=16))
        played.begin()
        engine, device = played.engine, played.engine.device
        if step.before:
            played.do(("launch", tuple(range(step.before)), 3))
        played.do(("settle",) if step.settled else ("make_room",))
        untold = 0 if engine.step.told_of == engine.step.number or not step.settled else step.before
        waits, copies = device.idle_waits, device.copies
        played.do(("launch", tuple(range(step.now))))
        played.do(("make_room",))
        return SimpleNamespace(idle_waits=device.idle_waits - waits, copies=device.copies - copies, untold=untold)


class Behind(NamedTuple):
    """A step that is counted. before, now: sessions of the steps before it, and of itself."""

    words: str
    before: int
    now: int
    settled: bool = False  # whether all steps before it have landed


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
    Bound("tokens of which the rows are not told that the device has them", SETTLED, "untold"),
)
