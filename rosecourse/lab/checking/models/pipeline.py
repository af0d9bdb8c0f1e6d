"""The part `pipeline` of lesson 067: when the host reads what a step has made. Its device is late.

The step below it is the model's own: it makes tokens that nobody can mix up, in memory that the next step overwrites.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....config import EngineConfig
from ....decode.inputs import Batch
from ....decode.runner import Outcome
from ....decode.sampling import NO_TOKEN
from ....kv.blocks import BlockTable, KVBlockManager
from ....request.session import InferenceSession
from .. import Wrong
from ..events import POISON, LateDevice, LateEvent, cpu_events_by

FIRST_TOKEN = 40_000  # one that no small integer holds
VOCAB = 8
CPU = torch.device("cpu")
RECORD = ("sessions", "tables", "members", "user")


@dataclass(frozen=True)
class Flights:
    """rows: of the largest batch. device: how late it is."""

    rows: int = 3
    device: str = "late"

    def __str__(self) -> str:
        return ", ".join(
            f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default
        )


class Step:
    """The step that a pipeline gets, and its rows. launched: the batches that it has been run for, in the call that is
    under way."""

    def __init__(self, sizes: Flights, device: LateDevice) -> None:
        self.device, self.rows = device, self
        self.tokens = torch.full((sizes.rows,), POISON)
        self.scores = torch.full((sizes.rows, VOCAB), float("nan"))
        self.names: dict[int, str] = {NO_TOKEN: "no token", POISON: "not there yet"}
        self.number = 0
        self.ran: list[tuple[Batch, list[int]]] = []
        self.known: list[BlockTable] = []
        self.made: list[int] = []
        self.told_of = -1  # the number of the step of which the rows know the tokens
        self.forgotten = True
        self.fails: BaseException | None = None
        self.name_of: Callable[[InferenceSession], str] = lambda session: "?"

    def run(self, batch: Batch) -> Outcome:
        failure, self.fails = self.fails, None
        if failure is not None:
            raise failure
        self.number += 1
        made = [FIRST_TOKEN + len(self.names) + row for row in range(len(batch))]
        self.names |= {
            token: f"{self.name_of(session)}{self.number}" for token, session in zip(made, batch.sessions, strict=True)
        }
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
            if list(token_ids) != self.made:
                raise Wrong(f"has_read must be told {self.shown(self.made)}; found: {self.shown(token_ids)}")
            self.told_of = self.number

    read = has_read

    def __call__(self, sessions: list[InferenceSession]) -> Tensor:
        """As a step was called up to lesson 066: logits."""
        return self.run(Batch.of(sessions)).logits

    def choose(self, sessions: list[InferenceSession], logits: Tensor) -> list[int]:
        self.device.wait()
        return list(self.made)

    def forget(self) -> None:
        self.known, self.forgotten = [], True

    def holds(self, sessions: list[InferenceSession]) -> bool:
        return [id(session.table) for session in sessions] == [*map(id, self.known)]

    def view(self, size: int) -> Any:
        return SimpleNamespace(inputs=SimpleNamespace(token_ids=self.device.holds(self.tokens[:size])))

    def shown(self, token_ids: Any) -> str:
        return f"[{', '.join(self.names.get(token, str(token)) for token in token_ids)}]"


class Flight(NamedTuple):
    """A step in flight: what it was launched for, what it makes, how much the device had been told, its record."""

    number: int
    sessions: list[InferenceSession]
    tables: list[BlockTable]
    user: Any
    made: list[int]
    told: int
    record: Any


class PipelineOfSteps:
    """A pipeline and its device, and what must hold after each call of it."""

    def __init__(self, part: type, sizes: Flights, sessions: list[InferenceSession]) -> None:
        self.device = LateDevice(sizes.device)
        self.step, self.sessions = Step(sizes, self.device), sessions
        self.step.name_of = lambda session: chr(ord("A") + sessions.index(session))
        self.kv = KVBlockManager(
            num_layers=1, num_kv_heads=1, head_dim=2, block_size=4, num_blocks=2, dtype=torch.float32, device=CPU
        )
        self.user = SimpleNamespace()
        self.flights: list[Flight] = []
        self.landed: list[Any] = []
        with self._events():
            self.made: Any = part(self.step, self.kv, EngineConfig(max_batch_size=sizes.rows))
        self.ahead: Any = getattr(self.made, "steps_ahead", None)
        if type(self.ahead) is not int or self.ahead not in (0, 1):
            raise Wrong(f"`steps_ahead` must be 0 or 1; found: {self.ahead!r}")
        self._look_at_flights("a new pipeline")

    def _events(self) -> Any:
        return cpu_events_by(lambda: LateEvent(self.device))

    # -- its calls ----------------------------------------------------------------------------------------------------

    def launch(self, batch: list[InferenceSession], failure: BaseException | None) -> None:
        given = Batch.of(batch, self.user)
        told, tables = self.device.told + 1, given.tables[:]
        self.step.ran, self.step.fails = [], failure
        if self._call("launch", failure, lambda: failure is not None and self.step.fails is None, given):
            return
        if len(self.step.ran) != 1:
            raise Wrong(f"launch must run the step once; it has run it {len(self.step.ran)} times")
        ran, made = self.step.ran[0]
        self._same_sessions("the step must run for", batch, ran.sessions)
        if not len(self.made.in_flight):
            raise Wrong("after launch the step must be in `in_flight`; it is empty")
        record = self.made.in_flight[-1]
        self.flights.append(Flight(self.step.number, batch, tables, self.user, made, told, record))
        self._look_at_flights("after launch")

    def land(self, failure: BaseException | None = None) -> None:
        self.device.fails, self.device.has_failed = failure, False
        returned: list[Any] = []
        if self._call("land", failure, lambda: self.device.has_failed, returned=returned):
            return
        self.device.fails = None
        flight = self.flights.pop(0)
        if not isinstance(returned[0], tuple) or len(returned[0]) != 2:
            raise Wrong(f"land must return a batch and its tokens; it returned: {type(returned[0]).__name__}")
        record, token_ids = returned[0]
        if not isinstance(token_ids, list | tuple) or any(type(token) is not int for token in token_ids):
            kinds = sorted({type(token).__name__ for token in token_ids}) if isinstance(token_ids, list | tuple) else []
            kind = f"{type(token_ids).__name__} {' and '.join(kinds)}".strip()
            raise Wrong(f"the tokens that land returns must be a list of int; found: {kind}")
        for other in self.flights:
            if other.record is record:
                raise Wrong(f"step {flight.number} must land, which is the oldest; step {other.number} has landed")
        self._look_at_record(flight, record)
        if list(token_ids) != flight.made:
            must = f"step {flight.number} must land with "
            shown = self.step.shown
            raise Wrong(f"{must}{shown(flight.made)}\n{'found: ':>{len(must)}}{shown(token_ids)}")
        for session, token in zip(flight.sessions, flight.made, strict=True):
            session.token_ids.append(token)
        self._look_at_flights("after land")

    def abandon(self, dead: BaseException | None) -> None:
        self.device.dead = dead
        self._call("abandon", None, lambda: False)
        newest = self.flights[-1] if self.flights else None
        self.flights = []
        self._look_at_flights("after abandon")
        if newest and dead is None and self.device.done < newest.told:
            raise Wrong(f"after abandon the device must have come to the end of step {newest.number}; it still writes")
        if newest and not self.step.forgotten:
            raise Wrong("abandon must tell the rows to forget what is on the device; it did not")
        self.device.revive()

    def _call(
        self,
        method: str,
        failure: BaseException | None,
        has_failed: Callable[[], bool],
        *arguments: Any,
        returned: list[Any] | None = None,
    ) -> bool:
        """Whether the failure has come out of the call, which then has changed nothing."""
        before = [*self.made.in_flight]
        try:
            with self._events():
                result = getattr(self.made, method)(*arguments)
        except BaseException as error:
            if failure is None or not _comes_of(error, failure):
                raise
        else:
            if has_failed():
                raise Wrong(f"{_failed(method)} raised {type(failure).__name__}, which must come out of {method}")
            if returned is not None:
                returned.append(result)
            return False
        self.step.fails = self.device.fails = None
        after = [*self.made.in_flight]
        if [*map(id, after)] != [*map(id, before)]:
            raise Wrong(
                f"{_failed(method)} failed: `in_flight` must have {len(before)} step(s) still; found {len(after)}"
            )
        return True

    # -- what must hold -----------------------------------------------------------------------------------------------

    def _look_at_flights(self, when: str) -> None:
        """`in_flight` holds a record for each step that has not landed, the oldest first."""
        in_flight = getattr(self.made, "in_flight", None)
        if not hasattr(in_flight, "__len__") or not hasattr(in_flight, "__iter__"):
            raise Wrong(f"{when}: `in_flight` must be a deque or a list; found: {type(in_flight).__name__}")
        found = list(self.made.in_flight)
        numbers = {id(flight.record): flight.number for flight in self.flights}
        shown, must = [numbers.get(id(one), "?") for one in found], [flight.number for flight in self.flights]
        if shown != must:
            raise Wrong(f"{when}: `in_flight` must have the steps {must}; found: [{', '.join(map(str, shown))}]")
        for flight in self.flights:
            self._look_at_record(flight, flight.record)

    def _look_at_record(self, flight: Flight, record: Any) -> None:
        at = f"the record of step {flight.number}"
        for name in RECORD:
            if not hasattr(record, name):
                raise Wrong(f"{at} must have `{name}`; it is a {type(record).__name__} without it")
        self._same_sessions(f"{at} must have the sessions", flight.sessions, record.sessions)
        if [*map(id, record.tables)] != [*map(id, flight.tables)]:
            raise Wrong(f"{at} must have the tables that its sessions had when it was launched; it has others")
        if set(record.members) != set(flight.sessions):
            raise Wrong(f"{at} must have its sessions as `members`; it has others")
        if record.user is not flight.user:
            raise Wrong(f"{at} must have the user that it was launched for; found: {record.user!r}")

    def _same_sessions(self, what: str, must: list[InferenceSession], found: Any) -> None:
        if [*map(id, found)] != [*map(id, must)]:
            shown = [", ".join(map(self.step.name_of, some)) for some in (must, found)]
            raise Wrong(f"{what} [{shown[0]}], in this order; found: [{shown[1]}]")


def _failed(method: str) -> str:
    return "the step" if method == "launch" else "the wait"


def _comes_of(error: BaseException | None, failure: BaseException) -> bool:
    while error is not None and error is not failure:
        error = error.__cause__ or error.__context__
    return error is failure
